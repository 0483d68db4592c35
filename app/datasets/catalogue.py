"""The table of layouts, the most specific first: the first reader that recognises a folder gets it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.datasets.recording import Recording
from stream_recon.configs.errors import ConfigError


@dataclass(frozen=True)
class DatasetReader:
    """One layout."""

    name: str
    title: str
    files: str
    """The files that it is recognised by, in one line."""
    recognise: Callable[[Path], bool]
    count: Callable[[Path], int | None]
    """Number of images, cheaply; None where that fails (reading the scene says why)."""
    load: Callable[[Path], Recording] | None
    """Read everything but the images; None for a video, which `open_source` reads."""


READERS: tuple[DatasetReader, ...] = ()


def reader_named(name: str) -> DatasetReader:
    """
    Raises:
        ConfigError: no such reader.
    """
    for reader in READERS:
        if reader.name == name:
            return reader
    raise ConfigError(f"no data set called '{name}': there are {', '.join(r.name for r in READERS)}")


def list_datasets() -> list[tuple[str, str, str]]:
    """For a table: name (as for ``--dataset``), title, expected files; in the order in which they are tried."""
    return [(reader.name, reader.title, reader.files) for reader in READERS]
