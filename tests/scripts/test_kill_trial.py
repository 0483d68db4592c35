"""A quick, seeded part of the kill trial; scripts/reliability/kill_trial.py --kills 50 is the real one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_run_that_is_killed_loses_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/reliability/kill_trial.py", "--kills", "1", "--frames", "8", "--stride", "10",
         "--seed", "3", "--kinds", "run", "--more=--no-mesh"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert re.search(r"a run: .*\b1 kills, \d+ rounds finished; wrong: 0$", done.stdout.strip())
