"""Growth of time and memory of a merge with the number of videos of one town, features given.

Videos of 100 frames walk along a street that comes back to its start; each shares half of its way with the one before
and the one after. Each has a world of its own. Nothing is rendered and no descriptor computed, so that placing and
joint refinement alone are measured.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import astuple
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench.refine import measure_apart, peak_mib
from bench.scenarios.features import PACE, SIZE, FloatArray, Walk
from bench.scenarios.features import WALK_LENS as LENS
from bench.table import header, row
from stream_recon.app.core import so3
from stream_recon.app.core.transforms import Similarity, align
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.localization.build import TrackedDepth
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.localization.placing import PlacedResult, place_results
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.feature_map import UV_STEPS, VECTOR_STEPS, FeatureMap, packed_descriptors
from stream_recon.app.slam.frame_data import DepthGrid, FrameData
from stream_recon.app.slam.matching.features import Features, learn_vocabulary, vlad
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import WarmStart

SIZES = (25, 50, 100, 200)
FRAMES, SHARED = 100, 50
"""Frames of a video, and of those that it shares with the next one."""
EVERY, FEATURES = 10, 100
"""Frames from one keyframe to the next; features of a keyframe."""
DRIFT = 0.002
"""Error of a refined video's step, as a share."""


def measure(videos: int) -> None:
    """Merge a town's videos, and print a line."""
    town = Town(videos)
    begun = time.process_time()
    placed = place_results([partial(town.map, k) for k in range(videos)], lambda number, found: None)
    placing = time.process_time() - begun
    numbers = sorted(placed)
    views, known = town.joined(numbers, placed)
    truth = np.concatenate([town.truth[town.frames(k)] for k in numbers])
    begun = time.process_time()
    found = refine(views, town, town.scale, RefineOptions(workers=1, known=known, refined_before=True))
    refining = time.process_time() - begun
    before, after = (_error(T, truth) for T in (np.array([v.T_world_camera for v in views]), found.T_world_camera))
    fallback = "" if found.fit is not None else " (not refined)"
    errors = f"{before:.5f}, {after:.5f}{fallback}"
    row(videos, len(placed), f"{placing:.0f} s, {refining:.0f} s", f"{peak_mib():,.0f} MiB", errors)


def _error(T: FloatArray, truth: FloatArray) -> float:
    S = align(T[:, :3, 3], truth[:, :3, 3])
    error = np.linalg.norm(S.apply(T[:, :3, 3]) - truth[:, :3, 3], axis=1)
    path = len(np.unique(truth[:, :3, 3].round(9), axis=0)) * PACE
    return float(np.sqrt((error**2).mean())) / path


class Town(Walk):
    """Videos along a round street."""

    def __init__(self, videos: int) -> None:
        self.length = videos * (FRAMES - SHARED)
        s = np.arange(self.length) / self.length * 2 * np.pi
        radius = self.length * PACE / (2 * np.pi)
        T = np.tile(np.eye(4), (self.length, 1, 1))
        T[:, :3, 3] = np.stack([radius * np.sin(s), 0.1 * np.sin(40 * s), radius * np.cos(s)], axis=1)
        T[:, :3, :3] = so3.exp(np.stack([0 * s, s, 0 * s], axis=1))
        super().__init__(T, T, self.length, FEATURES)
        self._random = np.random.default_rng(7)
        self._own = [self._world(k) for k in range(videos)]

    def frames(self, video: int) -> NDArray[np.intp]:
        """Frames of the street that a video shows."""
        first = video * (FRAMES - SHARED)
        return np.arange(first, first + FRAMES) % self.length

    def _world(self, video: int) -> tuple[FloatArray, float]:
        """Poses of a video in a world of its own, with small errors of refinement, and that world's scale."""
        truth, random = self.truth[self.frames(video)], self._random
        scale = float(np.exp(random.uniform(-0.5, 0.5)))
        S = Similarity(scale, so3.exp(random.normal(size=(1, 3)))[0], random.normal(size=3))
        if not video:
            S, scale = Similarity.identity(), 1.0
        T = S.move_pose(truth)
        steps = np.diff(T[:, :3, 3], axis=0) * (1 + DRIFT * random.normal(size=(FRAMES - 1, 1)))
        T[1:, :3, 3] = T[0, :3, 3] + np.cumsum(steps, axis=0)
        return T, scale

    def _keyframes(self, video: int) -> list[Features]:
        """Features of a video's keyframes, each with another noise, and depth in the video's unit."""
        frames = self.frames(video)[::EVERY]
        return [self.seen(int(k), video).scaled(self._own[video][1]) for k in frames]

    def map(self, video: int) -> LocalizationMap:
        """The map of a video."""
        features, (T, _) = self._keyframes(video), self._own[video]
        words = learn_vocabulary(features)
        assert words is not None
        uv = np.concatenate([f.uv for f in features])
        content = FeatureMap(
            refinement=np.zeros(16, np.uint8),
            frame=np.arange(0, FRAMES, EVERY, dtype=np.int32),
            start=np.cumsum([0, *(len(f) for f in features)]).astype(np.int64),
            uv=np.rint(uv * UV_STEPS).clip(0).astype(np.uint16),
            z=np.concatenate([f.z for f in features]),
            descriptors=packed_descriptors(np.abs(np.concatenate([f.descriptors for f in features]))),
            words=words.astype(np.float16),
            vectors=np.rint(np.stack([vlad(f, words) for f in features]) * VECTOR_STEPS).astype(np.int8),
            lens=np.array(astuple(LENS), np.float64),
            size=np.array(SIZE, np.int32),
        )
        k = Intrinsics(LENS.focal, LENS.focal, SIZE[0] / 2, SIZE[1] / 2)
        cameras = [Camera(n, n / 10, pose, pose, k, k, True, None, SIZE) for n, pose in enumerate(T)]
        return LocalizationMap(content, cameras, TrackedDepth(None, self.scale))

    def joined(self, numbers: Sequence[int], placed: dict[int, PlacedResult]) -> tuple[list[FrameData], WarmStart]:
        """Frames of all placed videos in one world, and features of their keyframes."""
        views: list[FrameData] = []
        features: list[Features] = []
        grid = self.views()[0].grid
        for segment, video in enumerate(numbers):
            S, (T, scale) = placed[video].S_first_own, self._own[video]
            z = grid.z * np.float32(scale * S.scale)
            for pose in S.move_pose(T):
                depth = DepthGrid(grid.u, grid.v, z * np.float32(np.exp(0.05 * self._random.normal())))
                views.append(FrameData(len(views), pose, LENS.focal, depth, 100.0, segment=segment))
            features += [f.scaled(S.scale) for f in self._keyframes(video)]
        return views, WarmStart([k for k in range(len(views)) if k % FRAMES % EVERY == 0], features)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--videos", type=int, help="default: 25 to 200 in four steps")


def run(options: Namespace) -> None:
    header("videos", "placed", "CPU time: placing, refinement", "peak memory", "ATE / path: placed, refined")
    measure_apart(measure, (options.videos,) if options.videos else SIZES)
