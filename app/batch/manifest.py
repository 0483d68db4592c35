"""``manifest.json``: the sign that a scene's result is complete, written last, with every file's size and hash.

A scene is reconstructed in a working folder of its own under ``OUT/.work`` and then moved, file by file, to its place.
A worker that is killed, or cut off and replaced, therefore never leaves anything that could be taken for a result.

What a manifest knows a file by: SHA-256 (FIPS 180-4), of large files by blocks, so that threads may share it.

Marks of depth files, made while frames come: at the end there would be gigabytes to read at once.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stream_recon.app.core.json_text import parse_json
from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.evaluation.metrics import upgraded_metrics
from stream_recon.app.result.cameras import CAMERAS_NAME, TRAJECTORY_NAME
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path
from stream_recon.app.result.files import PART_SUFFIX, output_errors, replace_file
from stream_recon.app.result.lock import LOCK_NAME
from stream_recon.app.result.run_record import PROGRAM, RUN_NAME
from stream_recon.app.result.tracks import TRACKS_NAME
from stream_recon.configs.errors import OutputError
from stream_recon.configs.schema import upgraded_preset

BLOCK_BYTES = 1 << 26
READ_BYTES = 1 << 20
IN_BLOCKS = "blocks:"
"""Before the SHA-256 of the blocks' own ones, for files larger than one block."""
THREADS = 8


def file_digest(path: Path, known: str | None = None) -> str:
    """Of a file's content, in the way of a ``known`` digest: manifests of earlier versions have large files whole.

    Raises:
        OSError: it cannot be read.
    """

    def block(begin: int) -> bytes:
        with path.open("rb") as file:
            file.seek(begin)
            return _read(file, BLOCK_BYTES)

    size = path.stat().st_size
    if _is_whole(size, known):
        with path.open("rb") as file:
            return _read(file, size).hex()
    with ThreadPoolExecutor(THREADS, "digest") as pool:
        return _of_blocks(pool.map(block, range(0, size, BLOCK_BYTES)))


def stream_digest(file: IO[bytes], size: int, known: str | None = None) -> str:
    """`file_digest` of what can only be read from front to back. Raises what reading raises."""
    if _is_whole(size, known):
        return _read(file, size).hex()
    return _of_blocks(_read(file, BLOCK_BYTES) for _ in range(0, size, BLOCK_BYTES))


def _is_whole(size: int, known: str | None) -> bool:
    return size <= BLOCK_BYTES or (known is not None and not known.startswith(IN_BLOCKS))


def _of_blocks(digests: Iterator[bytes]) -> str:
    return IN_BLOCKS + hashlib.sha256(b"".join(digests)).hexdigest()


def _read(file: IO[bytes], size: int) -> bytes:
    """The digest of the next ``size`` bytes, or of what is left."""
    digest = hashlib.sha256()
    while size > 0 and (data := file.read(min(size, READ_BYTES))):
        digest.update(data)
        size -= len(data)
    return digest.digest()


MANIFEST_NAME = "manifest.json"
SIGNS = (MANIFEST_NAME, RUN_NAME)
"""Either of them tells whose folder it is."""
OWN_NAMES = (MANIFEST_NAME, TRAJECTORY_NAME, CAMERAS_NAME, POINTS_NAME, TRACKS_NAME)
OWN_DEPTH = re.compile(r"\d{6,}\.npz(\.part)?")
HASH_THREADS = 8
RENAMED_IN_PLOT = {"ours": "estimate", "truth": "ground_truth"}
"""Keys of a plot in manifests of version 0.1, and the present ones."""

Mark = tuple[int, str]
"""Of a file: its size in bytes and its digest, see `file_digest`."""


@dataclass(frozen=True)
class Check:
    """What a look at a scene's folder found."""

    result: dict[str, Any] | None
    """What was recorded when the scene was finished; None if it has to be done (again)."""
    reason: str
    """Why it has to be; empty for a complete one."""


def check_manifest(folder: Path, key: Mapping[str, Any]) -> Check:
    """See whether ``folder`` holds the complete result of what ``key`` describes. Every file is read and hashed.

    Raises:
        OutputError: the folder cannot be read.
    """
    path = folder / MANIFEST_NAME
    with output_errors(folder):
        if not path.is_file():
            return Check(None, "not there" if not folder.exists() else "unfinished")
        sizes = {name: entry.stat().st_size for name, entry in _files(folder)}
        return check_content(path.read_bytes(), key, sizes, lambda name, known: file_digest(folder / name, known))


def check_content(
    manifest: bytes, key: Mapping[str, Any], sizes: Mapping[str, int], digest: Callable[[str, str], str]
) -> Check:
    """`check_manifest` of files anywhere: their ``sizes`` in bytes by name, and the ``digest`` of each in the way of
    the one recorded."""
    try:
        content = parse_json(manifest)
        recorded, result = content["key"], upgraded_result(content["result"])
        expected = _marks(content)
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return Check(None, "its manifest is damaged")
    if isinstance(recorded, dict) and "preset" in recorded:
        recorded = {**recorded, "preset": upgraded_preset(recorded["preset"])}
    if recorded != key:
        return Check(None, f"made with other {_difference(recorded, key)}")
    for name, (size, _) in expected.items():
        if sizes.get(name) != size:
            return Check(None, f"{name} is missing or changed")
    # Side by side: of small files far away, the waiting takes longer than the reading.
    with ThreadPoolExecutor(HASH_THREADS, "check") as pool:
        known = [mark for _, mark in expected.values()]
        for name, wanted, found in zip(expected, known, pool.map(digest, expected, known), strict=True):
            if found != wanted:
                pool.shutdown(cancel_futures=True)
                return Check(None, f"{name} is missing or changed")
    return Check(result, "")


def upgraded_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a scene of this or an earlier version, by its present keys."""
    upgraded = dict(result)
    if upgraded.get("figures") is not None:
        upgraded["figures"] = upgraded_metrics(upgraded["figures"])
    if "plot" in upgraded:
        upgraded["plot"] = {RENAMED_IN_PLOT.get(name, name): points for name, points in upgraded["plot"].items()}
    return upgraded


def recorded_files(folder: Path) -> dict[str, Mark]:
    """What the manifest of a finished result says of each file. Raises OutputError."""
    path = folder / MANIFEST_NAME
    try:
        return _marks(parse_json(path.read_bytes()))
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error


def _marks(manifest: Mapping[str, Any]) -> dict[str, Mark]:
    return {name: (int(size), str(digest)) for name, (size, digest) in manifest["files"].items()}


def _difference(recorded: Any, key: Mapping[str, Any]) -> str:
    if not isinstance(recorded, dict):
        return "options"
    return ", ".join(name for name in key if recorded.get(name) != key[name]) or "options"


def manifest_of(
    work: Path, key: Mapping[str, Any], result: Mapping[str, Any], known: Mapping[str, Mark] | None = None
) -> bytes:
    """The content of the manifest for the result in ``work``, of what ``key`` describes, with ``result`` to record.

    ``known``: marks of files, by name, that need not be read; of files that are not there they do not count.

    Raises:
        OutputError: a file cannot be read.
    """
    known = known or {}
    with output_errors(work):
        names = file_names(work)
        with ThreadPoolExecutor(HASH_THREADS, "hash") as pool:
            marks = pool.map(lambda name: known.get(name) or mark_of(work / name), names)
            files = dict(zip(names, marks, strict=True))
    manifest = {"program": PROGRAM, "format": 1, "key": key, "result": result, "files": files}
    return (json.dumps(manifest, indent=1, allow_nan=False) + "\n").encode()


def publish(
    work: Path, folder: Path, key: Mapping[str, Any], result: Mapping[str, Any], known: Mapping[str, Mark] | None = None
) -> None:
    """Move the result in ``work`` to ``folder``, in place of an earlier one, and write the manifest last.

    Raises:
        OutputError: see `check_target`; or nothing can be written there.
    """
    check_target(folder)
    manifest = manifest_of(work, key, result, known)
    with output_errors(folder):
        names = file_names(work)
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        for path in _own_files(folder) if _is_ours(folder) else ():
            # run.json stays until the new one replaces it, so that the folder is known as ours at any moment.
            if path.name != RUN_NAME:
                path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        moved: set[str] = set()
        for name in names:
            place = name.rpartition("/")[0]
            if place in moved:
                continue
            if place and _move_folder(work / place, folder / place):
                moved.add(place)
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).replace(folder / name)
    replace_file(folder / MANIFEST_NAME, lambda file: file.write(manifest))


def mark_of(path: Path) -> Mark:
    """Of a file as it is now. Raises OSError."""
    return path.stat().st_size, file_digest(path)


def _move_folder(source: Path, target: Path) -> bool:
    """Move a folder as a whole where nothing, or an empty one, is at its place; False where it has to be in pieces."""
    with suppress(OSError):
        source.rename(target)
        return True
    return False


def file_names(folder: Path) -> list[str]:
    """Names, relative to it, of all files of a folder: first what tells whose it is, should a move be cut short."""
    return sorted(sorted(name for name, _ in _files(folder)), key=lambda name: name != RUN_NAME)


def check_target(folder: Path) -> None:
    """Raises OutputError if ``folder`` holds something that was not written by this program."""
    with output_errors(folder):
        if folder.is_dir() and any(p.name != LOCK_NAME for p in folder.iterdir()) and not _is_ours(folder):
            raise OutputError(f"{folder} holds other files: move them away, or choose another folder with -o")
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file: move it away, or choose another folder with -o")


def _files(folder: Path, prefix: str = "") -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Names relative to the folder; what a folder lists already says of each what it is."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder / entry.name, f"{prefix}{entry.name}/")
            elif entry.is_file():
                yield prefix + entry.name, entry


def _is_ours(folder: Path) -> bool:
    for name in SIGNS:
        with suppress(OSError):
            if is_own_record((folder / name).read_bytes()):
                return True
    return False


def is_own_record(data: bytes) -> bool:
    """Whether the content of one of the files called as in `SIGNS` was written by this program."""
    try:
        record = parse_json(data)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("program") == PROGRAM


def is_own_name(name: str) -> bool:
    """Whether a run writes a file of that name, relative to its result folder."""
    folder, _, file = name.rpartition("/")
    if folder:
        return folder == DEPTH_FOLDER and OWN_DEPTH.fullmatch(file) is not None
    return file.removesuffix(PART_SUFFIX) in (*OWN_NAMES, RUN_NAME)


def remove_result(folder: Path, *, keep_folder: bool = False) -> None:
    """Remove what a run writes from a folder known to be ours, the manifest first, and the folder if it is then empty.

    ``keep_folder``: of a folder that somebody holds, its lock's file and itself stay.

    Raises:
        OutputError: a file cannot be removed.
    """
    with output_errors(folder):
        if not is_real_folder(folder):
            return
        for path in _own_files(folder):
            if not keep_folder or path.name != LOCK_NAME:
                path.unlink(missing_ok=True)
        for place in (folder / DEPTH_FOLDER, *(() if keep_folder else (folder,))):
            if is_real_folder(place) and not any(place.iterdir()):
                place.rmdir()


def is_real_folder(path: Path) -> bool:
    """Whether a folder is here itself: what a link leads to is not ours to remove."""
    return path.is_dir() and not path.is_symlink()


def _own_files(folder: Path) -> Iterator[Path]:
    """The manifest comes first, what tells the folder as ours last."""
    for name in OWN_NAMES:
        yield folder / name
        yield folder / (name + PART_SUFFIX)
    depth = folder / DEPTH_FOLDER
    if is_real_folder(depth):
        yield from [path for path in depth.iterdir() if OWN_DEPTH.fullmatch(path.name)]
    yield folder / LOCK_NAME
    yield folder / (RUN_NAME + PART_SUFFIX)
    yield folder / RUN_NAME


class DepthMarks:
    """Hears of each frame once it is written. A depth file never changes, but may be taken away again."""

    def __init__(self, folder: Path) -> None:
        self.marks: dict[str, Mark] = {}
        """By the files' names in the folder."""
        self._folder = folder

    def add(self, result: FrameResult) -> None:
        """Raises OutputError."""
        path = depth_path(self._folder, result.index)
        with output_errors(path):
            if path.is_file():
                self.marks[path.relative_to(self._folder).as_posix()] = mark_of(path)

    def revise(self, revision: Revision) -> None:
        """Moves frames, and no depth file."""
