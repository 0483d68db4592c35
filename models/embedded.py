"""The weights that ship with the program, and digests of weights. It needs no torch."""

import hashlib
import json
from pathlib import Path

from stream_recon.configs.errors import WeightsError
from stream_recon.configs.schema import Preset, load_preset

LARGEST_HEAD = 100_000_000
"""Bytes of a safetensors head, the library's limit."""
EMBEDDED_PRESET = "small"
"""Preset of the weights that ship with the program."""
EMBEDDED_WEIGHTS = Path(__file__).parent / "small.safetensors"


def weights_file(preset: Preset, chosen: Path | None) -> Path:
    """The weights file for a preset: the chosen one, else the embedded one.

    Raises WeightsError: there is no such file, or none was chosen for a network of other sizes than the embedded one's.
    """
    if chosen is None and preset.network != load_preset(EMBEDDED_PRESET).network:
        raise WeightsError(f"preset {preset.name} has no embedded weights: give a file with --weights")
    file = chosen or EMBEDDED_WEIGHTS
    if not file.is_file():
        what = f"{file} is not a file" if file.exists() else f"no weights at {file}"
        raise WeightsError(f"{what}: give a .safetensors file with --weights")
    if file.suffix == ".safetensors" and not has_whole_content(file):
        raise WeightsError(f"{file} is not a readable safetensors file: its size is not the one that it states")
    return file


def has_whole_content(file: Path) -> bool:
    """Whether a safetensors file has a head, and the size that it states; a file of zeros has none."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= LARGEST_HEAD:
                return False
            head = json.loads(opened.read(length))
        ends = [entry["data_offsets"][1] for name, entry in head.items() if name != "__metadata__"]
        return bool(file.stat().st_size == 8 + length + max(ends, default=0))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return False


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
