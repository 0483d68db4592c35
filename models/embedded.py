"""Which weights ship with the program, and what tells weights apart. Kept from what reads them: it needs no torch."""

import hashlib
from pathlib import Path

EMBEDDED_PRESET = "small"
EMBEDDED_WEIGHTS = Path(__file__).parent / "small.safetensors"


def file_sha256(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
