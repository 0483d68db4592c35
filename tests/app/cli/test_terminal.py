"""What commands print: lines of this program alone, none of a library that it uses."""

import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.app.media import quick_preset


def printed(folder: Path, *words: str) -> tuple[str, str]:
    """Both streams of a command that ends without error; bars of progress are left out."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OPENCV", "PYTHONWARNINGS"))}
    command = [sys.executable, "-W", "default", "-m", "stream_recon", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, "".join(line for line in done.stderr.splitlines(True) if "━" not in line)


@pytest.mark.slow
def test_commands_print_warnings_of_this_program_alone(tmp_path: Path) -> None:
    """A folder of images of which one is damaged, and what follows its run."""
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for number in range(10):
        image = cv2.resize(rng.integers(0, 255, (24, 32, 3), np.uint8), (320, 240))
        cv2.imwrite(str(tmp_path / "images" / f"{number:02}.jpg"), image)
    whole = (tmp_path / "images" / "04.jpg").read_bytes()
    (tmp_path / "images" / "04.jpg").write_bytes(whole[: len(whole) // 2])
    quick = ("--preset", quick_preset(tmp_path))
    output, errors = printed(tmp_path, "images", *quick, "-o", "out", "--no-viewer", "--no-mesh", "--mapping", "off")
    assert all(word not in output for word in ("Warning", "WARN", "ERROR", "[ "))
    errors += printed(tmp_path, "export", "out", "--format", "colmap")[1]
    assert all(line.startswith("warning: ") for line in errors.splitlines())
