"""The queue: jobs that run, fail, stop, go on, and survive the server's end."""

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stream_recon.app.web.commands import arguments
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import JobStore
from stream_recon.app.web.runner import NICENESS
from tests.app.result.test_writer import write_run
from tests.app.web.serving import VIDEO, program, served, upload

LONG = VIDEO + b"long"


def until(found: Callable[[], Any], seconds: float = 20.0) -> Any:
    """Wait for a true value."""
    end = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return value


def job(client: TestClient, number: int = 1) -> dict[str, Any]:
    return next((each for each in client.get("/api/state").json()["jobs"] if each["id"] == number), {})


def test_a_job_runs_and_tells_its_progress(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        name = upload(client, LONG, options={"stride": 2, "mapping": "stream", "dense": False})["name"]
        progress = until(lambda: job(client).get("progress"))
        assert progress["step"] == "frames" and progress["total"] == 400 and progress["fps"] == 9.5
        words = (tmp_path / "data" / name / "starts.txt").read_text()
        assert "--resume --host 127.0.0.1 --port 0 --stride 2 --mapping stream --dense off" in words
        client.post("/api/jobs/1/stop")
        until(lambda: job(client)["state"] == "stopped")
        assert (tmp_path / "data" / name / "stopped").exists()  # it was stopped as Ctrl-C does
        client.post("/api/jobs/1/resume")
        until(lambda: job(client).get("progress"))
        assert len((tmp_path / "data" / name / "starts.txt").read_text().splitlines()) == 2


def test_jobs_yield_to_pages(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        upload(client, LONG)
        until(lambda: job(client).get("progress"))
        (child,) = (
            path
            for path in Path("/proc").glob("[0-9]*")
            if str(tmp_path) in _words(path) and "reconstruct" in _words(path)
        )
        assert os.getpriority(os.PRIO_PROCESS, int(child.name)) >= NICENESS
        group = child / "autogroup"
        assert not group.exists() or group.read_text().rpartition("nice ")[2].strip() == str(NICENESS)


def _words(process: Path) -> str:
    try:
        return (process / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def test_a_failure_is_the_programs_own_line(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        upload(client, VIDEO + b"broken")
        failed = until(lambda: job(client)["state"] == "failed" and job(client))
        assert failed["error"] == "it is broken: film again"
        assert client.delete("/api/jobs/1").status_code == 200 and not job(client)
        assert not list(DataFolder(tmp_path / "data").jobs.iterdir())
        assert not list(DataFolder(tmp_path / "data").uploads.iterdir())  # nothing came of it


def test_a_job_that_says_nothing_is_told_how_it_ended(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        ends = {"-9": "it was killed, maybe for want", "-6": "signal 6 ended it", "3": "with code 3"}
        for number, (code, reason) in enumerate(ends.items(), 1):
            upload(client, VIDEO + f"ends {code}".encode())
            failed = until(lambda number=number: job(client, number).get("state") == "failed" and job(client, number))
            assert reason in failed["error"]


def test_jobs_wait_for_one_another(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        for number in range(3):
            upload(client, LONG + bytes([number]), f"{number}.mp4")
        until(lambda: job(client, 1)["state"] == "running")
        assert [job(client, n)["state"] for n in (2, 3)] == ["queued", "queued"]
        client.post("/api/jobs/2/stop")
        assert job(client, 2)["state"] == "stopped"
        assert client.delete("/api/jobs/1").status_code == 409  # it runs
        client.post("/api/jobs/1/stop")
        until(lambda: job(client, 3)["state"] == "running")
        assert job(client, 2)["state"] == "stopped"


def test_exports_are_cut_by_a_box_of_the_viewer(tmp_path: Path) -> None:
    places = DataFolder(tmp_path / "data")
    places.make()
    write_run(places.path / "hall")
    with served(places.path, jobs=0) as client:
        for form, box, status in (
            ("mesh", "--box -1,1,0,2.5,-3,-0.5,30", 201),
            ("html", " -1, 1, 0, 2.5, -3, -0.5 ", 201),
            ("points", "", 201),
            ("mesh", "export --box=-1,1,0,2.5,-3,-0.5", 201),
            ("mesh", "subject", 201),
            ("mesh", "subject,1", 400),
            ("colmap", "-1,1,0,2,-3,0", 400),  # images cannot be cut
            ("mesh", "1,2,3", 400),
            ("mesh", "--overwrite", 400),
            ("mesh", "1,2,3,4,5,6 -o /etc/passwd", 400),
            ("mesh", ["1,2,3,4,5,6"], 400),
        ):
            answer = client.post("/api/results/hall/export", json={"format": form, "box": box})
            assert answer.status_code == status, (form, box, answer.text)
    store = JobStore(places.queue)
    words = [arguments(job, places) for job in reversed(store.all())]
    assert words[0][-1] == "--box=-1,1,0,2.5,-3,-0.5,30" and words[1][-1] == "--box=-1,1,0,2.5,-3,-0.5"
    assert words[3][-1] == words[1][-1] and words[4][-1] == "--box=subject"
    assert len(words) == 5 and not any(word.startswith("--box") for word in words[2])
    store.close()


def test_an_export_is_made_and_downloaded_while_a_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_run(tmp_path / "data" / "hall")
    with served(tmp_path / "data") as client:
        upload(client, LONG)
        for number, (form, name) in enumerate((("points", "hall.glb"), ("colmap", "hall-colmap.zip")), 2):
            assert client.post("/api/results/hall/export", json={"format": form}).status_code == 201
            done = until(lambda n=number: job(client, n).get("file") and job(client, n))  # type: ignore[misc]
            assert done["file"] == name
            answer = client.get(f"/api/exports/{number}")
            assert answer.status_code == 200 and f'filename="{name}"' in answer.headers["content-disposition"]
            assert answer.content == b"exported" or answer.content.startswith(b"PK")
        part = client.get("/api/exports/2", headers={"Range": "bytes=2-4"})
        assert part.status_code == 206 and part.content == b"por"
        assert client.post("/api/results/hall/export", json={"format": "exe"}).status_code == 400
        assert job(client, 1)["state"] == "running"


def test_the_end_of_the_server_ends_its_jobs_and_the_next_one_continues_them(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        name = upload(client, LONG)["name"]
        until(lambda: job(client).get("progress"))
    store = JobStore(DataFolder(tmp_path / "data").queue)
    assert store.get(1).state == "queued"  # type: ignore[union-attr]
    store.close()
    with served(tmp_path / "data") as client:
        until(lambda: job(client).get("progress"))
        assert len((tmp_path / "data" / name / "starts.txt").read_text().splitlines()) == 2


SERVER = """
import sys, uvicorn
from pathlib import Path
from stream_recon.app.web.access import AccessPolicy
from stream_recon.app.web.app import make_app
from stream_recon.app.web.data_folder import DataFolder
places = DataFolder(Path(sys.argv[1]))
places.make()
app = make_app(places, AccessPolicy(), 1, sys.argv[2:])
uvicorn.run(app, port=0, log_config=None)
"""


def test_a_kill_of_the_server_ends_its_jobs_too(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        name = upload(client, LONG)["name"]
    started = tmp_path / "data" / name / "starts.txt"
    words = [sys.executable, "-c", SERVER, str(tmp_path / "data"), *program(tmp_path)]
    server = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        until(started.exists)
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()
    until((tmp_path / "data" / name / "stopped").exists)
    store = JobStore(DataFolder(tmp_path / "data").queue)
    assert store.get(1).state == "queued"  # type: ignore[union-attr]
    store.close()


def test_a_live_source_is_not_read_again(tmp_path: Path) -> None:
    with served(tmp_path / "data") as client:
        made = client.post("/api/sources", json={"address": "rtsp://user:secret@camera/long"})
        assert made.status_code == 201 and made.json()["name"] == "camera-recon"
        folder = tmp_path / "data" / "camera-recon"
        until(folder.exists)
        until(lambda: not job(client))
        assert client.post("/api/jobs/1/resume").status_code == 200  # it is done: nothing to do
    store = JobStore(DataFolder(tmp_path / "data").queue)
    store.set_state(1, "stopped")
    store.close()
    with served(tmp_path / "data") as client:
        refused = client.post("/api/jobs/1/resume")
        assert refused.status_code == 409 and "read again" in refused.json()["error"]
        assert "secret" not in client.get("/api/state").text


def test_what_a_page_was_told_is_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the answer, without the task that stores the changes of jobs."""

    async def keep_nothing(_: JobStore) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(JobStore, "keep_saved", keep_nothing)
    with served(tmp_path / "data", jobs=0) as client:
        upload(client, VIDEO)
        with contextlib.closing(sqlite3.connect(DataFolder(tmp_path / "data").queue)) as file:
            assert file.execute("select kind from jobs").fetchall() == [("reconstruct",)]
