"""Arrays of a file in numpy's npz format, read by any thread, whatever the bytes are."""

import struct
import threading
import tokenize
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

DAMAGE = (
    OSError, LookupError, ValueError, ArithmeticError, TypeError, EOFError, SyntaxError, NotImplementedError,
    RecursionError, MemoryError, struct.error, tokenize.TokenError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What readers of zip files and of numpy's headers raise for bytes that nobody wrote."""
MOST_BYTES = 2**31
"""Of all arrays of a file: no run writes so much into one."""
_headers = threading.Lock()
"""numpy reads headers by Python's parser, which fails now and then before 3.11.8 when several threads are in it
(SystemError: AST constructor recursion depth mismatch, gh-106905)."""


def read_arrays(source: Path | BinaryIO, names: Iterable[str], *, stored: bool = False) -> dict[str, NDArray[Any]]:
    """The arrays of these names. ``stored``: a compressed file is refused.

    Raises one of `DAMAGE`, FileNotFoundError among them.
    """
    if isinstance(source, Path) and not source.is_file():
        raise FileNotFoundError("no such file")
    with zipfile.ZipFile(source) as content:
        entries = content.infolist()
        if stored and any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it is compressed, as no run writes it")
        if sum(entry.file_size for entry in entries) > MOST_BYTES:
            raise ValueError("it is larger than any that a run writes")
    if not isinstance(source, Path):
        source.seek(0)
    with np.load(source, allow_pickle=False) as file, _headers:
        return {name: file[name] for name in names}
