"""Field of view by refinement, for lenses from 25 to 130 degrees, straight and bent.

Features of known points on the walls of a room and drifting network poses of a wrong focal length are generated;
nothing is rendered. The camera moves sideways, moves straight ahead, or turns in place.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import ImageTransform
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.frame_data import DepthOf, DepthReader, FrameData, Scale
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import Refinement, WarmStart

FloatArray = NDArray[np.float64]

SIZE = (640, 480)
HALF = np.array([2.5, 1.6, 3.0])
"""Half sides of the room."""
COUNT = 24
"""Keyframes."""
FEATURES, LANDMARKS = 400, 6000
NOISE_PX = 0.5
WRONG = 0.1
"""Share of a keyframe's features that are at random positions."""
LENSES: dict[str, tuple[float, float, float, bool]] = {
    "25 straight": (25, 0, 0, False),
    "45 straight": (45, 0, 0, False),
    "70 straight": (70, 0, 0, False),
    "70 barrel": (70, -0.15, 0.02, False),
    "70 pincushion": (70, 0.08, 0, False),
    "90 straight": (90, 0, 0, False),
    "90 barrel": (90, -0.2, 0.04, False),
    "105 fish-eye": (105, 0.0, 0, True),
    "120 fish-eye": (120, 0.03, -0.01, True),
    "130 fish-eye": (130, 0.0, 0, True),
    "110 straight": (110, 0, 0, False),
}
"""Horizontal field of view in degrees, k1, k2, and whether it is a fish-eye lens."""


def lens_of(fov_deg: float, k1: float, k2: float, fisheye: bool) -> CameraModel:
    """The camera with this horizontal field of view."""
    unit = CameraModel(1.0, 0.0, 0.0, k1, k2, fisheye)
    edge = float(unit.distorted(np.array([[np.tan(np.radians(fov_deg / 2)), 0.0]]))[0, 0])
    return CameraModel(SIZE[0] / 2 / edge, SIZE[0] / 2, SIZE[1] / 2, k1, k2, fisheye)


def path(motion: str, fov_deg: float) -> FloatArray:
    """Poses [COUNT, 4, 4] of a camera in the room; a narrow view turns less from keyframe to keyframe."""
    t = np.linspace(0, 1, COUNT)
    zero = np.zeros(COUNT)
    share = min(fov_deg / 70, 1.0)
    turn = np.stack([0.1 * np.sin(7 * t), 1.2 * t, 0.02 * np.sin(5 * t)], axis=1) * share
    if motion == "sideways":
        centre = np.stack([1.2 * np.sin(2 * t), 0.1 * np.sin(9 * t), t - 1], axis=1) * (0.3 + 0.7 * share)
    elif motion == "forward":
        centre, turn = np.stack([zero, zero, 2.5 * t - 2], axis=1), 0.02 * turn
    else:
        centre, turn = 0.003 * np.stack([np.sin(9 * t), zero, np.cos(7 * t)], axis=1), 1.5 * turn
    T = np.tile(np.eye(4), (COUNT, 1, 1))
    T[:, :3, :3], T[:, :3, 3] = so3.exp(turn * (0, 1, 0)) @ so3.exp(turn * (1, 0, 1)), centre
    return T


class Clip:
    """Frames of one lens, as `refine.Images` and as views of a network with a wrong focal length."""

    def __init__(self, lens: CameraModel, truth: FloatArray, focal_error: float, seed: int) -> None:
        self.lens, self.truth, self.seed = lens, truth, seed
        self.scale = Scale.from_source_size(SIZE)
        self._focal = lens.focal * np.exp(focal_error)
        self._random = np.random.default_rng(seed)
        self._transform = ImageTransform(SIZE, (0.0, 0.0, float(SIZE[0]), float(SIZE[1])), (224, 168))
        steps = invert_pose(truth[:-1]) @ truth[1:]
        steps[:, :3, :3] = steps[:, :3, :3] @ so3.exp(np.radians(0.5) * self._random.normal(size=(COUNT - 1, 3)))
        steps[:, :3, 3] *= 1 + 0.1 * self._random.normal(size=(COUNT - 1, 1))
        poses = [truth[0]]
        for step in steps:
            poses.append(poses[-1] @ step)
        self.guess = np.array(poses)

    def _cast(self, T: FloatArray, pixels: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Points [N, 3] on the walls at pixels [N, 2], and depths [N]."""
        rays = np.concatenate([self.lens.rays(pixels), np.ones((len(pixels), 1))], axis=1) @ T[:3, :3].T
        rays = np.where(np.abs(rays) < 1e-9, 1e-9, rays)
        z = (np.where(rays > 0, HALF - T[:3, 3], -HALF - T[:3, 3]) / rays).min(axis=1)
        return T[:3, 3] + z[:, None] * rays, z

    @cached_property
    def _points(self) -> tuple[FloatArray, NDArray[np.float32]]:
        random = np.random.default_rng([self.seed, 1])
        each = LANDMARKS // COUNT
        points = np.concatenate([self._cast(T, random.random((each, 2)) * SIZE)[0] for T in self.truth])
        looks = random.normal(size=(len(points), 128)).astype(np.float32)
        return points, looks / np.linalg.norm(looks, axis=1, keepdims=True)

    @cached_property
    def depths(self) -> list[NDArray[np.float32]]:
        x, y = np.meshgrid((np.arange(224) + 0.5) * SIZE[0] / 224, (np.arange(168) + 0.5) * SIZE[1] / 168)
        random = np.random.default_rng([self.seed, 2])
        pixels = np.stack([x.ravel(), y.ravel()], axis=1)
        # The network's depth maps are smooth but wrong towards the border, where it takes the lens for a plain one.
        bend = 1 + 0.1 * np.square((pixels - np.array(SIZE) / 2) / SIZE[0]).sum(axis=1)
        return [
            (self._cast(T, pixels)[1] * bend * np.exp(0.05 * random.normal())).reshape(168, 224).astype(np.float32)
            for T in self.truth
        ]

    def _reader(self, k: int) -> DepthReader:
        return DepthReader(self.depths[k], np.ones((168, 224), np.uint8), self._transform, self.scale)

    def views(self) -> list[FrameData]:
        return [FrameData(k, T, self._focal, self._reader(k).grid(), 100.0) for k, T in enumerate(self.guess)]

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8], DepthOf]]:
        for k in positions:
            yield k, np.full(SIZE[::-1], 128, np.uint8), partial(self._reader, k)

    def features(self) -> list[Features]:
        return [self._seen(k) for k in range(COUNT)]

    def _seen(self, k: int) -> Features:
        random = np.random.default_rng([self.seed, 3, k])
        points, looks = self._points
        local = (points - self.truth[k, :3, 3]) @ self.truth[k, :3, :3]
        ahead = np.flatnonzero(local[:, 2] > 0.2)
        uv = self.lens.pixels(local[ahead, :2] / local[ahead, 2:])
        inside = ((uv > 0) & (uv < SIZE)).all(axis=1) & (random.random(len(uv)) < 0.8)
        rows = random.permutation(np.flatnonzero(inside))[:FEATURES]
        uv = uv[rows] + NOISE_PX * random.normal(size=(len(rows), 2))
        wrong = random.random(len(rows)) < WRONG
        uv[wrong] = random.random((int(wrong.sum()), 2)) * SIZE
        uv = uv.clip(0, np.array(SIZE) - 1).astype(np.float32)
        descriptors = looks[ahead[rows]] + np.float32(0.04) * random.normal(size=(len(rows), 128)).astype(np.float32)
        descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
        return Features(uv, descriptors, self._reader(k).sample(uv))


def refined(name: str, motion: str, seed: int) -> tuple[CameraModel, Clip, Refinement]:
    """A clip of a lens and a motion, refined; the network's field of view errs towards ordinary lenses."""
    lens = lens_of(*LENSES[name])
    ordinary = SIZE[0] / 2 / np.tan(np.radians(65 / 2))
    error = 0.4 * np.log(ordinary / lens.focal) + 0.05 * np.random.default_rng(seed).normal()
    clip = Clip(lens, path(motion, LENSES[name][0]), float(np.clip(error, -0.35, 0.35)), seed)
    return (
        lens,
        clip,
        refine(clip.views(), clip, clip.scale, RefineOptions(known=WarmStart([*range(COUNT)], clip.features()))),
    )


def measure(name: str, motion: str, seeds: Sequence[int]) -> None:
    """Print a line for one lens and motion."""
    off, before, paths, models, errors, notes = [], [], [], [], [], set()
    began = time.process_time()
    for seed in seeds:
        lens, clip, found = refined(name, motion, seed)
        true = lens.field_of_view_deg(SIZE[0])
        off.append(100 * (found.lens.field_of_view_deg(SIZE[0]) / true - 1))
        before.append(100 * (CameraModel(clip.views()[0].focal, 320, 240).field_of_view_deg(SIZE[0]) / true - 1))
        paths.append(pose_errors(found.T_world_camera, clip.truth, np.ones(COUNT - 1, bool)).ate_over_path or 0.0)
        models.append(found.lens.colmap_model)
        notes |= {found.report.start, *(str(s["why"]) for s in found.report.fallback_segments)}
        errors.append(100 * (found.report.focal_error or 0))
    seconds = (time.process_time() - began) / len(seeds)
    print(
        f"| {name}, {motion} | {np.mean(before):+.1f} % | {np.mean(off):+.2f} ({np.min(off):+.2f} to "
        f"{np.max(off):+.2f}) % | {np.mean(errors):.1f} % | {', '.join(sorted(set(models)))} | {np.mean(paths):.4f} | "
        f"{seconds:.1f} s | {'; '.join(sorted(notes))} |",
        flush=True,
    )


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="part of a lens's name")
    parser.add_argument("--motions", default="sideways,forward,turn")


def run(options: Namespace) -> None:
    print(
        "| lens, motion | field of view before | after | stated error | model | ATE / path | processor time | |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for motion in options.motions.split(","):
        for name in LENSES:
            if not options.only or options.only in name:
                measure(name, motion, range(options.seeds))
