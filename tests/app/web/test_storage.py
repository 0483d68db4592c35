"""The file of the queue: damaged, locked, of another schema, and on a disk that is full at any moment."""

import asyncio
import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.core import output_file
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import COLUMNS, SCHEMA, JobStore
from stream_recon.configs.errors import OutputError
from tests.app.web.serving import VIDEO, served, upload

REQUESTS = (("uploads", {"name": "a.mp4", "size": 5}), ("sources", {"address": "rtsp://a/b"}))
"""Requests that add something to the queue."""


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    places = DataFolder(tmp_path / "data")
    places.make()
    return places


def filled(data: DataFolder) -> None:
    store = JobStore(data.queue)
    for name in ("hall", "attic"):
        store.add("reconstruct", name, f"/uploads/{name}.mp4", {"stride": 2})
    store.set_state(1, "running")
    store.close()


def full(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOSPC) -> None:
    def none(path: Path, permissions: int = 0o644) -> int:
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(output_file, "open_new", none)


def full_after(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``count`` calls of the system the disk is full."""
    left = [count]

    def limited(real: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.ENOSPC, "full")
            return real(*arguments, **named)

        return call

    for name in ("open", "fsync", "replace"):
        monkeypatch.setattr(os, name, limited(getattr(os, name)))


def names(store: JobStore) -> list[tuple[str, str]]:
    return [(job.name, job.state) for job in reversed(store.all())]


def test_a_restart_finds_all(data: DataFolder) -> None:
    filled(data)
    store = JobStore(data.queue)
    assert names(store) == [("hall", "queued"), ("attic", "queued")] and store.all()[0].options == {"stride": 2}
    store.remove(2)
    store.close()
    assert JobStore(data.queue).add("refine", "hall", "", {}).id == 3  # numbers name folders: none is given twice


def test_damaged_bytes_that_sqlite_quotes_are_damage(data: DataFolder) -> None:
    filled(data)
    content = data.queue.read_bytes()
    data.queue.write_bytes(content.replace(b"CREATE TABLE", b"CREATE \xa0\xa0\xa0\xa0\xa0", 1))
    assert names(JobStore(data.queue)) == [] and len(list(data.path.rglob("*.damaged-*"))) == 1


@pytest.mark.parametrize("content", [b"", b"no database" * 100, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_kept_and_the_server_works(
    data: DataFolder, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    data.queue.write_bytes(content)
    with served(data.path, jobs=0) as client:
        assert client.get("/api/state").json()["jobs"] == []
        assert upload(client, VIDEO)["status"] == 200
    assert names(JobStore(data.queue)) == [("walk-recon", "queued")]
    kept = [path.read_bytes() for path in data.state.glob("queue.sqlite.damaged-*")]
    assert kept == ([content] if content else []) and len(caplog.records) == len(kept)


def test_pages_that_can_be_read_are_used(data: DataFolder) -> None:
    """A page of one table is overwritten: the jobs before it stay."""
    filled(data)
    content = bytearray(data.queue.read_bytes())
    found = content.find(b"attic.mp4") // 4096 * 4096
    assert found > 0
    content[found : found + 100] = os.urandom(100)
    data.queue.write_bytes(content)
    JobStore(data.queue).close()
    assert list(data.state.glob("queue.sqlite.damaged-*"))


@pytest.mark.parametrize(
    "change",
    [
        "alter table jobs rename column options to settings",
        "drop table jobs",
        "alter table jobs add column more text default 'x'",
        "create view jobs2 as select * from jobs",
        "drop table uploads",
    ],
)
def test_a_file_of_another_schema_does_not_stop_the_server(data: DataFolder, change: str) -> None:
    filled(data)
    with sqlite3.connect(data.queue) as file:
        file.execute(change)
    file.close()
    with served(data.path, jobs=0) as client:
        assert client.get("/api/state").status_code == 200
        assert upload(client, VIDEO)["status"] == 200


@pytest.mark.parametrize(
    "column, value",
    [
        *[("options", each) for each in ("[", "[]", "5", None, b"\xff", "[" * 100_000)],
        *[("kind", "paint"), ("state", "odd"), ("name", "../../etc"), ("name", ".hidden"), ("name", b"\xff\x00")],
        *[("created", "soon"), ("created", float("inf")), ("ended", "never"), ("error", b"\x00\xff")],
        *[("id", 2**63 - 1), ("id", -1)],
    ],
)
def test_rows_that_cannot_be_read_are_left_out(data: DataFolder, column: str, value: object) -> None:
    filled(data)
    with sqlite3.connect(data.queue) as file:
        file.execute("drop table jobs")
        file.execute(f"create table jobs({','.join(COLUMNS['jobs'])})")
        for number in (1, 2):
            file.execute("insert into jobs values(?,'refine','hall','','{}','queued','',1,null,null)", (number,))
        file.execute(f"update jobs set {column}=? where id=1", (value,))
    file.close()
    with served(data.path, jobs=0) as client:
        answer = client.get("/api/state")
        assert answer.status_code == 200 and [job["id"] for job in answer.json()["jobs"]] == [2]


def test_text_that_is_none_costs_no_other_row(data: DataFolder) -> None:
    filled(data)
    with sqlite3.connect(data.queue) as file:
        row = "'refine','hall','','{}','queued','',1,null,null"
        file.executescript("".join(f"insert or replace into jobs values({k},{row});" for k in (1, 2, 3)))
        file.execute("update jobs set error=cast(? as text) where id=2", (b"half \xff",))
    file.close()
    with served(data.path, jobs=0) as client:
        assert {1, 3} <= {job["id"] for job in client.get("/api/state").json()["jobs"]}


def test_a_queue_of_others_leads_to_no_files_of_the_user(data: DataFolder, tmp_path: Path) -> None:
    """Uploads that are stale, or removed by hand, of files outside their own folders."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (data.uploads / "way").symlink_to(mine)
    others = [mine / "a.mp4", data.uploads / ".." / ".." / ".." / "mine" / "b.mp4", data.uploads / "way" / "c.mp4"]
    others += [data.uploads / "d.mp4", data.jobs / "1" / "e.mp4", mine / ("a" * 16 + ".piece")]
    store = JobStore(data.queue)
    insert = "insert into uploads(title, size, options, created, id, sha256, path) values('a', 4, '{}', 1, ?, ?, ?)"
    store.connection.execute(insert, ("../../../mine/" + "a" * 16, None, None))
    for number, path in enumerate(others):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
        store.connection.execute(insert, (f"{number:016x}", None, str(path)))
    store.close()
    with served(data.path, jobs=0) as client:
        assert client.get("/api/state").json()["uploads"] == []
    assert all(path.read_text() == "mine" for path in others)


@pytest.mark.parametrize("last", [2**63 - 1, -5, "x", None])
def test_jobs_are_added_after_a_damaged_number(data: DataFolder, last: object) -> None:
    filled(data)
    with sqlite3.connect(data.queue) as file:
        file.execute("update sqlite_sequence set seq=?", (last,))
    file.close()
    assert JobStore(data.queue).add("refine", "hall", "", {}).id == 3


def test_a_link_in_place_of_the_servers_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "data" / ".stream-recon-serve").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="is a link"):
        DataFolder(tmp_path / "data").make()
    assert not list((tmp_path / "mine").iterdir())


def test_an_export_of_another_version_is_shown(data: DataFolder) -> None:
    store = JobStore(data.queue)
    store.set_state(store.add("export", "hall", "hologram", {}).id, "done")
    store.close()
    with served(data.path, jobs=0) as client:
        (job,) = client.get("/api/state").json()["jobs"]
        assert job["label"] == "hologram"


def test_a_lock_of_another_program_is_one_line_at_the_start_and_nothing_later(data: DataFolder) -> None:
    filled(data)
    with sqlite3.connect(data.queue, isolation_level=None) as other:
        with served(data.path, jobs=0) as client:
            other.execute("begin exclusive")
            assert upload(client, VIDEO)["status"] == 200
            assert client.get("/api/state").status_code == 200
        other.execute("rollback")
    other.close()
    with sqlite3.connect(data.queue, isolation_level=None) as other:
        other.execute("begin exclusive")
        with pytest.raises(OutputError, match="locked"):
            JobStore(data.queue, lock_s=0.1)
    other.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
def test_what_cannot_be_stored_is_refused_in_a_line_and_what_goes_on_is_kept(
    data: DataFolder, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    with served(data.path, jobs=0) as client:
        known = upload(client, VIDEO)["job"]
        with monkeypatch.context() as patched:
            full(patched, code)
            for path, body in REQUESTS:
                answer = client.post(f"/api/{path}", json=body)
                assert answer.status_code in (503, 507) and answer.json()["error"]
            assert client.post(f"/api/jobs/{known}/stop").status_code == 200
            state = client.get("/api/state").json()
            assert [(job["id"], job["state"]) for job in state["jobs"]] == [(known, "stopped")] and not state["uploads"]
    assert names(JobStore(data.queue)) == [("walk-recon", "stopped")]


def test_what_could_not_be_stored_is_tried_again(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    store = JobStore(data.queue)

    async def run() -> None:
        store.add("refine", "hall", "", {})
        with monkeypatch.context() as patched:
            full(patched)
            with pytest.raises(OSError):
                await store.save()
        assert names(store) == [("hall", "queued")]
        await store.save()

    asyncio.run(run())
    assert names(JobStore(data.queue)) == [("hall", "queued")]


def test_a_disk_that_is_full_at_any_moment_leaves_a_file_that_can_be_read(
    data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(data)
    store = JobStore(data.queue)
    for number in range(8):
        store.set_state(1, "failed", f"{number}")
        with monkeypatch.context() as patched, suppress(OSError):
            full_after(number, patched)
            asyncio.run(store.save())
        assert len(names(JobStore(data.queue))) == 2
        assert not [path for path in data.state.iterdir() if path.suffix == ".part"]
    asyncio.run(store.save())
    store.close()


def test_files_of_earlier_versions_are_read(data: DataFolder) -> None:
    with sqlite3.connect(data.queue) as file:
        file.executescript(SCHEMA)
        file.execute("drop table made")
        file.execute("insert into jobs values(7,'reconstruct','hall-recon','/u/a.mp4','{}','running','',1.5,2.5,null)")
        path = str(data.uploads / "ff" / "a.mp4")
        file.execute("insert into uploads values(?,'a.mp4',5,'{}',1.5,'ff',?,null)", ("ab" * 8, path))
    file.close()
    store = JobStore(data.queue)
    assert names(store) == [("hall-recon", "queued")] and store.sources("hall-recon") == {"/u/a.mp4"}
    assert store.connection.execute("select count(*) from uploads").fetchone() == (1,)
