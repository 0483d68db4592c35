"""Files of arrays: read side by side, and never larger than a run writes them."""

import io
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_recon.app.result import tracks
from stream_recon.app.result.depth import ARRAYS, depth_path, read_depth
from stream_recon.app.result.tracks import SparseTracks, read_arrays, read_tracks
from stream_recon.configs.errors import OutputError
from tests.app.result_files import write_tracks


def some_tracks(count: int = 5) -> SparseTracks:
    index = np.arange(count, dtype=np.int32)
    return SparseTracks(
        points=np.ones((count, 3)),
        errors=np.ones(count, np.float32),
        frame=index,
        point=index,
        pixel=np.ones((count, 2), np.float32),
        lens=np.ones(4),
        source_size=np.array([4, 3], np.int32),
        loops=np.zeros((0, 2), np.int32),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"point": np.full(5, 5, np.int32)},
        {"point": np.full(5, -1, np.int32)},
        {"points": np.full((5, 3), np.nan)},
        {"pixel": np.ones((4, 2), np.float32)},
        {"frame": np.ones(5)},
        {"lens": np.zeros(4)},
        {"loops": np.zeros(3, np.int32)},
    ],
)
def test_tracks_that_do_not_fit_together_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write_tracks(tmp_path, replace(some_tracks(), **wrong))
    with pytest.raises(OutputError, match=r"tracks.npz is damaged"):
        read_tracks(tmp_path)


def test_many_threads_read_tracks_at_once(tmp_path: Path) -> None:
    write_tracks(tmp_path, some_tracks())
    with ThreadPoolExecutor(8) as pool:
        for tracks in pool.map(lambda _: read_tracks(tmp_path), range(400)):
            assert tracks is not None and len(tracks.points) == 5


def test_one_thread_at_a_time_is_in_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails in them fails too rarely to be waited for."""
    write_tracks(tmp_path, some_tracks())
    inside = []
    load = np.lib.format.read_array

    def watched(*arguments: Any, **named: Any) -> Any:
        inside.append(tracks._headers.locked())
        return load(*arguments, **named)

    monkeypatch.setattr(np.lib.format, "read_array", watched)
    read_tracks(tmp_path)
    assert inside and all(inside)


def test_a_file_that_unpacks_to_more_than_any_run_writes_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.savez_compressed(content, points=np.zeros(2**20))
    raw = bytearray(content.getvalue())
    with zipfile.ZipFile(io.BytesIO(bytes(raw))) as archive:
        size = archive.infolist()[0].file_size
    at = raw.rfind(size.to_bytes(4, "little"))
    raw[at : at + 4] = (2**31 + 1).to_bytes(4, "little")
    with pytest.raises(ValueError, match="too large"):
        read_arrays(io.BytesIO(bytes(raw)), ["points"])
    (tmp_path / "tracks.npz").write_bytes(raw)
    with pytest.raises(OutputError, match="is damaged"):
        read_tracks(tmp_path)


def test_no_tracks_are_none(tmp_path: Path) -> None:
    assert read_tracks(tmp_path) is None
    (tmp_path / "tracks.npz").write_bytes(b"junk")
    with pytest.raises(OutputError, match="is damaged"):
        read_tracks(tmp_path)


class Hostile:
    """Makes a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


def test_code_in_a_file_of_arrays_is_never_run(tmp_path: Path) -> None:
    marker = tmp_path / "run"
    (tmp_path / "depth").mkdir()
    evil = np.array([Hostile(marker)], object)
    np.savez(depth_path(tmp_path, 0), **dict.fromkeys(ARRAYS, evil))
    np.savez(tmp_path / "tracks.npz", **dict.fromkeys(vars(some_tracks()), evil))
    with pytest.raises(OutputError, match="is missing or damaged"):
        read_depth(depth_path(tmp_path, 0))
    with pytest.raises(OutputError, match="is damaged"):
        read_tracks(tmp_path)
    assert not marker.exists()
    np.load(tmp_path / "tracks.npz", allow_pickle=True)["lens"]
    assert marker.exists(), "it would have been"


@pytest.mark.parametrize("stored", [True, False])
def test_arrays_may_be_longer_than_any_list_of_entries(stored: bool) -> None:
    points = np.random.default_rng(0).normal(size=10**6)
    file = io.BytesIO()
    (np.savez if stored else np.savez_compressed)(file, points=points)
    np.testing.assert_array_equal(read_arrays(file, ["points"], stored=stored)["points"], points)
