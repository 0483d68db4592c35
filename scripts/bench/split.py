"""One video processed uncut by one worker, and in chunks by several workers; on the sample also with its error."""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

from bench import SAMPLE
from bench.batch import add_batch_options, batch_options, run_batch
from stream_recon.app.batch.page import describe_overlap
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.folder import read_result

MODES = ("uncut", "split")


def bench_split(video: Path, workers: int, chunks: int, options: list[str], wanted: list[str]) -> None:
    """Print wall seconds of the command for each mode, its phases, and on the sample the error of the poses."""
    modes = {"uncut": ["--workers", "1"], "split": ["--workers", str(workers), "--split", str(chunks)]}
    seconds, ate = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            begin = time.perf_counter()
            summary = run_batch(video, Path(folder) / name, *options, *modes[name])
            seconds[name] = time.perf_counter() - begin
            (scene,) = summary["scenes"]
            shown = "uncut, 1 worker" if name == "uncut" else f"in {chunks} chunks, {workers} workers"
            print(f"| {video.name} {shown} | {scene['frames']} frames in {seconds[name]:.1f} s |", flush=True)
            print(f"| phases of the command | {shown_phases(summary['totals']['phases'])} |")
            for phases in scene.get("chunk_phases", [scene.get("phases", {})]):
                print(f"| phases of a chunk | {shown_phases(phases)} |")
            if "stitch_phases" in scene:
                print(f"| phases of stitching | {shown_phases(scene['stitch_phases'])} |")
            runs = ", ".join(f"{second:.1f}" for second in scene.get("chunk_seconds", [scene["seconds"]]))
            print(f"| its runs | {runs} s |", flush=True)
            if name == "split":
                after = scene["stitch_seconds_after"]
                print(f"| stitching; of it after the last chunk | {scene['stitch_seconds']:.1f}, {after:.2f} s |")
            for overlap in scene.get("overlaps", []):
                print(f"| {describe_overlap(overlap)} | |")
            if video == SAMPLE:
                ate[name] = sample_ate(Path(folder) / name / scene["name"])
    if len(seconds) < len(modes):
        return
    print(f"| speed-up | {seconds['uncut'] / seconds['split']:.2f} |")
    if ate:
        print(f"| ATE / path uncut, split | {ate['uncut']:.4f}, {ate['split']:.4f} |")
        print(f"| ratio of the ATEs (limit 1.5) | {ate['split'] / ate['uncut']:.2f} |")


def shown_phases(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items()) + " s"


def sample_ate(folder: Path) -> float:
    """ATE over path length of a result of the sample."""
    cameras = read_result(folder).cameras
    with np.load(SAMPLE.with_suffix(".truth.npz")) as truth:
        poses = truth["T_world_camera"][[camera.index for camera in cameras]].astype(np.float64)
    ours = np.stack([camera.T_world_camera for camera in cameras])
    error = pose_errors(ours, poses, np.ones(len(poses) - 1, bool)).ate_over_path
    assert error is not None
    return error


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("video", type=Path, nargs="?", default=SAMPLE, metavar="VIDEO")
    parser.add_argument("--chunks", type=int, default=4, help="chunks of the video")
    parser.add_argument("--mode", choices=MODES, action="append", help="only this one; may be given twice")
    add_batch_options(parser, workers=2)


def run(options: Namespace) -> None:
    wanted = options.mode or [*MODES]
    bench_split(options.video.resolve(), options.workers, options.chunks, batch_options(options), wanted)
