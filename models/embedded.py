"""The weights that ship with the program, and digests of weights. It needs no torch."""

import hashlib
from pathlib import Path

from stream_recon.configs.errors import WeightsError
from stream_recon.configs.schema import Preset, load_preset

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
    return file


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
