"""The measurement of the program around a step that sleeps, on a small video."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.app.media import write_video

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_frame_is_counted(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.mp4", 12)
    # Nothing of it may need the viewer's packages.
    (tmp_path / "viser.py").write_text("raise ImportError")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(ROOT / "scripts" / "bench"), "pipeline", str(video), "--step-ms", "5"]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}
    )
    assert run.returncode == 0, run.stderr
    assert "64x48, 12 frames" in run.stdout
    share = re.search(r"a step of 5 ms \| [\d.]+ frames/s, ([\d.]+) %", run.stdout)
    assert share is not None and 0 < float(share[1]) <= 100, run.stdout
