"""Scripts that compare Triton kernels with torch, run under Triton's interpreter."""

import os
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_TRITON_WHEEL = (sys.platform, platform.machine()) == ("linux", "x86_64")
"""Where the extra `dev` installs Triton."""


def check_interpreted(script: Path) -> None:
    """Run a script that ends with an error where its kernels and torch differ."""
    if not HAS_TRITON_WHEEL:
        pytest.skip("Triton is not offered for this platform")
    if find_spec("triton") is None and "CI" not in os.environ:
        pytest.skip("Triton is not installed")
    # The interpreter must be chosen before Triton is imported, hence a process of its own.
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
