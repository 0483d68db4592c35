"""Renders worlds: rays, shadows, colours, and the anti-aliasing of edges."""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from training.synthetic.draws import Draws
from training.synthetic.primitives import SyntheticScene, Views
from training.synthetic.raycast import Backend, Hits, Tiling, cast, shadows
from training.synthetic.shading import Surroundings, no_surface, shade, surface_points
from training.synthetic.textures import load_tiles

_SAMPLES = 1 << 21  # shaded at once on a GPU
_SAMPLES_CPU = 1 << 16
# So many of all pixels may show two surfaces; more stay jagged. Five in a hundred do on average, but in a single clip a
# tree may fill the view.
_EDGES, _EDGES_OF_MANY = 0.35, 0.12
_MANY = 24  # clips
BRIGHTEST = 2.5
"""Of images as they are rendered; an exposure brings it down to 1, or not."""


@dataclass
class World:
    """Scenes of B clips with their looks. materials [B, ROWS, columns], lights [B, columns]."""

    scene: SyntheticScene
    materials: Tensor
    lights: Tensor

    def part(self, clips: slice) -> "World":
        """Some of the clips."""
        scene = SyntheticScene(
            *(getattr(self.scene, field.name)[clips].contiguous() for field in fields(SyntheticScene))
        )
        return World(scene, self.materials[clips], self.lights[clips])


class Renderer:
    """Images and depth of worlds. compile: fuse shading with torch.compile."""

    def __init__(self, draws: Draws, tiles: Path | None, compile: bool) -> None:
        self._draws = draws
        self.tiles = load_tiles(tiles, draws.device)
        gpu = draws.device.type == "cuda"
        self._backend: Backend = "triton" if gpu else "torch"
        self._samples = _SAMPLES if gpu else _SAMPLES_CPU
        # One size of all pieces, and tables of any length, mean that each function is compiled once,
        # whatever clips are asked for: shading takes half a minute.
        self._compiled = compile
        self._shade: Callable[..., Tensor] = torch.compile(shade, dynamic=False) if compile else shade
        self._points: Callable[..., tuple[Tensor, Tensor]] = (
            torch.compile(surface_points, dynamic=False) if compile else surface_points
        )

    @torch.no_grad()
    def render(self, world: World, poses: Tensor, focal: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
        """Clean images [B, S, 3, H, W] in 0..BRIGHTEST and depth [B, S, H, W] in metres (0: no surface).

        poses: T_world_camera [B, S, 4, 4]; focal: fx, fy in pixels [B, 2], the principal point in the middle.
        """
        clips, frames = poses.shape[:2]
        views = make_views(poses, focal, height, width)
        tiling = Tiling(height, width)
        hits = cast(world.scene, views, self._backend)
        grid = self._draws.constant([tiling.pixels, tiling.columns, width, height], torch.int32)
        surroundings = Surroundings(
            views.table,
            world.materials.flatten(0, 1).contiguous(),
            world.lights.contiguous(),
            slopes_of(world.scene),
            self.tiles.texels,
            self.tiles.starts,
            grid,
        )
        if self._compiled:
            for table in (surroundings.views, surroundings.materials, surroundings.lights, surroundings.slopes):
                torch._dynamo.maybe_mark_dynamic(table, 0)
        lamps = torch.stack([world.lights[:, 0:4], world.lights[:, 8:12]], 1)
        colours = self._colours(world.scene, lamps, hits, surroundings)
        images = torch.stack([tiling.to_image(c.view(clips * frames, -1)) for c in colours], 1)
        depth = no_surface(tiling.to_image(hits.depth.view(clips * frames, -1)))
        images = images.view(clips, frames, 3, height, width).clamp(0, BRIGHTEST)
        return images, depth.reshape(clips, frames, height, width)

    def _colours(self, scene: SyntheticScene, lamps: Tensor, hits: Hits, s: Surroundings) -> Tensor:
        """RGB [3, pixels]: first surfaces everywhere, then the second surfaces of pixels on edges."""
        total = hits.key.shape[0]
        index = torch.arange(total, device=hits.key.device, dtype=torch.int32)
        first = self._shade_samples(scene, lamps, index, hits.depth, hits.key, s)
        edge = hits.share < 1.0
        # A list of fixed length, so that the host need not know how many edges there are.
        capacity = math.ceil(total * (_EDGES_OF_MANY if len(lamps) >= _MANY else _EDGES))
        rank = edge.cumsum(0, dtype=torch.int32) - 1
        slot = torch.where(edge & (rank < capacity), rank, capacity).long()
        edges = torch.full((capacity + 1,), -1, dtype=torch.int32, device=index.device).scatter_(0, slot, index)
        edges = edges[:capacity]
        chosen = edges.clamp_min(0).long()
        second = self._shade_samples(
            scene, lamps, edges.clamp_min(0), hits.second_depth[chosen], hits.second_key[chosen], s
        )
        share = hits.share[chosen]
        mixed = first[:, chosen] * share + second * (1 - share)
        # Empty places of the list write to one more pixel, which is dropped.
        padded = torch.cat([first, first[:, :1]], 1)
        target = torch.where(edges < 0, total, edges).long()
        return padded.index_copy_(1, target, mixed)[:, :total]

    def _shade_samples(
        self, scene: SyntheticScene, lamps: Tensor, index: Tensor, depth: Tensor, key: Tensor, s: Surroundings
    ) -> Tensor:
        """RGB [3, P], in pieces, so that memory is bounded."""
        total, piece = index.shape[0], self._samples
        extra = -total % piece
        if self._compiled and extra:
            index, depth = (torch.cat([x, x[-1:].expand(extra)]) for x in (index, depth))
            key = torch.cat([key, key.new_full((extra,), -1)])
        result = []
        for part in zip(index.split(piece), depth.split(piece), key.split(piece), strict=True):
            points, clip = self._points(*part, s)
            visible = shadows(scene, lamps, points, clip, self._backend)
            result.append(self._shade(*part, visible, s))
        return torch.cat(result, 1)[:, :total]


def make_views(poses: Tensor, focal: Tensor, height: int, width: int) -> Views:
    """The cameras of all frames, flat."""
    clips, frames = poses.shape[:2]
    table = torch.zeros(clips, frames, 16, device=poses.device)
    table[..., :9] = poses[..., :3, :3].flatten(2)
    table[..., 9:12] = poses[..., :3, 3]
    table[..., 12:14] = focal[:, None]
    table[..., 14] = torch.arange(clips, device=poses.device)[:, None]
    return Views(table.view(clips * frames, 16), height, width)


def slopes_of(scene: SyntheticScene) -> Tensor:
    """Slopes of height maps in x and y [B, G, G, 2]."""
    padded = torch.nn.functional.pad(scene.heights[:, None], (1, 1, 1, 1), mode="replicate")[:, 0]
    cell = 2 * scene.ground[:, 3].clamp_min(1e-3)[:, None, None]
    x = (padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2]) / cell
    y = (padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]) / cell
    return torch.stack([x, y], -1)
