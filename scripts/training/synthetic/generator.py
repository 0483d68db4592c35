"""Generator of training clips: procedural scenes with exact depth, poses and intrinsics."""

from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from training.synthetic.assembly import Assembly, assemble
from training.synthetic.bedroom import BEDROOM, FRAMES, NOTICES
from training.synthetic.cameras import MOTIONS, NADIR, draw_focal
from training.synthetic.draws import Draws, SamplingProbability
from training.synthetic.fitted import MODULES, ON_TOPS, RUNS
from training.synthetic.furniture import FURNITURE, HANGING, ITEMS
from training.synthetic.layout import Layout
from training.synthetic.layout_clutter import draw_clutter
from training.synthetic.layout_outdoor import draw_outdoors
from training.synthetic.layout_room import draw_rooms
from training.synthetic.parts import Catalogue
from training.synthetic.people import add_people
from training.synthetic.primitives import SyntheticScene
from training.synthetic.renderer import Renderer, World
from training.synthetic.roadside import ROADSIDE, SNOWY
from training.synthetic.sensor_augmentation import SensorAugmentation
from training.synthetic.street_props import CLUTTER, STREET

ROOM, OUTDOOR, CLUTTERED = 0, 1, 2
_TEMPLATES = (
    *FURNITURE, *BEDROOM, *FRAMES, *HANGING, *NOTICES, *ITEMS, *RUNS, *MODULES, *ON_TOPS,
    *STREET, *ROADSIDE, *SNOWY, *CLUTTER,
)  # fmt: skip
_AHEAD = 12  # batches built at once on a GPU


@dataclass(frozen=True)
class SceneShares:
    """Sampling probabilities of clips' properties, drawn independently."""

    plain: float = 0.55
    """Images of a good camera: well exposed, sharp, little noise. Others have defects of any strength."""
    turning: float = 0.15
    """Rotations of 6 to 20 degrees from frame to frame."""
    narrow: float = 0.04
    """Lenses of 20 to 34 degrees."""
    wide: float = 0.02
    """Lenses of 101 to 112 degrees."""
    people: float = 0.0
    """A person walks through the clip."""
    odd_looks: float = 0.0
    """Random convolution filters (`StyleAugmentation`), only with sensor augmentation."""
    motion: str | None = None
    """One of `cameras.MOTIONS`, for all clips; None: all kinds, each with its probability."""


@dataclass
class ClipBatch:
    """Clips with ground truth. images float [B, S, 3, H, W] in 0..1; depth float32 [B, S, H, W] in metres along the
    optical axis (0: no surface, `MOVING`: a moving person); T_world_camera float32 [B, S, 4, 4]
    (OpenCV axes); intrinsics float32 [B, 4]: fx, fy, cx, cy in pixels, the principal point at the image's centre; kind
    int64 [B]: 0 room, 1 outdoor, 2 clutter."""

    images: Tensor
    depth: Tensor
    T_world_camera: Tensor
    intrinsics: Tensor
    kind: Tensor


class SceneGenerator:
    """Draws scenes and renders clips of them.

    The same seed and calls give the same clips on the same device. tiles: the file of scripts/data/make_tiles.py;
    without it textures are procedural only. compile: fuse shading and augmentation with torch.compile. degrade: apply
    sensor augmentation to the clean renderings. shares: sampling probabilities.
    """

    def __init__(
        self,
        device: torch.device | str,
        seed: int,
        tiles: Path | None = None,
        compile: bool = False,
        degrade: bool = True,
        shares: SceneShares = SceneShares(),
    ) -> None:
        self.shares = shares
        self.draws = Draws(torch.device(device), seed)
        self.catalogue = Catalogue(_TEMPLATES, self.draws)
        self.renderer = Renderer(self.draws, tiles, compile)
        self._sensor = SensorAugmentation(self.draws, compile, shares.plain, shares.odd_looks) if degrade else None
        self._motion = MOTIONS[shares.motion] if shares.motion else None
        self._clips = 0
        self._peopled = SamplingProbability(self.draws, shares.people)
        self._ahead: dict[tuple[int, int], list[tuple[World, Tensor, list[int]]]] = {}

    @torch.no_grad()
    def render(self, clips: int, frames: int, height: int, width: int) -> ClipBatch:
        """New clips of new scenes, sorted by kind. Works on the device without waiting for it."""
        world, poses, kinds = self._next_world(clips, frames)
        shares = self.shares
        focal = draw_focal(self.draws, clips, height, width, shares.narrow, shares.wide)
        images, depth = self.renderer.render(world, poses, focal, height, width)
        centre = self.draws.constant([width / 2, height / 2]).expand(clips, 2)
        intrinsics = torch.cat([focal, centre], 1)
        still = depth  # without people: warped by the camera's motion
        images, depth = self._with_people(images, depth, poses, intrinsics)
        images = self._sensor(images, still, poses, intrinsics) if self._sensor is not None else images.clamp(0, 1)
        device = self.draws.device
        kind = torch.cat([torch.full((kinds.count(k),), k, device=device) for k in (ROOM, OUTDOOR, CLUTTERED)])
        return ClipBatch(images, depth, poses, intrinsics, kind)

    def _with_people(self, images: Tensor, depth: Tensor, poses: Tensor, intrinsics: Tensor) -> tuple[Tensor, Tensor]:
        some = self._peopled.some(len(depth))
        if some is None:
            return images, depth
        images, depth = images.clone(), depth.clone()
        images[some], depth[some] = add_people(self.draws, images[some], depth[some], poses[some], intrinsics[some])
        return images, depth

    def _next_world(self, clips: int, frames: int) -> tuple[World, Tensor, list[int]]:
        """World, poses and kinds of the next clips.

        Building takes thousands of small kernels, equally many for one batch or several. On a GPU, where launches
        dominate, several batches are built at once.
        """
        waiting = self._ahead.setdefault((clips, frames), [])
        if not waiting:
            number = _AHEAD if self.draws.device.type == "cuda" else 1
            kinds = self.next_kinds(clips * number)
            world, poses = self.build(self.draw_layouts(kinds, frames))
            # Clips are sorted by kind: every n-th one makes a batch of all kinds.
            shares = [slice(i, None, number) for i in range(number)]
            waiting.extend((world.part(share), poses[share], kinds[share]) for share in shares)
        return waiting.pop(0)

    def next_kinds(self, clips: int) -> list[int]:
        """Kinds of the next clips, in order of kind: 55 % rooms, 33 % outdoors, the rest clutter.

        Distributed evenly over calls of any size by the golden ratio. Views straight down are outdoors only.
        """
        if self._motion == NADIR:
            return [OUTDOOR] * clips
        kinds = []
        for _ in range(clips):
            self._clips += 1
            position = (self._clips * 0.6180339887498949) % 1.0
            kinds.append(ROOM if position < 0.55 else OUTDOOR if position < 0.88 else CLUTTERED)
        return sorted(kinds)

    def draw_layouts(self, kinds: list[int], frames: int) -> list[Layout]:
        """Layouts of clips, in order of kind."""
        layouts, turning, motion = [], self.shares.turning, self._motion
        rooms, outdoors, cluttered = (kinds.count(kind) for kind in (ROOM, OUTDOOR, CLUTTERED))
        if rooms:
            layouts.append(draw_rooms(self.draws, self.catalogue, rooms, frames, turning, motion))
        # About a fifth of the outdoor clips is seen from above; the counter varies the rounding from call to call.
        flying = (outdoors * 2 + self._clips % 10) // 10
        if motion is not None:
            flying = outdoors if motion == NADIR else 0
        if outdoors - flying:
            layouts.append(draw_outdoors(self.draws, self.catalogue, outdoors - flying, frames, False, turning, motion))
        if flying:
            layouts.append(draw_outdoors(self.draws, self.catalogue, flying, frames, True, turning, motion))
        if cluttered:
            layouts.append(draw_clutter(self.draws, self.catalogue, cluttered, frames, turning, motion))
        return layouts

    def build(self, layouts: list[Layout]) -> tuple[World, Tensor]:
        """The world of layouts, and the poses of their cameras [B, S, 4, 4]."""
        photos = self.renderer.tiles.count
        assemblies = [assemble(self.draws, self.catalogue, layout, photos) for layout in layouts]
        joined = Assembly(*(torch.cat([getattr(a, f.name) for a in assemblies]) for f in fields(Assembly)))
        scene = SyntheticScene(
            joined.primitives,
            joined.count,
            *(torch.cat([getattr(layout, name) for layout in layouts]) for name in ("air", "ground", "heights")),
        )
        lights = torch.cat([layout.lights for layout in layouts])
        poses = torch.cat([layout.path.poses() for layout in layouts])
        return World(scene, joined.materials, lights), poses
