"""One video processed uncut by one worker, and in chunks by several workers; on the sample also with its error."""

import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

from bench import SAMPLE
from bench.batch import add_batch_options, batch_options
from bench.colmap import figures
from bench.command import run_program
from bench.table import row
from stream_recon.app.result.folder import read_result


def shown_phases(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items()) + " s"


def sample_ate(folder: Path) -> str:
    """ATE over path length of a result of the sample."""
    truth = dict(enumerate(np.load(SAMPLE.with_suffix(".truth.npz"))["T_world_camera"]))
    return figures({camera.index: camera.T_world_camera for camera in read_result(folder).cameras}, truth)[1]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("video", type=Path, nargs="?", default=SAMPLE, metavar="VIDEO")
    parser.add_argument("--chunks", type=int, default=4, help="chunks of the video")
    add_batch_options(parser)


def run(options: Namespace) -> None:
    """Print wall seconds of the command for each mode, its phases, and on the sample the error of the poses."""
    video, several = options.video.resolve(), ["--workers", options.workers, "--split", options.chunks]
    seconds, ate = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, mode in {"uncut": ["--workers", 1], f"{options.chunks} chunks": several}.items():
            done = run_program("batch", video, *batch_options(options), *mode, out=Path(folder) / name)
            seconds.append(done.seconds)
            (scene,) = done.record["scenes"]
            row(f"{video.name}, {name}", f"{scene['frames']} frames in {done.seconds:.1f} s")
            row("phases of the command", shown_phases(done.record["totals"]["phases"]))
            for phases in scene.get("chunk_phases", [scene.get("phases", {})]):
                row("phases of a chunk", shown_phases(phases))
            if "stitch_phases" in scene:
                row("phases of stitching", shown_phases(scene["stitch_phases"]))
            if video == SAMPLE:
                ate.append(sample_ate(Path(folder) / name / scene["name"]))
    row("speed-up", f"{seconds[0] / seconds[1]:.2f} times as fast")
    if ate:
        row("ATE / path uncut, in chunks", ", ".join(ate))
