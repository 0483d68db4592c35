"""A small result, checks of it, and links that wait at its names."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.metric_scale.apply import apply_metric_scale
from stream_recon.app.result import files
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.metric_scale import MetricScale
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from tests.app.fake_engine import fake_result, frames, prepared, run_info

FORK_SECONDS = 20


def write_small_result(folder: Path, count: int = 4) -> None:
    writer = ResultWriter(folder, run_info())
    for frame in frames(count):
        writer.add(fake_result(prepared(frame)))
    writer.finish(RunSummary(interrupted=False))


def scale_result(folder: Path, factor: float) -> None:
    apply_metric_scale(read_result(folder), MetricScale(Similarity.of_scale(factor), None, "height:1", "a test"))


def check_whole(folder: Path, factors: Sequence[float]) -> None:
    """Old or new as a whole: run.json, cameras, trajectory and cloud have one unit, 1 or one of ``factors``."""
    with FolderLock(folder):
        pass
    result = read_result(folder)
    unit = 1.0 if result.metric_scale is None else result.metric_scale.T_metric_own.scale
    assert any(abs(unit - known) < 1e-9 * known for known in (1.0, *factors))
    assert all(abs(camera.depth_scale / unit - 1) < 1e-6 for camera in result.cameras), "two units in one folder"
    last = (folder / "trajectory.txt").read_text().splitlines()[-1].split()
    assert np.allclose([float(w) for w in last[1:4]], result.cameras[-1].T_world_camera[:3, 3], rtol=1e-5, atol=1e-8)
    points = files.stored_points(folder / "points.ply")
    assert len(points) > 0 and 1 < float(np.median(points["z"])) / unit < 4, "the cloud has another unit"
    assert not list(folder.rglob("*.part")), "temporary files are left"


def end_or_kill(process: int) -> None:
    """Wait for a fork, and kill it where it takes long: a fork of a process with threads may wait for a lock that none
    of its own threads holds, and a kill at any moment is what is tried."""
    end = time.monotonic() + FORK_SECONDS
    while os.waitpid(process, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return
        time.sleep(0.002)


def links(folder: Path, source: Path, draw: random.Random) -> None:
    """A link in a result folder never leads a write to a file of the user."""
    out, mine = folder / "out", folder / "mine.txt"
    write_small_result(out)
    mine.write_text("keep")
    names = ["run.json", "cameras.json", "trajectory.txt", "points.ply", "tracks.npz", "depth/000000.npz", "mesh.glb"]
    for name in draw.sample(names, 3):
        (out / f"{name}.part").symlink_to(mine)
    if draw.random() < 0.5:
        scale_result(out, 2.0)
    else:
        writer = ResultWriter(out, run_info(), overwrite=True)
        for frame in frames(3):
            writer.add(fake_result(prepared(frame)))
        writer.finish(RunSummary(interrupted=False))
    assert mine.read_text() == "keep", "a link was followed"


FAULTS: dict[str, Callable[[Path, Path, random.Random], None]] = {"links": links}
