"""Which weights ship with the program. Kept apart from what reads them: naming them needs no torch."""

from pathlib import Path

EMBEDDED_PRESET = "small"
EMBEDDED_WEIGHTS = Path(__file__).parent / "small.safetensors"
