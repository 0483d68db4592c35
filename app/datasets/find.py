"""Search a folder for scenes."""

from collections.abc import Collection
from pathlib import Path

from stream_recon.app.datasets.scene import Scene


def find_scenes(root: Path, dataset: str | None = None, exclude: Collection[Path] = ()) -> list[Scene]:
    """All scenes under ``root`` (a folder, or one video file), in natural order of their paths. Writes nothing.

    Args:
        dataset: name of a reader in `READERS`; else each folder's layout is recognised by its files.
        exclude: folders that are not searched, such as the results'.

    Raises:
        InputError: no such folder, or no scene in it (says what was looked for).
        ConfigError: no reader called ``dataset``.
    """
    raise NotImplementedError
