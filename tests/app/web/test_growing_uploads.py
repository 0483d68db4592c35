"""Videos that are reconstructed while they are uploaded: when their jobs begin, wait, stop and go on."""

import json
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stream_recon.app import web
from stream_recon.app.sources.growing import mark_of
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.limits import WebLimits
from tests.app.sources.streamed_files import box, film, index_first
from tests.app.web.browsing import ServerProcess
from tests.app.web.serving import HEADER, served, upload
from tests.app.web.test_jobs import job, until

SAMPLE = Path(web.__file__).resolve().parents[1] / "sample" / "walkthrough.mp4"


LENGTH = 500_000
"""Bytes of the film."""
STALLS = WebLimits(housekeeping_s=0.1, stall_s=0.3)


def begun(client: TestClient, data: bytes, length: int, name: str = "walk.mp4") -> tuple[str, dict[str, Any]]:
    """The id of an upload of which ``length`` bytes have come, and the server's answer to them."""
    number = client.post("/api/uploads", json={"name": name, "size": len(data)}).json()["id"]
    return number, client.patch(f"/api/uploads/{number}?offset=0", content=data[:length]).json()


@pytest.fixture
def long_film(tmp_path: Path) -> bytes:
    """A video whose index is in front, and by which the stand-in of the program runs for long."""
    video = b"\0\0\0\x11freelongwaits" + index_first(film(tmp_path / "film.mp4"))
    return padded(video)


def padded(video: bytes) -> bytes:
    """A video of `LENGTH` bytes."""
    return video + box(b"free", bytes(LENGTH - 8 - len(video)))


def test_a_job_begins_while_its_video_comes(tmp_path: Path, long_film: bytes) -> None:
    with served(tmp_path / "data") as client:
        number, answer = begun(client, long_film, 250_000)
        assert answer["job"] == job(client)["id"] and answer["offset"] == 250_000
        until(lambda: job(client)["state"] == "running" and job(client)["arrives"])
        (mark,) = DataFolder(tmp_path / "data").uploads.glob("*/*.upload")
        assert json.loads(mark.read_text()) == {"size": len(long_film)}
        last = client.patch(f"/api/uploads/{number}?offset=250000", content=long_film[250_000:]).json()
        assert last["job"] == answer["job"] and last["name"] == "walk-recon" and not last["known"]
        assert not mark.exists() and "arrives" not in job(client)
        stored = mark.with_suffix("")
        assert stored.read_bytes() == long_film
        again = upload(client, long_film, piece=100_000)  # the same file: stored and reconstructed once
        assert again["known"] and again["name"] == "walk-recon"
        assert [path for path in DataFolder(tmp_path / "data").uploads.rglob("*") if path.is_file()] == [stored]


def test_a_video_whose_index_comes_last_waits_and_says_so(tmp_path: Path, long_film: bytes) -> None:
    data = padded(film(tmp_path / "late.mp4"))
    with served(tmp_path / "data") as client:
        number, answer = begun(client, data, 250_000)
        assert answer == {"offset": 250_000, "size": len(data), "waits": True}
        assert client.get("/api/state").json()["jobs"] == []
        last = client.patch(f"/api/uploads/{number}?offset=250000", content=data[250_000:]).json()
        assert last["name"] == "walk-recon"
        _, photographs = begun(client, b"PK\x03\x04" + bytes(300_000), 250_000, "a.zip")
        assert photographs["waits"] is False  # a ZIP file is always complete first


def test_a_stalled_upload_stops_its_job_which_goes_on_with_the_next_piece(tmp_path: Path, long_film: bytes) -> None:
    with served(tmp_path / "data", limits=STALLS) as client:
        number, _ = begun(client, long_film, 250_000)
        until(lambda: job(client)["state"] == "stopped")
        assert (tmp_path / "data" / "walk-recon" / "stopped").exists()  # as by Ctrl-C, and not killed
        assert job(client)["error"] == "waits for the rest of its upload"
        client.patch(f"/api/uploads/{number}?offset=250000", content=long_film[250_000:300_000])
        starts = tmp_path / "data" / "walk-recon" / "starts.txt"
        until(lambda: len(starts.read_text().splitlines()) == 2)
        assert all("--resume" in line for line in starts.read_text().splitlines())


def test_a_stalled_upload_that_is_completed_after_a_restart(tmp_path: Path, long_film: bytes) -> None:
    with served(tmp_path / "data", limits=STALLS) as client:
        number, _ = begun(client, long_film, 250_000)
        until(lambda: job(client)["state"] == "stopped")
    with served(tmp_path / "data") as client:
        last = client.patch(f"/api/uploads/{number}?offset=250000", content=long_film[250_000:]).json()
        assert last["name"] == "walk-recon" and job(client)["state"] in ("queued", "running")
        assert len(client.get("/api/state").json()["jobs"]) == 1


def test_a_run_that_failed_for_want_of_the_rest_is_tried_again(tmp_path: Path, long_film: bytes) -> None:
    data = long_film.replace(b"long", b"brok", 1)
    with served(tmp_path / "data") as client:
        program = tmp_path / "program.py"
        text = program.read_text()
        program.write_text(text.replace('b"broken" in content', 'b"brok" in content'))
        number, answer = begun(client, data, 250_000)
        until(lambda: job(client)["state"] == "failed")
        program.write_text(text.replace('b"long" in content', 'b"brok" in content'))
        last = client.patch(f"/api/uploads/{number}?offset=250000", content=data[250_000:]).json()
        assert last["job"] == answer["job"] and last["name"] == "walk-recon"
        until(lambda: job(client)["state"] == "running")


def test_a_cancelled_upload_stops_its_job_and_leaves_nothing(tmp_path: Path, long_film: bytes) -> None:
    with served(tmp_path / "data") as client:
        number, _ = begun(client, long_film, 250_000)
        until(lambda: job(client)["state"] == "running" and "progress" in job(client))
        assert client.delete(f"/api/uploads/{number}").status_code == 200
        until(lambda: job(client)["state"] == "stopped")
        assert "cancelled" in job(client)["error"]
        assert not list(DataFolder(tmp_path / "data").uploads.rglob("*"))
        resumed = client.post(f"/api/jobs/{job(client)['id']}/resume")
        assert resumed.status_code == 409 and "upload it again" in resumed.json()["error"]


def test_a_user_stops_the_job_and_the_upload_goes_on(tmp_path: Path, long_film: bytes) -> None:
    with served(tmp_path / "data") as client:
        number, answer = begun(client, long_film, 250_000)
        until(lambda: job(client)["state"] == "running" and job(client)["progress"])
        client.post(f"/api/jobs/{answer['job']}/stop")
        until(lambda: job(client)["state"] == "stopped")
        more = client.patch(f"/api/uploads/{number}?offset=250000", content=long_film[250_000:300_000])
        assert more.json()["job"] == answer["job"] and job(client)["state"] == "stopped"
        client.patch(f"/api/uploads/{number}?offset=300000", content=long_film[300_000:])
        client.post(f"/api/jobs/{answer['job']}/resume")
        until(lambda: job(client)["state"] == "running")


def test_what_may_be_here_already_is_not_begun(tmp_path: Path, long_film: bytes) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        upload(client, long_film, piece=100_000)
        _, answer = begun(client, long_film, 250_000)
        assert "job" not in answer
        other = bytearray(long_film)
        other[100] ^= 1
        assert "job" in begun(client, bytes(other), 250_000, "other.mp4")[1]


@pytest.mark.slow
def test_first_poses_come_before_the_last_piece(tmp_path: Path) -> None:
    """The real program and server: an upload that stalls in the middle, a kill, and the rest."""
    padding = 1_000_000
    data = SAMPLE.read_bytes() + (padding + 8).to_bytes(4, "big") + b"free" + bytes(padding)
    half = 240_000  # most of the frames, of 278 kB

    def ask(server: ServerProcess, method: str, path: str, body: bytes = b"") -> dict[str, Any]:
        request = urllib.request.Request(server.url + path, body or None, HEADER, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    poses = tmp_path / "data" / "walk-recon" / "trajectory.txt"

    def count() -> int:
        return len(poses.read_text().splitlines()) if poses.exists() else 0

    with ServerProcess(tmp_path / "data") as server:
        options = {"stride": 8, "max_frames": 14, "dense": False, "mesh": False}
        wanted = json.dumps({"name": "walk.mp4", "size": len(data), "options": options}).encode()
        number = ask(server, "POST", "api/uploads", wanted)["id"]
        assert "job" in ask(server, "PATCH", f"api/uploads/{number}?offset=0", data[:half])
        until(lambda: count() >= 8, 400)
        assert ask(server, "GET", f"api/uploads/{number}")["offset"] == half
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    with ServerProcess(tmp_path / "data") as server:
        time.sleep(2)  # the job goes on, and waits
        answer = ask(server, "PATCH", f"api/uploads/{number}?offset={half}", data[half:])
        assert answer["name"] == "walk-recon" and not answer["known"]
        until(lambda: not ask(server, "GET", "api/state")["jobs"], 400)
        record = json.loads((tmp_path / "data" / "walk-recon" / "run.json").read_text())
        assert record["interrupted"] is False and record["frames"]["reconstructed"] == 14 and record["refinement"]
        (video,) = DataFolder(tmp_path / "data").uploads.glob("*/*.mp4")
        assert video.read_bytes() == data and not mark_of(video).exists()
