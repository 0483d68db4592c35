"""Which weights ship with the program, and what tells weights apart. Kept from what reads them: it needs no torch."""

import hashlib
from pathlib import Path

from stream_recon.configs.errors import WeightsError
from stream_recon.configs.schema import Preset, load_preset

EMBEDDED_PRESET = "small"
EMBEDDED_WEIGHTS = Path(__file__).parent / "small.safetensors"


def weights_file(preset: Preset, chosen: Path | None) -> Path:
    """The file to load for a preset: the one chosen, else the embedded one.

    Raises:
        WeightsError: no file there, or none chosen for a network of another shape than the embedded one's.
    """
    if chosen is None and preset.network != load_preset(EMBEDDED_PRESET).network:
        raise WeightsError(f"preset {preset.name} has no embedded weights: give a file with --weights")
    file = chosen or EMBEDDED_WEIGHTS
    if not file.is_file():
        what = f"{file} is no file" if file.exists() else f"no weights at {file}"
        raise WeightsError(f"{what}: give a .safetensors file with --weights")
    return file


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
