"""A live source that has come to its end is refined, by the real command, from what its result holds."""

import http.server
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import pytest

from stream_recon.app.result.folder import read_result
from tests.app.media import SAMPLE_CAMERA, quick_preset

SAMPLE = Path(__file__).parents[2] / "app" / "sample" / "walkthrough.mp4"


def pictures() -> Iterator[bytes]:
    """JPEGs of every tenth frame of the sample."""
    capture = cv2.VideoCapture(str(SAMPLE))
    while capture.grab():
        yield cv2.imencode(".jpg", capture.retrieve()[1])[1].tobytes()
        for _ in range(9):
            capture.grab()


class Camera(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=next")
        self.end_headers()
        try:
            there = list(pictures())
            for picture in itertools.cycle([*there, *there[-2:0:-1]]):
                head = f"--next\r\nContent-Type: image/jpeg\r\nContent-Length: {len(picture)}\r\n\r\n"
                self.wfile.write(head.encode() + picture + b"\r\n")
                time.sleep(0.2)
        except OSError:
            pass  # whoever looked has gone

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Camera) as server:
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/camera.mjpg"
        server.shutdown()


@pytest.mark.slow
def test_a_stream_is_refined_when_it_has_ended(tmp_path: Path, address: str) -> None:
    out = tmp_path / "out"
    quick = ["--preset", quick_preset(tmp_path), "--device", "cpu", "--dense", "off"]
    choice = [*quick, "--max-frames", "10", "--no-viewer", "--no-mesh", "--intrinsics", SAMPLE_CAMERA]
    command = [sys.executable, "-m", "stream_recon", address, "-o", str(out), *choice]
    program = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert program.returncode == 0, program.stderr
    assert "refined with the result's small images" in program.stderr and "refined: " in program.stdout
    run = json.loads((out / "run.json").read_bytes())
    assert run["refinement"]["keyframes"] > 2 and len(set(run["revisions"].values())) == 1
    assert len(list(read_result(out))) == 10
