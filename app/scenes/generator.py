"""Training clips on demand: exact depth, poses and intrinsics of procedural scenes."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from stream_recon.app.scenes.assembly import Assembly, assemble
from stream_recon.app.scenes.cameras import draw_focal
from stream_recon.app.scenes.degrade import Degradations
from stream_recon.app.scenes.draws import Draws
from stream_recon.app.scenes.furniture import FURNITURE, HANGING, ITEMS
from stream_recon.app.scenes.layout import Layout
from stream_recon.app.scenes.layout_clutter import draw_clutter
from stream_recon.app.scenes.layout_outdoor import draw_outdoors
from stream_recon.app.scenes.layout_room import draw_rooms
from stream_recon.app.scenes.parts import Catalogue
from stream_recon.app.scenes.primitives import Scene, Views
from stream_recon.app.scenes.raycast import Backend, Hits, Tiling, cast, shadows
from stream_recon.app.scenes.shading import Surroundings, no_surface, shade, surface_points
from stream_recon.app.scenes.streetware import CLUTTER, STREET
from stream_recon.app.scenes.textures import load_tiles

ROOM, OUTDOOR, CLUTTERED = 0, 1, 2
_SAMPLES = 1 << 21  # shaded at once
_EDGES = 0.35  # of all pixels may show two surfaces


@dataclass
class ClipBatch:
    """Clips with their truth. images float [B, S, 3, H, W] in 0..1; depth float32 [B, S, H, W] in metres along the
    optical axis (0: no surface); T_world_camera float32 [B, S, 4, 4] (OpenCV axes); intrinsics float32 [B, 4]:
    fx, fy, cx, cy in pixels, the principal point at the image's centre; kind int64 [B]: 0 room, 1 outdoor,
    2 clutter."""

    images: Tensor
    depth: Tensor
    T_world_camera: Tensor
    intrinsics: Tensor
    kind: Tensor


class SceneGenerator:
    """Draws scenes and renders clips of them.

    The same seed and calls give the same clips on the same device. tiles: the file of scripts/make_tiles; without
    it textures are procedural alone. compile: fuse shading and degradations with torch.compile. degrade: make the
    clean renderings look like a camera's.
    """

    def __init__(
        self,
        device: torch.device | str,
        seed: int,
        tiles: Path | None = None,
        compile: bool = False,
        degrade: bool = True,
    ) -> None:
        self.device = torch.device(device)
        self._draws = Draws(self.device, seed)
        self._catalogue = Catalogue(FURNITURE + HANGING + ITEMS + STREET + CLUTTER, self._draws)
        self._tiles = load_tiles(tiles, self.device)
        self._backend: Backend = "triton" if self.device.type == "cuda" else "torch"
        self._shade: Callable[..., Tensor] = torch.compile(shade, dynamic=False) if compile else shade
        self._points: Callable[..., tuple[Tensor, Tensor]] = (
            torch.compile(surface_points, dynamic=False) if compile else surface_points
        )
        self._samples = _SAMPLES if self.device.type == "cuda" else 1 << 16
        self._pad = compile
        self._degradations = Degradations(self._draws, compile) if degrade else None
        self._clips = 0

    @torch.no_grad()
    def render(self, clips: int, frames: int, height: int, width: int) -> ClipBatch:
        """New clips of new scenes. Works on the device without waiting for it."""
        kinds = self._kinds(clips)
        layout = self._layout(kinds, frames)
        focal = draw_focal(self._draws, clips, height, width)
        images, depth, poses = self._draw(layout, focal, clips, frames, height, width)
        centre = self._draws.constant([width / 2, height / 2]).expand(clips, 2)
        intrinsics = torch.cat([focal, centre], 1)
        if self._degradations is not None:
            images = self._degradations(images, depth, poses, intrinsics)
        kind = self._draws.constant(kinds, torch.int64)
        return ClipBatch(images, depth, poses, intrinsics, kind)

    def _kinds(self, clips: int) -> list[int]:
        """Kinds of the next clips, in order of kind: half rooms, a third outdoors, the rest clutter.

        Spread evenly over calls of any size by the golden ratio.
        """
        kinds = []
        for _ in range(clips):
            self._clips += 1
            place = (self._clips * 0.6180339887498949) % 1.0
            kinds.append(ROOM if place < 0.52 else OUTDOOR if place < 0.86 else CLUTTERED)
        return sorted(kinds)

    def _layout(self, kinds: list[int], frames: int) -> list[Layout]:
        layouts = []
        rooms, outdoors, cluttered = (kinds.count(kind) for kind in (ROOM, OUTDOOR, CLUTTERED))
        if rooms:
            layouts.append(draw_rooms(self._draws, self._catalogue, rooms, frames))
        # A fifth of the outdoor clips is seen from above.
        flying = (outdoors * (self._clips % 5 + 1)) // 10
        if outdoors - flying:
            layouts.append(draw_outdoors(self._draws, self._catalogue, outdoors - flying, frames, False))
        if flying:
            layouts.append(draw_outdoors(self._draws, self._catalogue, flying, frames, True))
        if cluttered:
            layouts.append(draw_clutter(self._draws, self._catalogue, cluttered, frames))
        return layouts

    def _draw(
        self, layouts: list[Layout], focal: Tensor, clips: int, frames: int, height: int, width: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Images [B, S, 3, H, W], depth [B, S, H, W] and poses [B, S, 4, 4]."""
        scene, materials, lights, poses = self._assemble(layouts, clips, frames)
        views = self._views(poses, focal, height, width)
        tiling = Tiling(height, width)
        hits = cast(scene, views, self._backend)
        slopes = self._slopes(scene)
        grid = self._draws.constant([tiling.pixels, tiling.columns, width, height], torch.int32)
        surroundings = Surroundings(
            views.table, materials, lights, slopes, self._tiles.texels, self._tiles.starts, grid
        )
        lamps = torch.stack([lights[:, 0:4], lights[:, 8:12]], 1)
        colours = self._colours(scene, lamps, hits, surroundings)
        images = torch.stack([tiling.to_image(c.view(clips * frames, -1)) for c in colours], 1)
        depth = no_surface(tiling.to_image(hits.depth.view(clips * frames, -1)))
        shape = (clips, frames, height, width)
        return images.view(clips, frames, 3, height, width).clamp(0, 1), depth.reshape(shape), poses

    def _assemble(self, layouts: list[Layout], clips: int, frames: int) -> tuple[Scene, Tensor, Tensor, Tensor]:
        assemblies = [
            assemble(
                self._draws,
                self._catalogue,
                layout.objects,
                layout.path.position,
                layout.keep_clear,
                layout.finishes,
                self._tiles.count,
            )
            for layout in layouts
        ]
        joined = Assembly(*(torch.cat([getattr(a, f.name) for a in assemblies]) for f in fields(Assembly)))
        scene = Scene(
            joined.primitives,
            joined.count,
            *(torch.cat([getattr(layout, name) for layout in layouts]) for name in ("air", "ground", "heights")),
        )
        lights = torch.cat([layout.lights for layout in layouts])
        poses = torch.eye(4, device=self.device).repeat(clips, frames, 1, 1)
        poses[..., :3, :3] = torch.cat([layout.path.rotation() for layout in layouts])
        poses[..., :3, 3] = torch.cat([layout.path.position for layout in layouts])
        return scene, joined.materials.flatten(0, 1).contiguous(), lights, poses

    def _views(self, poses: Tensor, focal: Tensor, height: int, width: int) -> Views:
        clips, frames = poses.shape[:2]
        table = torch.zeros(clips, frames, 16, device=self.device)
        table[..., :9] = poses[..., :3, :3].flatten(2)
        table[..., 9:12] = poses[..., :3, 3]
        table[..., 12:14] = focal[:, None]
        table[..., 14] = torch.arange(clips, device=self.device)[:, None]
        return Views(table.view(clips * frames, 16), height, width)

    def _slopes(self, scene: Scene) -> Tensor:
        """Slopes of height maps [B, G, G, 2]."""
        padded = torch.nn.functional.pad(scene.heights[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
        cell = 2 * scene.ground[:, 3].clamp_min(1e-3)[:, None, None]
        x = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / cell
        y = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / cell
        return torch.stack([x, y], -1)

    def _colours(self, scene: Scene, lamps: Tensor, hits: Hits, s: Surroundings) -> Tensor:
        """RGB [3, pixels]: first surfaces everywhere, then the second surfaces of pixels on edges."""
        total = hits.key.shape[0]
        index = torch.arange(total, device=self.device, dtype=torch.int32)
        first = self._shade_samples(scene, lamps, index, hits.depth, hits.key, s)
        edge = hits.share < 1.0
        capacity = math.ceil(_EDGES * total)
        rank = edge.cumsum(0, dtype=torch.int32) - 1
        slot = torch.where(edge & (rank < capacity), rank, capacity).long()
        # Slots that no edge fills point at pixel 0, and are not written back.
        edges = torch.full((capacity + 1,), -1, dtype=torch.int32, device=self.device).scatter_(0, slot, index)
        edges = edges[:capacity]
        chosen = edges.clamp_min(0).long()
        second = self._shade_samples(
            scene, lamps, edges.clamp_min(0), hits.second_depth[chosen], hits.second_key[chosen], s
        )
        share = hits.share[chosen]
        mixed = first[:, chosen] * share + second * (1 - share)
        padded = torch.cat([first, first[:, :1]], 1)
        target = torch.where(edges < 0, total, edges).long()
        return padded.index_copy_(1, target, mixed)[:, :total]

    def _shade_samples(
        self, scene: Scene, lamps: Tensor, index: Tensor, depth: Tensor, key: Tensor, s: Surroundings
    ) -> Tensor:
        """RGB [3, P], in pieces of one size, so that memory is bounded and one compiled kernel fits all."""
        total, piece = index.shape[0], self._samples
        pieces = math.ceil(total / piece)
        if self._pad and total < pieces * piece:
            extra = pieces * piece - total
            index, depth = (torch.cat([x, x[-1:].expand(extra)]) for x in (index, depth))
            key = torch.cat([key, key.new_full((extra,), -1)])
        result = []
        for part in zip(index.split(piece), depth.split(piece), key.split(piece), strict=True):
            points, clip = self._points(*part, s)
            visible = shadows(scene, lamps, points, clip, self._backend)
            result.append(self._shade(*part, visible, s))
        return torch.cat(result, 1)[:, :total]
