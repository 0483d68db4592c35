"""The web application in the test process, with a stand-in for the command line program."""

import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

from stream_recon.app.web.access import AccessPolicy
from stream_recon.app.web.app import make_app
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.limits import DEFAULT_LIMITS, WebLimits

HEADER = {"X-Stream-Recon": "1"}
STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path

def stop(*_):
    Path(folder, "stopped").touch()
    sys.exit(130)

command, source, words = sys.argv[1], sys.argv[2], sys.argv[3:]
folder = Path(words[words.index("-o") + 1]) if "-o" in words else Path(source)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
progress = Path(os.environ["STREAM_RECON_PROGRESS"])
if command == "export":
    if folder.suffix:
        folder.write_bytes(b"exported")
    else:
        folder.mkdir()
        (folder / "README.txt").write_text("exported")
    sys.exit(0)
folder.mkdir(exist_ok=True)
with (folder / "starts.txt").open("a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
if Path(source).is_dir():  # a scan
    frames, said, feedback = Path(source, "frames.jsonl"), 0, Path(source, "feedback.jsonl")
    def tell(**message):
        with feedback.open("a") as file:
            file.write(json.dumps(message) + "\\n")
    while True:
        lines = frames.read_text().splitlines()
        for line in lines[said:]:
            entry = json.loads(line)
            if entry.get("end"):
                tell(type="session.done")
                sys.exit(0 if len(lines) > 1 else 2)  # there are no frames
            index = entry["index"]
            tell(type="taken", frame=index)
            camera = dict(fx=1, fy=1, cx=1, cy=1)
            pose = [[1, 0, 0, index], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
            shown = dict(pose=pose, intrinsics=camera, keyframe=True, health=None, state="tracking")
            tell(type="result", frame=index, time=entry["time"], segment=entry["segment"], **shown)
            if index == 2:
                tell(type="guidance", text="Too dark")
        said = len(lines)
        time.sleep(0.01)
content = Path(source).read_bytes() if Path(source).exists() else b""
if b"broken" in content:
    progress.write_text(json.dumps({"error": "it is broken: film again"}))
    sys.exit(2)
if b"ends" in content:
    code = int(content.rpartition(b" ")[2])
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)
for done in range(1, 400 if b"long" in content else 3):
    if b"waits" in content and done > 5:
        time.sleep(60)
    progress.write_text(json.dumps({"step": "frames", "done": done, "total": 400, "left": 3.0, "fps": 9.5, "text": ""}))
    time.sleep(0.02)
"""
"""A program that runs, fails or waits as its source says, and answers signals as the real one does."""


ENGINE = (sys.executable, str(Path(__file__).with_name("fake_session_engine.py")))
"""The command of an engine of sessions without a network."""


def program(folder: Path) -> tuple[str, ...]:
    """The stand-in's command."""
    path = folder / "program.py"
    path.write_text(STAND_IN)
    return sys.executable, str(path)


@contextmanager
def served(
    folder: Path,
    *,
    jobs: int = 1,
    reach: AccessPolicy | None = None,
    limits: WebLimits = DEFAULT_LIMITS,
    engine: Sequence[str] = ENGINE,
    quota: int | None = None,
    **client: Any,
) -> Iterator[TestClient]:
    """A client of the application of ``folder``, which sends the header of the own page."""
    app = _app(folder, jobs, reach, limits, engine, quota)
    options = {"base_url": "http://127.0.0.1:8080", "headers": HEADER, **client}
    with TestClient(app, **options) as found:  # type: ignore[arg-type]
        yield found


@contextmanager
def listening(folder: Path, limits: WebLimits = DEFAULT_LIMITS, engine: Sequence[str] = ENGINE) -> Iterator[int]:
    """The port at which a thread serves the application of ``folder``."""
    config = uvicorn.Config(_app(folder, 1, None, limits, engine), log_config=None, timeout_graceful_shutdown=1)  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        try:
            yield int(bound.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def _app(
    folder: Path,
    jobs: int,
    reach: AccessPolicy | None,
    limits: WebLimits,
    engine: Sequence[str],
    quota: int | None = None,
) -> Starlette:
    places = DataFolder(folder, quota)
    places.make()
    places.measure()
    return make_app(places, reach or AccessPolicy(), jobs, program(folder.parent), limits, engine)


def upload(client: TestClient, data: bytes, name: str = "walk.mp4", piece: int = 50, **more: Any) -> dict[str, Any]:
    """Upload in pieces; gives the last answer."""
    made = client.post("/api/uploads", json={"name": name, "size": len(data), **more})
    assert made.status_code == 201, made.text
    offset, answer = 0, None
    while offset < len(data):
        path = f"/api/uploads/{made.json()['id']}?offset={offset}"
        answer = client.patch(path, content=data[offset : offset + piece])
        if answer.status_code != 200 or "name" in answer.json():
            break
        offset = answer.json()["offset"]
    assert answer is not None
    return {"status": answer.status_code, **answer.json()}


VIDEO = b"\x00\x00\x00\x18ftypisom" + bytes(range(200))
"""What begins as a video does."""
