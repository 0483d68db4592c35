"""A small result, checks of it, links that wait at its names; and faults of the program that can be put back."""

import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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


def write_small_result(folder: Path, count: int = 4, *, interrupted: bool = False) -> None:
    writer = ResultWriter(folder, run_info())
    for frame in frames(count):
        writer.add(fake_result(prepared(frame)))
    writer.finish(RunSummary(interrupted=interrupted))


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
    out, mine = folder / "out", folder / "mine"
    write_small_result(out)
    mine.mkdir()
    names = ["run.json", "cameras.json", "trajectory.txt", "points.ply", "depth/000000.npz"]
    kept = {}
    for name in draw.sample(names, 3):
        (mine / Path(name).name).write_bytes((out / name).read_bytes())
        (out / name).unlink()
        (out / name).symlink_to(mine / Path(name).name)
        kept[mine / Path(name).name] = (out / name).read_bytes()
    try:
        scale_result(out, 2.0)
    finally:
        assert all(path.read_bytes() == content for path, content in kept.items()), "a link was followed"


FAULTS: dict[str, Callable[[Path, Path, random.Random], None]] = {"links": links}


PUT_BACK: dict[str, tuple[str, str, Any]] = {
    "markup": ("app.viewer.document", "html.escape", lambda text, quote=True: text),
    "rows": ("app.web.jobs", "JobStore._is_readable", lambda *_: True),
    "counter": ("app.web.jobs", "LARGEST_ID", 2**63),
    "size": ("app.web.uploads", "LARGEST_SIZE", 10**1000),
    "number": ("app.web.routes", "Routes._job", lambda own, asked: own.store.get(int(asked.path_params["id"]))),
    "nan": ("app.web.library", "math", SimpleNamespace(isfinite=lambda _: True)),
    "absent": ("app.sources.camera_files", "absent_notes", lambda _: ()),
    "boxes": ("app.sources.containers", "_odd_boxes", lambda *_, **__: ()),
    "elements": ("app.sources.containers", "matroska_tracks", lambda *_: []),
    "tags": ("app.sources.exif", "_Tags.odd", lambda *_: None),
    "unit": ("app.datasets.trajectories", "LENGTHS", dict.fromkeys(("m", "cm", "mm"), 1.0)),
    "rows_of_image": ("app.sources.rosbag", "unsupported", lambda _: None),
    "names": ("app.sources.image_files", "in_order", sorted),
    "times": ("app.sources.images", "checked_time", lambda time, _: float(time or 0)),
    "again": ("app.web.sessions", "StreamSession.rewind", lambda _: None),
}
"""Mended faults: the module, what the mend is in it, and what does without."""


def put_back(fault: str) -> None:
    """Undo a mend in this process and its forks."""
    module, name, other = PUT_BACK[fault]
    *owners, last = name.split(".")
    setattr(reduce(getattr, owners, import_module(f"stream_recon.{module}")), last, other)
