"""Sizes of memory and disks in the form of command-line options."""

import re

from stream_recon.configs.errors import ConfigError

UNITS = {"M": 10**6, "G": 10**9, "T": 10**12, "MI": 2**20, "GI": 2**30, "TI": 2**40}
"""Bytes per unit: decimal ones, and binary ones with an I."""


def parse_size(text: str, option: str) -> int:
    """Number of bytes of ``8GB``, ``8G`` (10^9 each), ``8GiB`` (2^30), ``8000MB`` and similar, given with ``option``.

    Raises ConfigError: anything else.
    """
    match = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([MGT]I?)B?\s*", text.upper())
    if not match:
        raise ConfigError(f"{option} must be a size such as 8GB, 8GiB or 8000MB, not {text[:100]!r}")
    return int(float(match[1]) * UNITS[match[2]])
