"""The Triton kernels, under Triton's interpreter, against their torch twin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_COMPARE = Path(__file__).with_name("compare_kernels.py")


def test_kernels_agree_with_the_twin() -> None:
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
