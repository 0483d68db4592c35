"""Cost of revising a long run for the viewer's thread, and number of points sent again. No browser is connected.

Depth and poses are the sample's ground truth, repeated, with an offset for each repetition.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

import cv2
import numpy as np
from numpy.typing import NDArray

from bench import SAMPLE
from bench.table import row
from stream_recon.app.core.transforms import Similarity, invert_pose, rotation_matrix
from stream_recon.app.core.types import FrameResult, FrameRevision, ImageTransform, Intrinsics, Revision
from stream_recon.app.viewer.panel import PanelEvents
from stream_recon.app.viewer.server import start_server, stop_server
from stream_recon.app.viewer.state import ViewerState
from stream_recon.configs.schema import PointsConfig

SIZE = (112, 84)
LAP_M = 3.0
"""Offset between two repetitions of the sample: new voxels for most points."""
ROUNDS = 10
TURN_DEG, GROWTH = 10.0, 0.1
"""Of the drift that the loop takes back, at the last frame."""
ROUGH_VOXELS = 3.0


def bench_page(frames: int) -> None:
    server = start_server("127.0.0.1", 0)
    events = PanelEvents(lambda: None, lambda kind, client: None, lambda client: None, lambda _: None, {})
    page = ViewerState(server, PointsConfig(), 1_000_000, events)
    poses = []
    for result in walked_sample(frames):
        page.add_frame_result(result.index, result.T_world_camera, result.intrinsics, result)
        poses.append(result.T_world_camera)
        if result.index % 100 == 0:
            page.update("", 0)
    page.update("", 0)
    store = page.store
    row(f"{frames} frames on the page", f"{store.total:,} points in {len(store.chunks)} chunks")

    everywhere = Similarity.of_quaternion(np.array([0.0, 0.3, 0.0, 1.0]), np.array([4.0, 0, 0]), 2.5)
    changes = [everywhere, Similarity.identity()] * (ROUNDS // 2)
    report("another coordinate frame and scale for all", page, [moved(poses, [change] * frames) for change in changes])
    loops = [loop(poses, (step + 1) / ROUNDS) for step in range(ROUNDS)]
    end = loops[-1].frames[-1].T_world_camera
    row("the loop moves its end", f"by {np.linalg.norm(end[:3, 3] - poses[-1][:3, 3]):.1f} units")
    report("a growing loop correction", page, loops)
    bent = loops[-1].frames
    report("one frame alone", page, [Revision((replace(bent[frames // 2], T_world_camera=poses[frames // 4]),))])
    random = np.random.default_rng(1)
    shifts = ROUGH_VOXELS * PointsConfig().voxel * random.standard_normal((frames, 3))
    rough = [Similarity(1.0, np.eye(3), shift) for shift in shifts]
    report(f"independent motion of each frame, by {ROUGH_VOXELS:g} voxels", page, [moved(poses, rough)])
    stop_server(server)


def report(name: str, page: ViewerState, revisions: list[Revision]) -> None:
    taking, first, later, points, updates = [], [], [], 0, 0
    for revision in revisions:
        before = {id(node): node.sent for node in page.scene.nodes.values()}
        begin = time.perf_counter()
        page.revise([revision])
        taken = time.perf_counter()
        unfinished = page.update("", 0)
        taking.append(taken - begin)
        first.append(time.perf_counter() - taken)
        while unfinished:
            begin = time.perf_counter()
            unfinished = page.update("", 0)
            later.append(time.perf_counter() - begin)
            updates += 1
        points += sum(node.shown for node in page.scene.nodes.values() if node.sent > before[id(node)])
    shown = f"{1e3 * median(taking):.1f} ms + {1e3 * median(first):.1f} ms for the first update"
    if later:
        shown += f", {updates} more of {1e3 * median(later):.1f} ms"
    row(f"{name} (median of {len(revisions)})", f"{shown}; {points // len(revisions):,} points sent again")


def loop(poses: list[NDArray[np.float64]], part: float) -> Revision:
    """Revision that removes the fraction ``part`` of a drift in heading and scale, which grew evenly along the path."""
    half = part * np.radians(TURN_DEG) / len(poses) / 2
    turned = rotation_matrix(np.array([0.0, np.sin(half), 0.0, np.cos(half)]))
    pose, frames = poses[0], []
    for number, (before, after) in enumerate(zip([poses[0], *poses], poses, strict=False)):
        scale = 1 + part * GROWTH * number / len(poses)
        step = invert_pose(before) @ after
        step[:3, :3] = step[:3, :3] @ turned
        step[:3, 3] *= scale
        pose = pose @ step
        frames.append(FrameRevision(number, pose, scale))
    return Revision(tuple(frames))


def moved(poses: list[NDArray[np.float64]], changes: list[Similarity]) -> Revision:
    return Revision(
        tuple(
            FrameRevision(index, change.move_pose(pose), change.scale)
            for index, (pose, change) in enumerate(zip(poses, changes, strict=True))
        )
    )


def walked_sample(frames: int) -> Iterator[FrameResult]:
    with np.load(SAMPLE.with_suffix(".truth.npz")) as truth:
        poses, every = truth["T_world_camera"].astype(np.float64), int(truth["depth_frames"][1])
        focal = float(truth["intrinsics"][0] / (2 * truth["intrinsics"][2])) * SIZE[0]
        depths = [cv2.resize(depth.astype(np.float32), SIZE) for depth in truth["depth"]]
    unit = float(np.mean(depths[0]))  # scale frames lie at distance 1, as a network's do
    width, height = SIZE
    result = FrameResult(
        index=0,
        timestamp=0.0,
        T_world_camera=np.eye(4),
        intrinsics=Intrinsics(focal, focal, width / 2, height / 2),
        depth=depths[0],
        confidence=depths[0],
        rgb=np.full((height, width, 3), 128, np.uint8),
        transform=ImageTransform(SIZE, (0.0, 0.0, float(width), float(height)), SIZE),
        is_keyframe=True,
    )
    for index in range(frames):
        lap, position = divmod(index, len(poses))
        pose = poses[position].copy()
        pose[:3, 3] = (pose[:3, 3] + [0, 0, LAP_M * lap]) / unit
        depth = depths[position // every] / unit
        yield replace(result, index=index, T_world_camera=pose, depth=depth, confidence=1 + 4 / (1 + depth))


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=5000)


def run(options: Namespace) -> None:
    bench_page(options.frames)
