"""Odometry's Triton kernels, under Triton's interpreter, against torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_COMPARE = Path(__file__).with_name("compare_kernels.py")


@pytest.mark.slow
def test_a_batched_step_by_kernels_says_what_torch_says() -> None:
    pytest.importorskip("triton")
    # The interpreter must be chosen before Triton is imported, hence a process of its own.
    done = subprocess.run(
        [sys.executable, str(_COMPARE)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
