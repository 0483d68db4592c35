"""Search for scenes under a folder."""

import hashlib
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Collection
from pathlib import Path

from stream_recon.app.datasets.catalogue import IMAGES, READERS, VIDEO, DatasetReader, list_datasets, reader_named
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.result.cameras import CAMERAS_NAME
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.app.sources.image_files import natural_key
from stream_recon.configs.errors import InputError

SEPARATOR = "__"
"""Separator of folders in a scene's name, which is rare in names of folders."""
MAX_NAME_BYTES = 200
"""Longest name of a scene: file systems allow 255 bytes, with room for a hash and suffixes."""
MAX_DEPTH = 100
"""Deepest folder below the root: far beyond any data set, so that endless trees end."""

logger = logging.getLogger(__name__)


def find_scenes(root: Path, dataset: str | None = None, exclude: Collection[Path] = ()) -> list[Scene]:
    """Scenes under ``root`` (a folder, or one video file), in natural order of their paths.

    A recognised scene is not searched for further ones. Hidden folders, result folders and ``exclude`` are skipped.
    Links are followed, but no folder is searched twice. Of a folder of images and its subfolders that with more
    images counts.

    Args:
        dataset: name of the only reader to use; None: all of `READERS`.
        exclude: folders that are not searched, such as that of results.

    Raises InputError: no such folder, or no scene in it; ConfigError: no reader called ``dataset``.
    """
    readers = READERS if dataset is None else (reader_named(dataset),)
    root = Path(root).absolute()
    if root.is_dir():
        scenes = _Search(readers, exclude).below(root)
    elif not root.exists():
        raise InputError(f"no such folder: {root}")
    else:
        scenes = [(root, VIDEO)] if VIDEO in readers and VIDEO.recognise(root) else []
    if not scenes:
        raise InputError(_nothing(root, readers[0] if dataset else None))
    names = scene_names(root, [path for path, _ in scenes])
    return [Scene(name, r.name, path, r.count(path)) for name, (path, r) in zip(names, scenes, strict=True)]


Recognised = list[tuple[Path, DatasetReader]]
"""Scenes with their readers."""
SYSTEM_NAMES = (".", "@eaDir", "$RECYCLE", "__MACOSX", "lost+found")
"""Beginnings of names of hidden files, and of folders that systems and network drives make."""


class _Search:
    """Recursive search with a set of readers."""

    def __init__(self, readers: tuple[DatasetReader, ...], exclude: Collection[Path]) -> None:
        self._layouts = [reader for reader in readers if reader not in (VIDEO, IMAGES)]
        self._videos, self._images = VIDEO in readers, IMAGES in readers
        self._visited = {identity for path in exclude if (identity := _identity(path)) is not None}

    def below(self, folder: Path, depth: int = 0) -> Recognised:
        """Scenes in a folder. Unreadable and too deep folders are skipped with a warning."""
        identity = _identity(folder)
        if identity in self._visited:
            return []
        if depth > MAX_DEPTH:
            logger.warning("%s is more than %d folders deep and is skipped", folder, MAX_DEPTH)
            return []
        if identity is not None:
            self._visited.add(identity)
        try:
            # A folder has its own name rather than that of a link to it.
            entries = sorted(folder.iterdir(), key=lambda entry: (entry.is_symlink(), natural_key(entry.name)))
            if all((folder / name).is_file() for name in (RUN_NAME, CAMERAS_NAME)):
                return []
            layout = next((reader for reader in self._layouts if reader.recognise(folder)), None)
            if layout is not None:
                return [(folder, layout)]
            folders = {entry for entry in entries if entry.is_dir()}
            has_images = self._images and IMAGES.recognise(folder)
        except OSError as error:
            logger.warning("%s cannot be read and is skipped: %s", folder, error.strerror)
            return []
        inner = self._inside(entries, folders, depth + 1)
        return [(folder, IMAGES)] if has_images and _outnumbers(folder, inner) else inner

    def _inside(self, entries: list[Path], folders: set[Path], depth: int) -> Recognised:
        inner: Recognised = []
        for entry in entries:
            if entry.name.startswith(SYSTEM_NAMES):
                continue
            if entry in folders:
                inner += self.below(entry, depth)
            elif self._videos and VIDEO.recognise(entry):
                inner.append((entry, VIDEO))
        return inner


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a folder, equal for all paths to it; None where it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _outnumbers(folder: Path, inner: Recognised) -> bool:
    """Whether a folder has as many images as each inner scene, and all of these are folders of images."""
    count = IMAGES.count(folder) or 0
    return all(reader is IMAGES and (IMAGES.count(path) or 0) <= count for path, reader in inner)


def _nothing(root: Path, reader: DatasetReader | None) -> str:
    if reader is not None:
        return f"no {reader.title} under {root}: looked for {reader.files}"
    names = ", ".join(name for name, _, _ in list_datasets())
    return f"no scene under {root}: looked for {names} ('stream-recon datasets' lists the files of each)"


def scene_names(root: Path, paths: list[Path]) -> list[str]:
    """Folder names of scenes: their paths under ``root`` with ``__`` between folders.

    Unicode and spaces stay. Equal names (ignoring case) get a hash of their path: no name depends on the scenes' order.
    """
    relative = [path.relative_to(root).as_posix() for path in paths]
    names = [_safe(root.resolve().name if path == "." else path) for path in relative]
    count = Counter(name.casefold() for name in names)
    return [
        _shortened(name, path, always=count[name.casefold()] > 1) for name, path in zip(names, relative, strict=True)
    ]


def _safe(path: str) -> str:
    text = unicodedata.normalize("NFC", path).replace("/", SEPARATOR)
    text = re.sub(r'[\\:*?"<>|\x00-\x1f\x7f\ud800-\udfff]', "_", text)
    return text.strip(" .") or "scene"


def _shortened(name: str, path: str, *, always: bool) -> str:
    encoded = name.encode()
    if len(encoded) <= MAX_NAME_BYTES and not always:
        return name
    digest = hashlib.sha256(path.encode(errors="surrogateescape")).hexdigest()[:8]
    return f"{encoded[:MAX_NAME_BYTES].decode(errors='ignore')}~{digest}"
