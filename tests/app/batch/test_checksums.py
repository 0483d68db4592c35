import hashlib
import io
from functools import partial
from pathlib import Path

import pytest

from stream_recon.app.batch.manifest import file_digest, stream_digest

digest = partial(file_digest, block_bytes=100)


@pytest.mark.parametrize("size", [0, 1, 99, 100])
def test_a_small_file_has_its_plain_digest(tmp_path: Path, size: int) -> None:
    content = bytes(range(256))[:size]
    (tmp_path / "a").write_bytes(content)
    assert digest(tmp_path / "a") == hashlib.sha256(content).hexdigest() == stream_digest(io.BytesIO(content), size)


@pytest.mark.parametrize("size", [101, 200, 250, 1234])
def test_a_large_file_is_hashed_in_blocks(tmp_path: Path, size: int) -> None:
    content = bytes(n * n % 251 for n in range(size))
    (tmp_path / "a").write_bytes(content)
    parts = b"".join(hashlib.sha256(content[begin : begin + 100]).digest() for begin in range(0, size, 100))
    expected = f"blocks:{hashlib.sha256(parts).hexdigest()}"
    assert digest(tmp_path / "a") == expected == stream_digest(io.BytesIO(content), size, 100)


def test_any_changed_byte_changes_the_digest(tmp_path: Path) -> None:
    content = bytearray(1050)
    (tmp_path / "a").write_bytes(content)
    before = digest(tmp_path / "a")
    for position in (0, 99, 100, 512, 1049):
        changed = bytearray(content)
        changed[position] = 1
        (tmp_path / "a").write_bytes(changed)
        assert digest(tmp_path / "a") != before
