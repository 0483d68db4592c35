"""Share of the cores of a process."""

import subprocess
import sys

import cv2

from stream_recon.app.core.cores import serial_opencv, usable_cores


def test_limited_process_uses_its_share_also_in_opencv() -> None:
    code = (
        "from stream_recon.app.core.cores import limit_cores, usable_cores; import cv2; limit_cores(1);"
        "print(usable_cores(), cv2.getNumThreads()); limit_cores(10_000); print(usable_cores())"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert found == ["1", "1", str(usable_cores())]


def test_serial_opencv_ends_with_its_block() -> None:
    before = cv2.getNumThreads()
    with serial_opencv():
        assert cv2.getNumThreads() == 1
    assert cv2.getNumThreads() == before
