#!/usr/bin/env python3
"""What it costs to be cut off: trajectory errors of resumed runs as multiples of the uninterrupted run's.

    scripts/bench_resume.py SEQUENCE... [--stride N] [--frames N]

A SEQUENCE has rgb/ and poses.txt. Each is run whole; then what that left is cut down to 30, 50 and 70 % of its frames,
and gone on with. Both are compared with the truth as the network has them, as the stream's geometry left them, and once
they are refined.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.evaluation.result import gather_result
from stream_recon.app.pipeline.finish import Finisher
from stream_recon.app.pipeline.session import Output, RunOptions, Session
from stream_recon.app.result.cameras import write_cameras
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.resume import read_unfinished
from stream_recon.app.result.run_record import RUN_NAME, RunInfo

SHARES = (0.3, 0.5, 0.7)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sequences", nargs="+", type=Path, metavar="SEQUENCE")
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--frames", type=int)
    arguments = parser.parse_args()
    engine = load_engine()
    print(
        "| sequence | cut after | seam: degrees, position, depth | network | stream | refined |\n|---"
        + "|---" * 5
        + "|"
    )
    for path in arguments.sequences:
        scene = Scene(path.resolve().name, "sequence", path, None)
        with tempfile.TemporaryDirectory() as place:
            bench(engine, scene, Path(place), arguments.stride, arguments.frames)


def bench(engine: Engine, scene: Scene, place: Path, stride: int, frames: int | None) -> None:
    """Print a line for each cut."""
    whole, cut = place / "whole", place / "cut"
    info = RunInfo.of(engine, scene.name, {})
    engine.reset()
    noting = Noting(engine)
    options, output = RunOptions("full"), Output(whole, info)
    with scene.open(stride, frames) as source, Session(noting, source, scene.open, options, output) as session:
        session.reconstruct()
    shutil.copytree(whole, place / "refined")
    best = errors(scene, stride, frames, place / "refined")
    print(f"| {scene.name} | whole | ATE/path | " + " | ".join(f"{each:.4f}" for each in best) + " |", flush=True)
    for share in SHARES:
        shutil.copytree(whole, cut)
        count = cut_down(cut, share, noting.stood_on)
        seam = finish(engine, scene, cut, info, stride, frames)
        found = errors(scene, stride, frames, cut)
        ratios = " | ".join(f"{ours / theirs:.2f}" for ours, theirs in zip(found, best, strict=True))
        print(f"| {scene.name} | {count} frames | {seam} | {ratios} |", flush=True)
        shutil.rmtree(cut)


class Noting:
    """An engine that notes what it stood on after each frame."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.stood_on: dict[int, tuple[int, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]:
        results = self._engine.push(frame)
        self.stood_on[frame.index] = self._engine.reference_frames
        return results


def cut_down(folder: Path, share: float, stood_on: Mapping[int, tuple[int, ...]]) -> int:
    """Leave what a run would have that was killed after that share of its frames; gives their number."""
    result = read_result(folder)
    count = round(share * len(result))
    write_cameras(folder, result.cameras[:count], 0)
    for camera in result.cameras[count:]:
        depth_path(folder, camera.index).unlink()
    reference_frames = stood_on[result.cameras[count - 1].index]
    (folder / RUN_NAME).write_text(
        json.dumps({**result.run, "interrupted": True, "reference_frames": reference_frames})
    )
    return count


def finish(engine: Engine, scene: Scene, folder: Path, info: RunInfo, stride: int, frames: int | None) -> str:
    """As ``--resume`` does; says how well the seam fits."""
    unfinished = read_unfinished(folder)
    assert unfinished is not None
    engine.reset()
    open_again, output = partial(scene.open, stride, frames), Output(folder, info, partial=unfinished)
    with open_again() as source, Session(engine, source, open_again, RunOptions("full"), output) as session:
        session.reconstruct()
    assert session.resumed is not None
    seam = session.resumed.resumed[-1]
    return f"{seam['rotation_deg']:.2f}, {seam['position']:.3f}, {seam['depth']:.3f}"


def errors(scene: Scene, stride: int, frames: int | None, folder: Path) -> tuple[float, float, float]:
    """ATE / path of what the network said, of a result, and once it is refined, which it is here."""
    result = read_result(folder)
    last = _error(result, scene)
    result.cameras = [camera.as_network for camera in result.cameras]
    network = _error(result, scene)
    Finisher(folder, partial(scene.open, stride, frames)).refine()
    return network, last, _error(read_result(folder), scene)


def _error(result: ResultFolder, scene: Scene) -> float:
    figures = gather_result(result, scene.truth()).figures()
    assert figures is not None and figures.ate_over_path is not None
    return figures.ate_over_path


if __name__ == "__main__":
    main()
