"""Ray-cast scenes of boxes and balls: true depth, images, distances to surfaces, and depth as a network gives it."""

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, Intrinsics
from stream_recon.app.result.dense import DENSE_FOLDER, DenseMap, encoded_image
from tests.app.result_files import write_dense

Array = NDArray[np.float64]
SKY_DEPTH = 60.0
"""What the network gives for sky, in units of the scene."""


SOURCE = 2.0
"""Sides of the source's images as a multiple of the network's."""


@dataclass(frozen=True)
class Solid:
    """A box of half sizes [3], or a ball where they are one radius, turned about the vertical z axis."""

    centre: tuple[float, float, float]
    half: tuple[float, float, float] | float
    colour: tuple[int, int, int]
    turn: float = 0.0
    part_of: str = ""
    """Name of the object that it belongs to."""

    def local(self, xyz: Array) -> Array:
        """World points or directions [..., 3] in the solid's axes, without its offset."""
        c, s = np.cos(self.turn), np.sin(self.turn)
        return xyz @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])

    def hit(self, origin: Array, rays: Array) -> Array:
        """Ray parameters [N] of the first hits from outside; infinite without."""
        o, r = self.local(origin - np.array(self.centre)), self.local(rays)
        if isinstance(self.half, float):
            a, b, c = (r * r).sum(1), r @ o, o @ o - self.half**2
            root = b * b - a * c
            t = (-b - np.sqrt(np.maximum(root, 0))) / a
            return np.where((root > 0) & (t > 0), t, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            first, second = (-np.array(self.half) - o) / r, (np.array(self.half) - o) / r
        low, high = np.minimum(first, second).max(1), np.maximum(first, second).min(1)
        return np.where((low < high) & (low > 0), low, np.inf)

    def distance(self, xyz: Array) -> Array:
        """Distances [N] of points to the surface."""
        p = self.local(xyz - np.array(self.centre))
        if isinstance(self.half, float):
            return np.abs(np.linalg.norm(p, axis=1) - self.half)
        q = np.abs(p) - np.array(self.half)
        return np.abs(np.linalg.norm(np.maximum(q, 0), axis=1) + np.minimum(q.max(1), 0))


@dataclass(frozen=True)
class Scene:
    """Solids, and the path of a camera around or through them. z is up; lengths in metres."""

    solids: list[Solid]
    cameras: list[Array] = field(default_factory=list)
    """Poses [4, 4] camera to world, x right, y down, z forward."""
    size: tuple[int, int] = (160, 120)
    focal: float = 130.0

    @property
    def intrinsics(self) -> Intrinsics:
        return Intrinsics(self.focal, self.focal, self.size[0] / 2, self.size[1] / 2)

    @cached_property
    def views(self) -> list[tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.uint8]]]:
        """What the cameras see; see `render`."""
        return [self.render(T) for T in self.cameras]

    def at(self, factor: float) -> "Scene":
        """The same scene in larger images."""
        size = (round(factor * self.size[0]), round(factor * self.size[1]))
        return replace(self, size=size, focal=factor * self.focal)

    def render(self, T: Array) -> tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.uint8]]:
        """Depth [h, w] (0: sky), number of the solid [h, w] (-1: sky), and image [h, w, 3]."""
        width, height = self.size
        y, x = np.indices((height, width)) + 0.5
        rays = np.stack([(x - width / 2) / self.focal, (y - height / 2) / self.focal, np.ones_like(x)], -1)
        rays = rays.reshape(-1, 3) @ T[:3, :3].T
        t = np.stack([solid.hit(T[:3, 3], rays) for solid in self.solids])
        first = t.argmin(0)
        depth = t[first, np.arange(len(first))]
        sky = ~np.isfinite(depth)
        points = T[:3, 3] + rays * np.where(sky, 0, depth)[:, None]
        stripes = 0.75 + 0.25 * np.sign(np.sin(37 * points + 1)).prod(1)
        colours = np.array([solid.colour for solid in self.solids])[first] * stripes[:, None]
        rgb = np.where(sky[:, None], (150, 190, 255), colours).astype(np.uint8)
        shape = (height, width)
        return (
            np.where(sky, 0, depth).reshape(shape).astype(np.float32),
            np.where(sky, -1, first).reshape(shape),
            rgb.reshape(*shape, 3),
        )

    def distance(self, xyz: NDArray[np.floating]) -> Array:
        """Distances [N] of points to the nearest surface."""
        return np.min([solid.distance(np.asarray(xyz, np.float64)) for solid in self.solids], axis=0)

    def visible(self, name: str | None = None) -> Array:
        """Points [N, 3] of an object's surface, or of all surfaces, that the cameras see. Every pixel gives one."""
        points = []
        for T, (depth, solid, _) in zip(self.cameras, self.views, strict=True):
            wanted = solid >= 0
            if name is not None:
                mine = np.array([s.part_of == name for s in self.solids])
                wanted &= mine[solid]
            rows, columns = np.nonzero(wanted)
            z = depth[rows, columns].astype(np.float64)
            k = self.intrinsics
            local = np.stack([(columns + 0.5 - k.cx) / k.fx * z, (rows + 0.5 - k.cy) / k.fy * z, z], 1)
            points.append(local @ T[:3, :3].T + T[:3, 3])
        return np.concatenate(points)


@dataclass(frozen=True)
class NetworkErrors:
    """Errors of a network's depth, relative to the depth."""

    smooth: float = 0.005
    """Deviation that varies slowly over the image."""
    scale: float = 0.002
    """Deviation of each frame's scale."""
    pixel: float = 0.003
    """Deviation of each pixel."""
    wrong: float = 0.01
    """Share of small patches whose depth is wrong by up to a third."""


def network_results(scene: Scene, errors: NetworkErrors, seed: int = 0) -> list[FrameResult]:
    """The frames as a network gives them: blurred depth edges, wrong patches, sky far away with no confidence.

    Confidence is that of the reported failure: large on floor and walls, a fraction of it on objects.
    """
    random = np.random.default_rng(seed)
    results = []
    for index, (T, (depth, solid, rgb)) in enumerate(zip(scene.cameras, scene.views, strict=True)):
        height, width = depth.shape
        sky = solid < 0
        inverse = 1 / np.where(sky, SKY_DEPTH, depth)
        # A network's edges are as wide as its features: depth between two surfaces.
        blurred = 1 / cv2.GaussianBlur(inverse, (0, 0), 0.7)
        factor = 1 + errors.smooth * _smooth_field(random, (height, width)) + errors.scale * random.standard_normal()
        factor = factor + errors.pixel * random.standard_normal((height, width))
        wrong = _patches(random, (height, width), errors.wrong)
        factor = np.where(wrong, factor * random.uniform(0.67, 1.33), factor)
        edges = np.abs(blurred / np.where(sky, SKY_DEPTH, depth) - 1) > 0.02
        mine = np.array([bool(s.part_of) for s in scene.solids])
        confidence = np.where(mine[solid], 3.0, 15.0) * random.uniform(0.7, 1.3, (height, width))
        confidence = np.where(edges, 0.15 * confidence, confidence)
        confidence = np.where(wrong, 0.5 * confidence, confidence)
        confidence = np.where(sky, 0.01, confidence)
        results.append(_result(scene, index, T, blurred * factor, confidence, rgb))
    return results


def write_dense_maps(folder: Path, scene: Scene, factor: float = 1.5, refinement: str = "a1") -> None:
    """Add dense depth maps of all frames to a result of the scene, ``factor`` times as large as its images.

    ``refinement``: id of the refinement that the result then has.
    """
    record = json.loads((folder / "run.json").read_text())
    record["refinement"] = {"id": refinement, "fallback_segments": []}
    record["dense"] = {"refinement": refinement}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / DENSE_FOLDER).mkdir()
    large = scene.at(factor)
    for index, (truth, _, rgb) in enumerate(large.views):
        depth, certainty = stereo_depth(truth, index)
        transform = replace(_transform(scene), network_size=large.size)
        write_dense(folder, DenseMap(index, depth, certainty, encoded_image(rgb), transform), refinement)


def stereo_depth(truth: NDArray[np.float32], seed: int) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Depth [h, w] and certainty of a dense depth map: half of it measured, the rest near, or the network's."""
    random = np.random.default_rng(seed)
    field_ = _smooth_field(random, truth.shape) + 0.3 * random.standard_normal(truth.shape)
    confirmed, network = field_ > 0, field_ < -0.8
    error = np.where(confirmed, 0.002, np.where(network, 0.01, 0.004))
    depth = truth * (1 + error * random.standard_normal(truth.shape))
    wrong = network & _patches(random, truth.shape, 0.05)
    depth = np.where(wrong, depth * random.uniform(0.67, 1.33), depth)
    certainty = np.where(confirmed, Certainty.CONFIRMED, np.where(network, Certainty.NETWORK, Certainty.NEAR))
    known = truth > 0
    return np.where(known, depth, 0).astype(np.float32), np.where(known, certainty, 0).astype(np.uint8)


def _result(
    scene: Scene,
    index: int,
    T: Array,
    depth: NDArray[np.floating],
    confidence: NDArray[np.floating],
    rgb: NDArray[np.uint8],
) -> FrameResult:
    return FrameResult(
        index=index,
        timestamp=index / 10,
        T_world_camera=np.linalg.inv(scene.cameras[0]) @ T,
        intrinsics=scene.at(SOURCE).intrinsics,
        depth=depth.astype(np.float32),
        confidence=confidence.astype(np.float32),
        rgb=rgb,
        transform=_transform(scene),
        is_keyframe=True,
    )


def _transform(scene: Scene) -> ImageTransform:
    width, height = scene.at(SOURCE).size
    return ImageTransform((width, height), (0.0, 0.0, float(width), float(height)), scene.size)


def _smooth_field(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    coarse = random.standard_normal((6, 8))
    return np.asarray(cv2.resize(coarse, (shape[1], shape[0]), interpolation=cv2.INTER_CUBIC))


def _patches(random: np.random.Generator, shape: tuple[int, ...], share: float) -> NDArray[np.bool_]:
    """Blobs that cover about this share of an image."""
    field_ = cv2.GaussianBlur(random.standard_normal(shape), (0, 0), 2.0)
    return np.asarray(field_ > np.quantile(field_, 1 - share))


def looking(position: tuple[float, float, float], target: tuple[float, float, float]) -> Array:
    """Pose [4, 4] of a level camera."""
    z = np.array(target) - position
    z = z / np.linalg.norm(z)
    x = np.cross(z, (0, 0, 1))
    x = x / np.linalg.norm(x)
    T = np.eye(4)
    T[:3] = np.stack([x, np.cross(z, x), z, position], axis=1)
    return T


def _circle(count: int, radius: float, height: float, target: tuple[float, float, float], turn: float) -> list[Array]:
    angles = np.linspace(0, turn, count, endpoint=False)
    return [looking((target[0] + radius * np.cos(a), target[1] + radius * np.sin(a), height), target) for a in angles]


FLOOR = Solid((0, 0, -0.5), (30.0, 30.0, 0.5), (120, 100, 80))


def object_on_table(frames: int = 21, size: tuple[int, int] = (160, 120)) -> Scene:
    """A small object of boxes and balls on a table in a hall, from all sides."""
    top = 0.75
    parts = [
        Solid((0, 0, top + 0.08), (0.14, 0.1, 0.08), (200, 60, 60), 0.3, "object"),
        Solid((0, 0, top + 0.21), (0.06, 0.08, 0.05), (60, 160, 60), 0.9, "object"),
        Solid((0.02, 0, top + 0.31), 0.06, (60, 80, 200), 0, "object"),
        Solid((0.17, 0.09, top + 0.05), 0.05, (220, 200, 60), 0, "object"),
    ]
    table = [Solid((0, 0, top - 0.02), (0.5, 0.5, 0.02), (150, 110, 70))]
    table += [Solid((0.45 * a, 0.45 * b, 0.36), (0.02, 0.02, 0.35), (90, 60, 40)) for a in (-1, 1) for b in (-1, 1)]
    walls = [Solid((4, 0, 1), (0.1, 4, 2), (200, 200, 180)), Solid((-4, 0, 1), (0.1, 4, 2), (180, 200, 200))]
    scene = Scene([FLOOR, *parts, *table, *walls], [], size, size[0] * 1.1)
    return Scene(scene.solids, _circle(frames, 0.8, 1.35, (0, 0, top + 0.15), 2 * np.pi), size, scene.focal)


def armchair(frames: int = 21, size: tuple[int, int] = (160, 120)) -> Scene:
    """An armchair with thin legs on a floor."""
    parts = [
        Solid((0, 0, 0.4), (0.3, 0.3, 0.1), (90, 60, 130), 0, "object"),
        Solid((-0.27, 0, 0.75), (0.06, 0.3, 0.25), (90, 60, 130), 0, "object"),
        Solid((0, 0.33, 0.5), (0.3, 0.05, 0.15), (120, 80, 150), 0, "object"),
        Solid((0, -0.33, 0.5), (0.3, 0.05, 0.15), (120, 80, 150), 0, "object"),
        *(
            Solid((0.25 * a, 0.25 * b, 0.15), (0.03, 0.03, 0.15), (60, 40, 30), 0, "object")
            for a in (-1, 1)
            for b in (-1, 1)
        ),
    ]
    return Scene([FLOOR, *parts], _circle(frames, 1.7, 1.3, (0, 0, 0.5), 2 * np.pi), size, size[0] * 1.0)


def furnished_room(frames: int = 24, size: tuple[int, int] = (160, 120)) -> Scene:
    """A room with furniture, from a walk around its middle with the view outward."""
    walls = [
        Solid((3, 0, 1.25), (0.1, 3, 1.25), (200, 200, 180)),
        Solid((-3, 0, 1.25), (0.1, 3, 1.25), (180, 200, 200)),
        Solid((0, 3, 1.25), (3, 0.1, 1.25), (200, 180, 200)),
        Solid((0, -3, 1.25), (3, 0.1, 1.25), (190, 190, 190)),
        Solid((0, 0, 2.6), (3, 3, 0.1), (230, 230, 230)),
    ]
    furniture = [
        Solid((2.5, 1, 0.45), (0.4, 0.9, 0.45), (150, 70, 60)),
        Solid((-2.4, -1, 0.9), (0.3, 0.6, 0.9), (110, 80, 50)),
        Solid((0.5, 2.4, 0.37), (0.7, 0.35, 0.37), (70, 110, 70), 0.2),
        Solid((0.5, 2.4, 0.9), 0.16, (200, 200, 80)),
        Solid((-1.8, 1.9, 0.25), (0.25, 0.25, 0.25), (80, 80, 150), 0.7),
    ]
    path = []
    for a in np.linspace(0, 2 * np.pi, frames, endpoint=False):
        position = (0.8 * np.cos(a), 0.8 * np.sin(a), 1.4)
        path.append(looking(position, (3 * np.cos(a + 0.9), 3 * np.sin(a + 0.9), 1.0)))
    return Scene([FLOOR, *walls, *furniture], path, size, size[0] * 0.7)


def street(frames: int = 24, size: tuple[int, int] = (160, 120)) -> Scene:
    """Houses, trees and a fence under the sky, from a walk past them."""
    solids = [FLOOR]
    for x in (-6, 2, 10):
        solids.append(Solid((x, 9, 2.5), (3, 2, 2.5), (170 + 2 * x, 150, 130), 0.1 * x / 6))
    for x in (-3.5, 4, 8):
        solids.append(Solid((x, 4.5, 1), (0.15, 0.15, 1), (100, 70, 40)))
        solids.append(Solid((x, 4.5, 2.6), 0.9, (60, 130, 60)))
    solids.append(Solid((0, 6, 0.5), (6, 0.05, 0.5), (140, 140, 140)))
    path = [looking((-4 + 0.35 * k, -1, 1.6), (-2 + 0.35 * k, 6, 1.4)) for k in range(frames)]
    return Scene(solids, path, size, size[0] * 0.8)
