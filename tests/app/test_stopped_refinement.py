"""Ctrl-C and kill -9 while a result is refined, by the real command: the complete result is there, and it goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plyfile import PlyData

from stream_recon.app.result.folder import read_result
from tests.app.media import SAMPLE_CAMERA, quick_preset

SAMPLE = Path(__file__).parents[2] / "app" / "sample" / "walkthrough.mp4"


def start(folder: Path, *arguments: str) -> Any:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "stream_recon", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def record(folder: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((folder / "run.json").read_bytes())
    except OSError:
        content = {"interrupted": True}
    return content


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
@pytest.mark.slow
def test_what_was_not_refined_is_complete_and_refine_goes_on(tmp_path: Path, number: int, code: int) -> None:
    out = tmp_path / "out"
    quick = ["--preset", quick_preset(tmp_path), "--device", "cpu", "--dense", "off"]
    choice = [*quick, "--max-frames", "9", "--stride", "8", "--no-viewer", "--no-mesh", "--intrinsics", SAMPLE_CAMERA]
    process = start(tmp_path, str(SAMPLE), "-o", str(out), *choice)
    deadline = time.monotonic() + 120
    while record(out)["interrupted"] and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == code, said
    if code == 130:
        assert b"refinement stopped: the result is complete but not refined; 'stream-recon refine' refines it" in said
    run, frames = record(out), list(read_result(out))
    assert not run["interrupted"] and "refinement" not in run and len(frames) == 9
    assert len(set(run["revisions"].values())) == 1, "cameras, trajectory and cloud tell one story"
    assert len(PlyData.read(str(out / "points.ply"))["vertex"]) > 1000
    assert len(np.loadtxt(out / "trajectory.txt")) == 9
    if code == 130:
        assert not list(out.rglob("*.part"))
    again = (
        ["refine", str(out), "--no-mesh", "--dense", "off"]
        if code == 130
        else [str(SAMPLE), "-o", str(out), *choice, "--resume"]
    )
    process = start(tmp_path, *again)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and b"refined: " in said
    assert record(out)["refinement"]["keyframes"] > 2 and not list(out.rglob("*.part"))
