import hashlib
import io
from pathlib import Path

import pytest

from stream_recon.app.batch import manifest
from stream_recon.app.batch.manifest import file_digest, stream_digest


@pytest.fixture
def blocks_of_100(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "BLOCK_BYTES", 100)
    monkeypatch.setattr(manifest, "READ_BYTES", 7)


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_small_file_has_its_plain_digest(tmp_path: Path, blocks_of_100: None, size: int) -> None:
    content = bytes(range(256))[:size]
    (tmp_path / "a").write_bytes(content)
    assert (
        file_digest(tmp_path / "a") == hashlib.sha256(content).hexdigest() == stream_digest(io.BytesIO(content), size)
    )


@pytest.mark.parametrize("size", [101, 200, 250, 1234])
def test_a_large_file_is_hashed_in_blocks(tmp_path: Path, blocks_of_100: None, size: int) -> None:
    content = bytes(n * n % 251 for n in range(size))
    (tmp_path / "a").write_bytes(content)
    parts = b"".join(hashlib.sha256(content[begin : begin + 100]).digest() for begin in range(0, size, 100))
    expected = f"blocks:{hashlib.sha256(parts).hexdigest()}"
    assert file_digest(tmp_path / "a") == expected == stream_digest(io.BytesIO(content), size)
    assert file_digest(tmp_path / "a", expected) == expected


def test_a_plain_digest_of_a_large_file_is_compared_with_a_plain_one(tmp_path: Path, blocks_of_100: None) -> None:
    content = bytes(1000)
    (tmp_path / "a").write_bytes(content)
    plain = hashlib.sha256(content).hexdigest()
    assert file_digest(tmp_path / "a", plain) == plain == stream_digest(io.BytesIO(content), 1000, plain)


def test_any_changed_byte_changes_the_digest(tmp_path: Path, blocks_of_100: None) -> None:
    content = bytearray(1050)
    (tmp_path / "a").write_bytes(content)
    before = file_digest(tmp_path / "a")
    for position in (0, 99, 100, 512, 1049):
        changed = bytearray(content)
        changed[position] = 1
        (tmp_path / "a").write_bytes(changed)
        assert file_digest(tmp_path / "a") != before
