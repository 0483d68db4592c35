"""Growth of refinement's time and memory with a video's length, on a synthetic walk with ground truth.

A camera looks sideways and walks round a course repeatedly. Features of known points and drifting network poses with
erroneous depth are generated. Nothing is rendered and no descriptor computed, so that mapping alone is measured.
"""

import multiprocessing
import time
from argparse import ArgumentParser, Namespace

import numpy as np

from bench.generated import Walk, course, drifted
from bench.table import row
from stream_recon.app.core.process import peak_host_memory_mb
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import WarmStart

SIZES = (1000, 2500, 5000, 10000)
EVERY = 4
"""Frames from one keyframe to the next."""
TURN_DEG, STRETCH = 0.17, 0.03
"""The network's errors a frame, which add up: of a turn, and of a step as a share."""


def measure(frames: int) -> None:
    """Refine one walk, and print a line."""
    truth = course(frames)
    walk = Walk(truth, drifted(truth, np.random.default_rng(1), TURN_DEG, STRETCH))
    known = WarmStart(list(range(0, frames, EVERY)), walk.features(range(0, frames, EVERY)))
    views = walk.views()
    begin, begin_cpu = time.perf_counter(), time.process_time()
    refined = refine(views, walk, walk.scale, RefineOptions(known=known))
    wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu
    moved = np.ones(frames - 1, bool)
    before, after = (pose_errors(T, truth, moved).ate_over_path or 0.0 for T in (walk.guess, refined.T_world_camera))
    stages = ", ".join(f"{name} {seconds:.0f}" for name, seconds in refined.report.seconds.items() if seconds >= 0.5)
    row(
        f"refining {frames} frames, {refined.report.keyframes} keyframes, {refined.report.loops} loops",
        f"{wall_s:.1f} s, {1e3 * wall_s / frames:.1f} ms a frame ({stages}), {cpu_s:.0f} s of processor time, "
        f"peak {peak_host_memory_mb():.0f} MiB, ATE / path {before:.5f} before, {after:.5f} after",
    )


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, help="default: 1,000 to 10,000 in four steps")


def run(options: Namespace) -> None:
    """Measure each size in a separate process, for its own peak memory."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        pool.map(measure, (options.frames,) if options.frames else SIZES, chunksize=1)
