"""Trajectory errors of resumed runs, as multiples of those of the uninterrupted run.

A SEQUENCE has rgb/ and poses.txt. Each is run uninterrupted; its result is cut down to 30, 50 and 70 % of the frames
and resumed. Errors are those of the network's poses, of the online back end's, and of the refined ones.
"""

import json
import shutil
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.result.cameras import write_cameras
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.run_record import RUN_NAME, RunInfo
from stream_recon.app.run.options import RunOptions
from stream_recon.app.run.session import Output, Session
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.evaluate import evaluate_result
from stream_recon.app.stages.stage import StageContext

REFINED = RunOptions(dense_side=None, mesh=False)
"""A run with refinement and nothing else."""
SHARES = (0.3, 0.5, 0.7)


def bench(engine: Engine, scene: Scene, place: Path, stride: int, frames: int | None) -> None:
    """Print a line for each cut."""
    uncut, cut = place / "uncut", place / "cut"
    info = RunInfo.from_engine(engine, scene.name, {})
    engine.reset()
    recording = RecordingEngine(engine)
    options, output = REFINED, Output(uncut, info)
    with scene.open(stride, frames) as source, Session(recording, source, scene.open, options, output) as session:
        session.reconstruct()
    shutil.copytree(uncut, place / "refined")
    best = errors(scene, stride, frames, place / "refined")
    print(f"| {scene.name} | uncut | ATE/path | " + " | ".join(f"{each:.4f}" for each in best) + " |", flush=True)
    for share in SHARES:
        shutil.copytree(uncut, cut)
        count = cut_down(cut, share, recording.reference_frames_after)
        overlap = finish(engine, scene, cut, info, stride, frames)
        found = errors(scene, stride, frames, cut)
        ratios = " | ".join(f"{ours / theirs:.2f}" for ours, theirs in zip(found, best, strict=True))
        print(f"| {scene.name} | {count} frames | {overlap} | {ratios} |", flush=True)
        shutil.rmtree(cut)


class RecordingEngine:
    """An engine that records its reference frames after each frame."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.reference_frames_after: dict[int, tuple[int, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]:
        results = self._engine.push(frame)
        self.reference_frames_after[frame.index] = self._engine.reference_frames
        return results


def cut_down(folder: Path, share: float, reference_frames_after: Mapping[int, tuple[int, ...]]) -> int:
    """Reduce a result to that of a run killed after ``share`` of its frames; returns their number."""
    result = read_result(folder)
    count = round(share * len(result))
    write_cameras(folder, result.cameras[:count], 0)
    for camera in result.cameras[count:]:
        depth_path(folder, camera.index).unlink()
    reference_frames = reference_frames_after[result.cameras[count - 1].index]
    (folder / RUN_NAME).write_text(
        json.dumps({**result.run, "interrupted": True, "reference_frames": reference_frames})
    )
    return count


def finish(engine: Engine, scene: Scene, folder: Path, info: RunInfo, stride: int, frames: int | None) -> str:
    """Resume as ``--resume`` does; returns the overlap errors."""
    unfinished = read_partial_result(folder)
    assert unfinished is not None
    engine.reset()
    open_again, output = partial(scene.open, stride, frames), Output(folder, info, partial=unfinished)
    with open_again() as source, Session(engine, source, open_again, REFINED, output) as session:
        session.reconstruct()
    overlap = session.resumed.resumed[-1]
    return f"{overlap['rotation_deg']:.2f}, {overlap['position']:.3f}, {overlap['depth']:.3f}"


def errors(scene: Scene, stride: int, frames: int | None, folder: Path) -> tuple[float, float, float]:
    """ATE / path of the network's poses, of the result, and of the result after refinement, which runs here."""
    result = read_result(folder)
    last = _error(result, scene)
    result.cameras = [camera.as_network for camera in result.cameras]
    network = _error(result, scene)
    run_stages(RunPlan.of(REFINED), StageContext(folder, partial(scene.open, stride, frames)))
    return network, last, _error(read_result(folder), scene)


def _error(result: ResultFolder, scene: Scene) -> float:
    metrics = evaluate_result(result, scene.truth()).metrics()
    assert metrics.ate_over_path is not None
    return metrics.ate_over_path


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("sequences", nargs="+", type=Path, metavar="SEQUENCE")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--frames", type=int)


def run(options: Namespace) -> None:
    engine = load_engine()
    print("| sequence | cut after | overlap: degrees, position, depth | network | stream | refined |\n|" + "---|" * 6)
    for path in options.sequences:
        scene = Scene(path.resolve().name, "sequence", path, None)
        with tempfile.TemporaryDirectory() as folder:
            bench(engine, scene, Path(folder), options.stride, options.frames)
