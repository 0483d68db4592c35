"""Errors of merges of rendered videos: rooms walked twice with other light and lens, and the rooms of a house.

Each video is reconstructed and refined for itself, then they are merged. The error of the merge is compared with those
of its parts; the seam is how far frames of two videos lie from where the truth has them relative to each other.
"""

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bench.scenarios.images import ROOMS, Clip, FloatArray, house_video, walked_twice
from bench.table import header, row
from stream_recon.app.core.transforms import align
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.result.folder import read_result
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.merge import merge_results
from stream_recon.app.stages.refine import RefineStage
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import InputError

SEEDS = (1, 2, 4, 5)
"""Of rooms with texture; 3 and 11 have nearly none."""


def reconstructed(engine: Engine, clip: Clip, folder: Path) -> Path:
    """The refined result of a clip."""
    clip.reconstruct(engine, folder)
    images = str(folder.with_name(folder.name + "-images") / "rgb")
    run_stages(RunPlan((RefineStage(),)), StageContext(folder, partial(open_source, images)))
    return folder


def _figures(folders: Sequence[Path], target: Path, clips: Sequence[Clip]) -> list[str]:
    truth = [clip.T_world_camera[:, :3, 3] for clip in clips]
    lengths = [float(np.linalg.norm(np.diff(each, axis=0), axis=1).sum()) for each in truth]
    cameras = read_result(target).cameras
    parts = [np.array([c.T_world_camera[:3, 3] for c in cameras if c.segment == k]) for k in range(len(clips))]
    alone = [np.array([c.T_world_camera[:3, 3] for c in read_result(folder).cameras]) for folder in folders]
    S = align(parts[0], truth[0])
    # By the first video's alignment, the others lie off by the seam's error.
    seams = [np.linalg.norm((S.apply(b) - t).mean(axis=0)) for b, t in zip(parts[1:], truth[1:], strict=True)]
    columns = (
        [_rmse(*each) / length for *each, length in zip(alone, truth, lengths, strict=True)],
        [_rmse(*each) / length for *each, length in zip(parts, truth, lengths, strict=True)],
        [_rmse(np.concatenate(parts), np.concatenate(truth)) / sum(lengths)],
        [float(seam) / sum(lengths) for seam in seams],
    )
    return [", ".join(f"{value:.4f}" for value in values) for values in columns]


def _rmse(found: FloatArray, truth: FloatArray) -> float:
    return float(np.sqrt((np.linalg.norm(align(found, truth).apply(found) - truth, axis=1) ** 2).mean()))


def bench_places(frames: int, seeds: Sequence[int], work: Path) -> None:
    """Print a line for each place."""
    engine = load_engine()
    header("videos", "ATE / path alone", "in the merge", "all together", "seam / path")
    cases = [(f"room {seed}, other light and lens", walked_twice(frames, seed)) for seed in seeds]
    cases.append(("house, three rooms through doors", [house_video(number, frames) for number in range(ROOMS)]))
    every: list[list[Path]] = []
    for number, (name, clips) in enumerate(cases):
        every.append([reconstructed(engine, clip, work / f"{number}-{k}") for k, clip in enumerate(clips)])
        target = work / f"{number}-all"
        try:
            merged = merge_results(every[-1], target, RunOptions(dense_side=None, mesh=False))
        except InputError as error:
            row(name, error, "", "", "")
            continue
        left = f" ({', '.join(merged.left_out)} left out)" if merged.left_out else ""
        row(name + left, *_figures(every[-1], target, clips))
    try:
        merge_results([every[0][0], every[-1][0]], work / "none", RunOptions(dense_side=None, mesh=False))
        row("room and house", "merged, though they share nothing", "", "", "")
    except InputError:
        row("room and house, which share nothing", "stay two", "", "", "")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=48, help="of each video")
    parser.add_argument("--rooms", type=int, nargs="+", default=SEEDS, help="seeds of the rendered rooms")


def run(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as work:
        bench_places(options.frames, options.rooms, Path(work))
