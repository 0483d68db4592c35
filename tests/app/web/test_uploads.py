"""Uploads in pieces, their bounds, and what is recognised."""

import asyncio
import io
import json
import shutil
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.app.web.data_folder import RESERVE_BYTES, DataFolder, safe_name
from stream_recon.app.web.jobs import JobStore
from stream_recon.app.web.limits import WebLimits
from stream_recon.app.web.uploads import StoredUpload, Uploads
from tests.app.result.test_writer import write_run
from tests.app.web.browsing import until
from tests.app.web.serving import VIDEO, served, upload


def stored(folder: Path) -> list[Path]:
    return [path for path in DataFolder(folder).uploads.rglob("*") if path.is_file()]


def test_a_file_arrives_in_pieces_and_is_reconstructed(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        answer = upload(client, VIDEO, "Walk in the hall.mp4")
        assert answer["status"] == 200 and answer["name"] == "Walk-in-the-hall-recon" and not answer["known"]
        (path,) = stored(tmp_path / "data")
        assert path.read_bytes() == VIDEO and path.name == "Walk-in-the-hall.mp4"
        (job,) = client.get("/api/state").json()["jobs"]
        assert job["state"] == "queued" and job["name"] == answer["name"]


def test_a_cut_upload_goes_on_where_it_ended(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        number = client.post("/api/uploads", json={"name": "a.mp4", "size": len(VIDEO)}).json()["id"]
        assert client.patch(f"/api/uploads/{number}?offset=0", content=VIDEO[:70]).json()["offset"] == 70
    with served(tmp_path / "data", jobs=0) as client:  # the server was started again
        assert client.get(f"/api/uploads/{number}").json() == {"offset": 70, "size": len(VIDEO)}
        wrong = client.patch(f"/api/uploads/{number}?offset=60", content=VIDEO[60:])
        assert wrong.status_code == 409 and wrong.json()["offset"] == 70
        assert client.patch(f"/api/uploads/{number}?offset=70", content=VIDEO[70:]).json()["name"] == "a-recon"
        assert stored(tmp_path / "data")[0].read_bytes() == VIDEO


def test_the_same_file_is_stored_once(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        first = upload(client, VIDEO)
        again = upload(client, VIDEO, "another name.mp4")
        assert again["known"] and again["name"] == first["name"]
        assert len(stored(tmp_path / "data")) == 1
        assert len(client.get("/api/state").json()["jobs"]) == 1


@pytest.mark.parametrize("size", [2**53 + 1, 10**400, 0, -1, "5", True, None, 1.5])
def test_sizes_are_checked_before_anything_is_sent(tmp_path: Path, size: object) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        answer = client.post("/api/uploads", json={"name": "a.mp4", "size": size})
        assert answer.status_code == 400 and answer.json()["error"]
        assert not stored(tmp_path / "data")


def test_room_that_is_promised_is_not_promised_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=RESERVE_BYTES + 1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with served(tmp_path / "data", jobs=0) as client:
        assert client.get("/api/state").json()["limits"]["bytes"] == 1000
        assert client.post("/api/uploads", json={"name": "a.mp4", "size": 700}).status_code == 201
        refused = client.post("/api/uploads", json={"name": "b.mp4", "size": 700})
        assert refused.status_code == 507 and "room for" in refused.json()["error"]


def test_a_piece_is_no_longer_than_announced(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        number = client.post("/api/uploads", json={"name": "a.mp4", "size": 100}).json()["id"]
        assert client.patch(f"/api/uploads/{number}?offset=0", content=b"x" * 101).status_code == 400
        claimed = client.patch(f"/api/uploads/{number}?offset=0", content=b"x", headers={"Content-Length": str(10**10)})
        assert claimed.status_code == 400
        assert client.get(f"/api/uploads/{number}").json()["offset"] == 0


@pytest.mark.parametrize("data", [b"#!/bin/sh\nrm -rf /", b"<html>", b"\x7fELF", b"%PDF-1.7"])
def test_other_files_are_refused_by_their_content(tmp_path: Path, data: bytes) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        answer = upload(client, data, "video.mp4")
        assert answer["status"] == 415 and "no video" in answer["error"]
        assert not stored(tmp_path / "data")


@pytest.mark.parametrize(
    "name",
    ["../../etc/passwd.mp4", "..", "/abs/olute.mp4", "a\x00b.mp4", "C:\\x\\y.mp4", "-rf.mp4", ".hidden", "é" * 300],
)
def test_names_never_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        answer = upload(client, VIDEO, name)
        assert answer["status"] == 200
        (path,) = stored(tmp_path / "data")
        assert path.resolve().is_relative_to((tmp_path / "data").resolve())
        assert "/" not in answer["name"] and not answer["name"].startswith((".", "-")) and len(answer["name"]) < 120
    assert {path.name for path in tmp_path.iterdir()} == {"data", "program.py"}


def test_a_zip_of_photographs_is_unpacked_in_natural_order(tmp_path: Path) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for number in (10, 9, 1):
            file.writestr(f"room/../../{number}.jpg", b"\xff\xd8\xff" + bytes([number]))
        file.writestr("notes.txt", "not a photograph")
    with served(tmp_path / "data", jobs=0) as client:
        assert upload(client, content.getvalue(), "room.zip", 100000)["name"] == "room-recon"
        paths = sorted(stored(tmp_path / "data"))
        assert [path.name for path in paths] == ["000000.jpg", "000001.jpg", "000002.jpg"]
        assert [path.read_bytes()[3] for path in paths] == [1, 9, 10]


def test_an_upload_is_removed_on_request(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        number = client.post("/api/uploads", json={"name": "a.mp4", "size": 100}).json()["id"]
        assert client.delete(f"/api/uploads/{number}").status_code == 200
        assert client.get(f"/api/uploads/{number}").status_code == 404
        assert not stored(tmp_path / "data")


@pytest.mark.parametrize(
    "title, name",
    [("a b", "a-b"), ("..", "scene"), ("", "scene"), ("con", "con-1"), ("Küche 2", "Küche-2"), ("x" * 200, "x" * 80)],
)
def test_safe_names(title: str, name: str) -> None:
    assert safe_name(title) == name


def test_two_complete_copies_at_the_same_time_are_stored_once(tmp_path: Path) -> None:
    places = DataFolder(tmp_path / "data")
    places.make()
    uploads = Uploads(JobStore(places.queue), places, 50)

    async def blocks() -> AsyncIterator[bytes]:
        yield VIDEO

    async def both() -> list[StoredUpload]:
        pair = [uploads.create(name, len(VIDEO), {}) for name in ("a.mp4", "b.mp4")]
        for each in pair:
            await uploads.append(each, 0, blocks())
        return list(await asyncio.gather(*map(uploads.complete, pair)))

    first, second = asyncio.run(both())
    assert (
        first.path == second.path and first.path.read_bytes() == VIDEO and (first.known, second.known) == (False, True)
    )


@pytest.mark.parametrize("of_upload", [True, False])
def test_a_result_is_removed_with_its_upload_after_its_job_was_dismissed(tmp_path: Path, of_upload: bool) -> None:
    own = tmp_path / "own.mp4"
    own.write_bytes(VIDEO)
    with served(tmp_path / "data", jobs=0) as client:
        name = upload(client, VIDEO)["name"]
        (path,) = stored(tmp_path / "data")
        write_run(tmp_path / "data" / name)
        record = tmp_path / "data" / name / RUN_NAME
        made = json.loads(record.read_text())
        made["options"]["source"] = str(path if of_upload else own)
        record.write_text(json.dumps(made))
        assert client.post("/api/jobs/1/stop").status_code == 200
        assert client.delete("/api/jobs/1").status_code == 200
        assert stored(tmp_path / "data") == [path]
        gone = client.request("DELETE", f"/api/results/{name}", json={"upload": True})
        assert gone.json() == {"gone": True} and own.exists()
        assert stored(tmp_path / "data") == ([] if of_upload else [path])


def test_a_result_that_names_an_upload_of_others_does_not_remove_it(tmp_path: Path) -> None:
    """Its ``run.json`` may be of anybody: only a job that made the result knows what it was made of."""
    with served(tmp_path / "data", jobs=0) as client:
        upload(client, VIDEO)
        (path,) = stored(tmp_path / "data")
        assert client.post("/api/jobs/1/stop").status_code == 200
        assert client.delete("/api/jobs/1").status_code == 200 and not stored(tmp_path / "data")
        upload(client, VIDEO, "mine.mp4")
        write_run(tmp_path / "data" / "mine-recon")
        client.post("/api/jobs/2/stop")
        client.delete("/api/jobs/2")
        (path,) = stored(tmp_path / "data")
        write_run(tmp_path / "data" / "theirs")
        record = tmp_path / "data" / "theirs" / RUN_NAME
        made = json.loads(record.read_text())
        made["options"]["source"] = str(path)
        record.write_text(json.dumps(made))
        gone = client.request("DELETE", "/api/results/theirs", json={"upload": True})
        assert gone.json() == {"gone": True} and stored(tmp_path / "data") == [path]


def test_pieces_are_not_written_through_links(tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    with served(tmp_path / "data", jobs=0) as client:
        number = client.post("/api/uploads", json={"name": "a.mp4", "size": len(VIDEO)}).json()["id"]
        (piece,) = stored(tmp_path / "data")
        piece.unlink()
        piece.symlink_to(mine)
        answer = client.patch(f"/api/uploads/{number}?offset={len('keep')}", content=VIDEO[4:])
        assert answer.status_code == 507 and mine.read_text() == "keep"


def test_a_folder_with_a_quota_takes_no_more_until_something_is_removed(tmp_path: Path) -> None:
    limits = WebLimits(housekeeping_s=0.05)
    with served(tmp_path / "data", jobs=0, quota=100_000, limits=limits) as client:
        refused = client.post("/api/uploads", json={"name": "b.mp4", "size": 100_001})
        assert refused.status_code == 507 and "room for" in refused.json()["error"]
        number = client.post("/api/uploads", json={"name": "a.mp4", "size": 99_000}).json()["id"]
        client.patch(f"/api/uploads/{number}?offset=0", content=b"x" * 98_000)
        (tmp_path / "data" / "more").write_bytes(bytes(3000))
        until(lambda: client.get("/api/state").json()["limits"]["bytes"] == 0, 10)
        for path, body in (("uploads", {"name": "c", "size": 1}), ("sources", {"address": "0"})):
            full = client.post(f"/api/{path}", json=body)
            assert full.status_code == 507 and full.json()["error"], path
        client.delete(f"/api/uploads/{number}")
        until(lambda: client.post("/api/sources", json={"address": "0"}).status_code == 201, 10)
