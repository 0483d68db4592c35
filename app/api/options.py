"""Checks of options whose values the command line's parser checks otherwise."""

from collections.abc import Collection

from stream_recon.configs.errors import ConfigError


def chosen(name: str, value: object, choices: Collection[str]) -> None:
    """Raises ConfigError where an option has none of its values."""
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}: use {', '.join(choices)}")


def dense_side_of(dense: str, dense_side: int) -> int | None:
    """Longer side of dense depth maps; None: none are made. Raises ConfigError."""
    chosen("dense", dense, ("on", "off"))
    return dense_side if dense == "on" else None
