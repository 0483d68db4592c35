"""What a manifest knows a file by: SHA-256 (FIPS 180-4), of large files by blocks, so that threads may share it."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

BLOCK_BYTES = 1 << 26
READ_BYTES = 1 << 20
IN_BLOCKS = "blocks:"
"""Before the SHA-256 of the blocks' own ones, for files larger than one block."""
THREADS = 8


def file_digest(path: Path, known: str | None = None) -> str:
    """Of a file's content, in the way of a ``known`` digest: manifests of earlier versions have large files whole.

    Raises:
        OSError: it cannot be read.
    """

    def block(begin: int) -> bytes:
        with path.open("rb") as file:
            file.seek(begin)
            return _read(file, BLOCK_BYTES)

    size = path.stat().st_size
    if _is_whole(size, known):
        with path.open("rb") as file:
            return _read(file, size).hex()
    with ThreadPoolExecutor(THREADS, "digest") as pool:
        return _of_blocks(pool.map(block, range(0, size, BLOCK_BYTES)))


def stream_digest(file: IO[bytes], size: int, known: str | None = None) -> str:
    """`file_digest` of what can only be read from front to back. Raises what reading raises."""
    if _is_whole(size, known):
        return _read(file, size).hex()
    return _of_blocks(_read(file, BLOCK_BYTES) for _ in range(0, size, BLOCK_BYTES))


def _is_whole(size: int, known: str | None) -> bool:
    return size <= BLOCK_BYTES or (known is not None and not known.startswith(IN_BLOCKS))


def _of_blocks(digests: Iterator[bytes]) -> str:
    return IN_BLOCKS + hashlib.sha256(b"".join(digests)).hexdigest()


def _read(file: IO[bytes], size: int) -> bytes:
    """The digest of the next ``size`` bytes, or of what is left."""
    digest = hashlib.sha256()
    while size > 0 and (data := file.read(min(size, READ_BYTES))):
        digest.update(data)
        size -= len(data)
    return digest.digest()
