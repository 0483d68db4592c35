"""Jobs whose input comes from an object store, and whose result goes to one: a folder stands in for the store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stream_recon.app.web.commands import STORES_VARIABLE, checked_address, checked_store, store_pattern
from stream_recon.app.web.transfer import get
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.web.browsing import until
from tests.app.web.serving import VIDEO, served, upload

fsspec = pytest.importorskip("fsspec")
SECRET = "hidden-from-all"
BUCKET = """
import os, shutil
from fsspec.implementations.local import LocalFileSystem

class Bucket(LocalFileSystem):
    protocol = "bucket"

    @classmethod
    def _strip_protocol(cls, path):
        return os.environ["BUCKET_FOLDER"] + path.removeprefix("bucket://").removeprefix(os.environ["BUCKET_FOLDER"])

    def put_file(self, source, target, **more):
        if "refused" in target and source.endswith("starts.txt"):
            raise PermissionError(f"https://host{target}?signature=1 with {os.environ['BUCKET_SECRET_KEY']}")
        shutil.copyfile(source, self._strip_protocol(target))
"""
FOREIGN = (
    "s3://other/film.mp4", "bucket://files/into/film.mp4", "bucket://files/in", "bucket://files/in/../secret",
    "bucket://files/in/%2e%2e/secret", "bucket://files/in/*.mp4", "simplecache::bucket://files/in/a", "file:///etc/passwd",
    "bucket://me:word@files/in/a", "bucket://files/in//a", "bucket://files/in/a?version=1", "memory://files/in/a",
)  # fmt: skip


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of what is at ``bucket://``, also for processes that the test starts."""
    package = tmp_path / "package"
    (package / "bucket-1.dist-info").mkdir(parents=True)
    (package / "bucket-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: bucket\nVersion: 1\n")
    (package / "bucket-1.dist-info" / "entry_points.txt").write_text("[fsspec.specs]\nbucket = bucket:Bucket\n")
    (package / "bucket.py").write_text(BUCKET)
    monkeypatch.setenv("PYTHONPATH", str(package), prepend=":")
    monkeypatch.setenv("BUCKET_FOLDER", f"{tmp_path}/store/")
    monkeypatch.setenv("BUCKET_SECRET_KEY", SECRET)
    monkeypatch.setenv(STORES_VARIABLE, "bucket://files/in/, bucket://files/out")
    folder = tmp_path / "store" / "files"
    (folder / "in").mkdir(parents=True)
    return folder


@pytest.fixture
def client(tmp_path: Path, bucket: Path) -> Iterator[TestClient]:
    with served(tmp_path / "data") as found:
        yield found


def ended(client: TestClient, kind: str, state: str, name: str | None = None) -> dict[str, Any]:
    """A job of this kind, once it has this state."""

    def found() -> Any:
        jobs = client.get("/api/jobs").json()["jobs"]
        return next(
            (job for job in jobs if (job["kind"], job["state"]) == (kind, state) and name in (None, job["name"])), None
        )

    return dict(until(found, what=f"{kind} {state} of {client.get('/api/jobs').text}"))


def test_a_film_in_a_store_is_reconstructed_and_its_result_put_there(
    tmp_path: Path, bucket: Path, client: TestClient
) -> None:
    (bucket / "in" / "walk in hall.mp4").write_bytes(VIDEO)
    address, output = "bucket://files/in/walk in hall.mp4", "bucket://files/out/one/walk"
    made = client.post("/api/sources", json={"address": address, "options": {"stride": 2, "output": output}})
    assert made.status_code == 201 and made.json()["name"] == "walk-in-hall-recon"
    job = ended(client, "store", "done")
    assert job["output"] == output
    result = tmp_path / "data" / "walk-in-hall-recon"
    words = (result / "starts.txt").read_text()
    assert (bucket / "out" / "one" / "walk" / "starts.txt").read_text() == words
    source = Path(words.split(" ", 1)[1].split(" -")[0])
    assert source.read_bytes() == VIDEO and source.is_relative_to(tmp_path / "data" / ".stream-recon-serve" / "uploads")
    assert "--stride 2" in words and "bucket" not in words
    assert upload(client, VIDEO)["known"], "it is stored as an upload"


def test_a_result_that_cannot_be_put_stays_and_that_is_told(tmp_path: Path, bucket: Path, client: TestClient) -> None:
    for name, reason in (("refused", "PermissionError: https://host"), ("taken", "has files: give another output")):
        there = bucket / "out" / name
        if name == "taken":
            there.mkdir(parents=True)
            (there / "mine.txt").write_text("mine")
        upload(client, VIDEO + name.encode(), f"{name}.mp4", options={"output": f"bucket://files/out/{name}"})
        job = ended(client, "store", "failed", f"{name}-recon")
        assert job["error"].startswith("the result is on this server alone: ") and reason in job["error"]
        assert (tmp_path / "data" / f"{name}-recon" / "starts.txt").is_file()
        assert [path.name for path in there.glob("*")] == ["mine.txt"] * (name == "taken")
    refused = next(job for job in client.get("/api/jobs").json()["jobs"] if job["name"] == "taken-recon")
    (there / "mine.txt").unlink()
    assert client.post(f"/api/jobs/{refused['id']}/resume").status_code == 200
    ended(client, "store", "done", "taken-recon")
    state = [path.read_text(errors="replace") for path in (tmp_path / "data").rglob("*.*") if path.is_file()]
    assert not any(word in text for text in [*state, client.get("/api/jobs").text] for word in (SECRET, "signature="))


def test_what_cannot_be_fetched_is_told(tmp_path: Path, bucket: Path, client: TestClient) -> None:
    (bucket / "in" / "notes.mp4").write_text("words")
    for file, reason in (("notes.mp4", "is no video"), ("missing.mp4", "FileNotFoundError")):
        made = client.post("/api/sources", json={"address": f"bucket://files/in/{file}", "name": file}).json()
        assert reason in ended(client, "reconstruct", "failed", made["name"])["error"]
    assert not list((tmp_path / "data").rglob("input"))


def test_the_size_of_what_is_fetched_is_bounded(tmp_path: Path) -> None:
    fsspec.filesystem("memory").pipe_file("/in/long.mp4", bytes(100))
    get("memory://in/long.mp4", tmp_path / "input", 100)
    assert (tmp_path / "input").stat().st_size == 100
    with pytest.raises(InputError, match="larger than"):
        get("memory://in/long.mp4", tmp_path / "input", 99)
    assert not (tmp_path / "input").exists()


@pytest.mark.parametrize("address", FOREIGN)
def test_other_addresses_are_refused(bucket: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="not in a store that this server may use") as refused:
        checked_address(address)
    assert "word" not in str(refused.value)


def test_no_store_is_used_until_the_operator_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORES_VARIABLE, raising=False)
    with pytest.raises(ConfigError, match=STORES_VARIABLE):
        checked_store("s3://bucket/folder/film.mp4")
    assert checked_address("https://host/film.mp4") == "https://host/film.mp4", "a stream is none"
    for wrong in ("file:///srv", "s3://key:word@bucket/a", "memory://a", "https://host/a", "s3://a/../b", "bucket"):
        monkeypatch.setenv(STORES_VARIABLE, f"s3://bucket, {wrong}")
        with pytest.raises(ConfigError, match="entry 2") as refused:
            store_pattern()
        assert "word" not in str(refused.value)


def test_the_description_tells_which_stores_there_are(client: TestClient) -> None:
    body = client.get("/openapi.json").json()["paths"]["/api/sources"]["post"]["requestBody"]
    assert "bucket://files/in" in json.dumps(body).replace("\\\\", "")
