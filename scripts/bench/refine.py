"""Growth of refinement's time and memory with a video's length, on a synthetic walk with ground truth.

A camera looks sideways and walks round a course repeatedly. Features of known points and drifting network poses with
erroneous depth are generated. Nothing is rendered and no descriptor computed, so that mapping alone is measured.
"""

import multiprocessing
import resource
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import ImageTransform
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.frame_data import DepthGrid, DepthOf, DepthReader, FrameData, Scale
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import WarmStart

FloatArray = NDArray[np.float64]

SIZES = (1000, 2500, 5000, 10000)
LAP = 2500
"""Frames once round the course."""
PACE, FOCAL, SIZE = 0.04, 400.0, (640, 480)
EVERY = 4
"""Frames from one keyframe to the next."""
FEATURES, LANDMARKS = 400, 130
"""Of a keyframe at most; of each unit of the way."""
TURN_DEG, STRETCH = 0.1, 0.03
"""The network's errors a frame, which add up: of a turn, and of a step as a share."""


def bench_refine(sizes: Sequence[int] = SIZES, every: int = EVERY) -> None:
    """Measure each size in a separate process, for its own peak memory."""
    spawn = multiprocessing.get_context("spawn")
    for frames in sizes:
        process = spawn.Process(target=measure, args=(frames, every))
        process.start()
        process.join()
        if process.exitcode:
            raise SystemExit(f"refining {frames} frames failed")


def measure(frames: int, every: int = EVERY) -> None:
    """Refine one walk, and print a line."""
    truth = course(frames)
    walk = Walk(truth, drifted(truth))
    known = WarmStart(list(range(0, frames, every)), walk.features(range(0, frames, every)))
    views = walk.views()
    begin, begun = time.perf_counter(), time.process_time()
    found = refine(views, walk, walk.scale, RefineOptions(known=known))
    spent, worked = time.perf_counter() - begin, time.process_time() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    moved = np.ones(frames - 1, bool)
    before, after = (pose_errors(T, truth, moved).ate_over_path or 0.0 for T in (walk.guess, found.T_world_camera))
    stages = ", ".join(f"{name} {seconds:.0f}" for name, seconds in found.report.seconds.items() if seconds >= 0.5)
    print(
        f"| refining {frames} frames, {found.report.keyframes} keyframes, {found.report.loops} loops | {spent:.1f} s, "
        f"{1e3 * spent / frames:.1f} ms a frame ({stages}), {worked:.0f} s of processor time, peak {peak:.0f} MiB, "
        f"ATE / path {before:.5f} before, {after:.5f} after |",
        flush=True,
    )


def course(frames: int) -> FloatArray:
    """Poses [N, 4, 4] round a course with bends, looking outward; laps differ a little."""
    s = np.arange(frames) / LAP * 2 * np.pi
    radius = LAP * PACE / (2 * np.pi)
    bend = 1 + 0.15 * np.sin(3 * s)
    lap = 0.1 * np.sin(s / 3.7)
    T = np.tile(np.eye(4), (frames, 1, 1))
    T[:, :3, 3] = np.stack(
        [(radius * bend + lap) * np.sin(s), 0.1 * np.sin(9 * s), (radius * bend + lap) * np.cos(s)], 1
    )
    sway = np.stack([0.05 * np.sin(23 * s), s + 0.1 * np.sin(17 * s), 0.02 * np.sin(31 * s)], axis=1)
    T[:, :3, :3] = so3.exp(sway * (0, 1, 0)) @ so3.exp(sway * (1, 0, 1))
    return T


def drifted(truth: FloatArray) -> FloatArray:
    random = np.random.default_rng(1)
    steps = invert_pose(truth[:-1]) @ truth[1:]
    steps[:, :3, :3] = steps[:, :3, :3] @ so3.exp(np.radians(TURN_DEG) * random.normal(size=(len(steps), 3)))
    steps[:, :3, 3] *= 1 + STRETCH * random.normal(size=(len(steps), 1))
    poses = [truth[0]]
    for step in steps:
        poses.append(poses[-1] @ step)
    return np.array(poses)


class Walk:
    """The frames, as `refine.Images` and as views."""

    most = FEATURES
    """Features of a keyframe."""
    lap = LAP
    """Frames after which the walk comes by the same points again."""

    def __init__(self, truth: FloatArray, guess: FloatArray) -> None:
        self.truth, self.guess = truth, guess
        self.scale = Scale.from_source_size(SIZE)
        random = np.random.default_rng(2)
        lap = truth[: self.lap]
        count = int(LANDMARKS * PACE * len(lap))
        stands = lap[random.integers(0, len(lap), count)]
        z = random.uniform(3.0, 6.0, count)
        local = np.stack([random.uniform(-0.8, 0.8, count) * z, random.uniform(-0.6, 0.6, count) * z, z], axis=1)
        self._points = np.einsum("nij,nj->ni", stands[:, :3, :3], local) + stands[:, :3, 3]
        looks = random.normal(size=(count, 128)).astype(np.float32)
        self._looks = looks / np.linalg.norm(looks, axis=1, keepdims=True)
        self._tree = cKDTree(self._points)
        width, height = SIZE
        self._transform = ImageTransform(SIZE, (0.0, 0.0, width, height), (224, 168))
        self._depth = np.full((168, 224), 4.4, np.float32)

    def features(self, positions: Sequence[int]) -> list[Features]:
        return [self.seen(k) for k in positions]

    def views(self) -> list[FrameData]:
        grid = DepthReader(self._depth, np.ones((168, 224), np.uint8), self._transform, self.scale).grid()
        random = np.random.default_rng(3)
        scales = np.exp(0.05 * random.normal(size=len(self.guess)))
        return [
            FrameData(k, T, 1.05 * FOCAL, DepthGrid(grid.u, grid.v, grid.z * np.float32(scale)), 100.0)
            for k, (T, scale) in enumerate(zip(self.guess, scales, strict=True))
        ]

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8], DepthOf]]:
        grey = np.full(SIZE[::-1], 128, np.uint8)
        usable = np.ones(self._depth.shape, np.uint8)
        for k in positions:
            yield k, grey, partial(DepthReader, self._depth, usable, self._transform, self.scale)

    def seen(self, k: int, draw: int = 0) -> Features:
        """Features of a frame, with another noise for each ``draw``."""
        random = np.random.default_rng([k, draw] if draw else k)
        T, (width, height) = self.truth[k], SIZE
        near = np.array(self._tree.query_ball_point(T[:3, 3], 8.0), np.intp)
        local = (self._points[near] - T[:3, 3]) @ T[:3, :3]
        near, local = near[local[:, 2] > 1], local[local[:, 2] > 1]
        uv = FOCAL * local[:, :2] / local[:, 2:] + (width / 2, height / 2)
        inside = np.flatnonzero(((uv > 0) & (uv < SIZE)).all(axis=1) & (random.random(len(uv)) < 0.8))[: self.most]
        looks = self._looks[near[inside]] + 0.04 * random.normal(size=(len(inside), 128)).astype(np.float32)
        looks /= np.linalg.norm(looks, axis=1, keepdims=True)
        z = local[inside, 2] * np.exp(0.05 * random.normal() + 0.03 * random.normal(size=len(inside)))
        uv = uv[inside] + 0.5 * random.normal(size=(len(inside), 2))
        return Features(uv.astype(np.float32), looks.astype(np.float32), z.astype(np.float32))


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, help="default: 1,000 to 10,000 in four steps")


def run(options: Namespace) -> None:
    bench_refine((options.frames,) if options.frames else SIZES)
