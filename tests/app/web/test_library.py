"""The list of results: those of the command line too; renaming and removal of the program's own files."""

import json
from pathlib import Path

import pytest

from stream_recon.app.cli.console import verdict_text
from stream_recon.app.result import causes
from stream_recon.app.result.causes import Cause
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import RUN_NAME, VERDICT
from stream_recon.app.result.verdict import Verdict
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.library import Library
from stream_recon.configs.errors import OutputError
from tests.app.result.test_writer import write_run
from tests.app.web.serving import served


@pytest.fixture
def data(tmp_path: Path) -> Path:
    places = DataFolder(tmp_path / "data")
    places.make()
    write_run(places.path / "hall")
    return places.path


def test_results_of_the_command_line_are_listed(data: Path) -> None:
    write_run(data / "half", finish=False).close()
    (data / "other").mkdir()
    (data / "damaged").mkdir()
    (data / "damaged" / RUN_NAME).write_text("{")
    (data / "link").symlink_to(data / "hall")
    entries = {entry.name: entry for entry in Library(DataFolder(data)).entries()}
    assert set(entries) == {"hall", "half"}
    assert entries["hall"].frames == 5 and not entries["hall"].interrupted and entries["half"].interrupted
    assert entries["hall"].seconds is not None and entries["hall"].seconds > 0


@pytest.mark.parametrize("cause", [causes.APART, causes.MOVING, causes.BENT, causes.LOST, causes.EVEN])
def test_a_verdict_has_the_words_of_the_terminal(data: Path, cause: Cause) -> None:
    path = data / "hall" / RUN_NAME
    verdict = Verdict("doubtful", cause.reason, cause.advice)
    path.write_text(json.dumps({**json.loads(path.read_text()), VERDICT: verdict.to_json()}))
    (entry,) = Library(DataFolder(data)).entries()
    assert f"{entry.verdict}: {entry.reason}" == verdict.line == verdict_text(verdict).plain


def test_a_result_has_a_picture(data: Path) -> None:
    assert Library(DataFolder(data)).picture("hall").startswith(b"\xff\xd8\xff")
    for path in (data / "hall" / "depth").iterdir():
        path.write_bytes(b"damaged")
    with pytest.raises(OutputError):
        Library(DataFolder(data)).picture("hall")


def test_renaming(data: Path) -> None:
    library = Library(DataFolder(data))
    write_run(data / "taken")
    assert library.rename("hall", "../Eingang 2") == "Eingang-2"
    assert (data / "Eingang-2" / RUN_NAME).exists() and not (data / "hall").exists()
    with pytest.raises(OutputError, match="exists"):
        library.rename("Eingang-2", "taken")
    for title in ("", "  ", None, 5):
        with pytest.raises(OutputError):
            library.rename("Eingang-2", title)
    assert {path.name for path in data.iterdir() if not path.name.startswith(".")} == {"Eingang-2", "taken"}


def test_a_name_is_taken_by_folders_links_and_jobs(data: Path) -> None:
    (data / "link").symlink_to(data / "nothing")
    with served(data, jobs=0) as client:
        client.post("/api/sources", json={"address": "rtsp://a/b", "name": "garden"})
        for name in ("link", "Garden-Recon", "hall"):
            answer = client.post("/api/results/hall/rename", json={"name": name})
            assert (answer.status_code == 409) == (name != "hall"), name
        again = client.post("/api/sources", json={"address": "rtsp://a/b", "name": "GARDEN"}).json()
        assert again["name"] == "GARDEN-recon-2"
    assert DataFolder(data).free_name("link") == "link-recon" and (data / "hall").is_dir()


def test_removal_takes_only_what_the_program_wrote(data: Path) -> None:
    (data / "hall" / "notes.txt").write_text("mine")
    (data / "hall" / "depth" / "mine.npz").write_bytes(b"mine")
    assert not Library(DataFolder(data)).remove("hall")
    left = {str(path.relative_to(data / "hall")) for path in (data / "hall").rglob("*")}
    assert left == {"notes.txt", "depth", "depth/mine.npz"}


def test_removal_of_a_whole_result(data: Path) -> None:
    assert Library(DataFolder(data)).remove("hall")
    assert not (data / "hall").exists()


def test_a_result_in_use_stays(data: Path) -> None:
    with FolderLock(data / "hall"):
        for change in (
            lambda: Library(DataFolder(data)).remove("hall"),
            lambda: Library(DataFolder(data)).rename("hall", "a"),
        ):
            with pytest.raises(OutputError):
                change()
    assert (data / "hall" / RUN_NAME).exists()


@pytest.mark.parametrize("name", ["..", ".", "", "/etc", "other", "hall/depth", ".stream-recon-serve", "nothing"])
def test_only_listed_results_are_touched(data: Path, name: str) -> None:
    (data / "other").mkdir()
    (data / "other" / RUN_NAME).write_text(json.dumps({"program": "another"}))
    before = sorted(data.rglob("*"))
    with pytest.raises(OutputError):
        Library(DataFolder(data)).remove(name)
    assert sorted(data.rglob("*")) == before


def test_the_page_asks_for_all_of_it(data: Path) -> None:
    with served(data, jobs=0) as client:
        assert client.get("/api/results/hall/picture").headers["content-type"] == "image/jpeg"
        assert client.post("/api/results/hall/rename", json={"name": "flur"}).json() == {"name": "flur"}
        assert client.post("/api/results/flur/refine", json={}).status_code == 201
        assert client.delete("/api/results/flur").status_code == 409  # a job of it waits
        client.post("/api/jobs/1/stop")
        assert client.delete("/api/results/flur").json() == {"gone": True}
        assert client.get("/api/state").json()["results"] == []
