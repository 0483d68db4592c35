"""``manifest.json``: marks a complete result, written last, with size and checksum of every file.

A scene is reconstructed in a working folder under ``OUT/.work``, and its files are then moved to the result folder.
So a worker that is killed, or cut off and replaced, never leaves anything that looks like a result.

Checksums are SHA-256 (FIPS 180-4); large files are hashed by blocks, in several threads. Depth files are hashed while
frames are written: at the end there would be gigabytes to read at once.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stream_recon.app.core.input_file import open_regular, parse_json, read_file
from stream_recon.app.core.output_file import PART_SUFFIX
from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.result.dense import DENSE_FOLDER
from stream_recon.app.result.depth import DEPTH_FOLDER, depth_path
from stream_recon.app.result.files import output_errors, replace_file
from stream_recon.app.result.lock import LOCK_NAME
from stream_recon.app.result.run_record import FILE_NAMES, PROGRAM, RUN_NAME
from stream_recon.configs.errors import OutputError

BLOCK_BYTES = 1 << 26
"""Block of a large file (64 MiB): large enough that a thread's start costs nothing."""
READ_BYTES = 1 << 20
"""Bytes read at a time, so that a block is never in memory as a whole."""
BLOCKS_PREFIX = "blocks:"
"""Prefix of a checksum over the checksums of blocks, for files larger than one block."""
HASH_THREADS = 8
"""Threads that hash: of small files on a network drive, waiting takes longer than reading."""
MANIFEST_NAME = "manifest.json"
IDENTITY_FILES = (MANIFEST_NAME, RUN_NAME)
"""Files of which either identifies a folder as a result of this program."""
FRAME_FOLDERS = (DEPTH_FOLDER, DENSE_FOLDER)
FRAME_FILE = re.compile(r"\d{6,}\.npz")
TEMPORARY_ENDING = re.compile(rf"\.[0-9a-f]{{16}}{re.escape(PART_SUFFIX)}$")
"""What the name of a file that is being written, or was when its process was killed, has at the end."""

Checksum = tuple[int, str]
"""Size of a file in bytes, and its digest as `file_digest` gives it."""


def file_digest(path: Path, block_bytes: int = BLOCK_BYTES) -> str:
    """Digest of a file; of a large one, a digest over those of its blocks. Raises OSError."""

    def block(begin: int) -> bytes:
        with open_regular(path) as file:
            file.seek(begin)
            return _hash_next(file, block_bytes)

    size = path.stat().st_size
    if size <= block_bytes:
        return block(0).hex()
    with ThreadPoolExecutor(HASH_THREADS, "digest") as pool:
        return _blocks_digest(pool.map(block, range(0, size, block_bytes)))


def stream_digest(file: IO[bytes], size: int, block_bytes: int = BLOCK_BYTES) -> str:
    """`file_digest` of a stream of ``size`` bytes that cannot seek. Raises what reading raises."""
    if size <= block_bytes:
        return _hash_next(file, size).hex()
    return _blocks_digest(_hash_next(file, block_bytes) for _ in range(0, size, block_bytes))


def _blocks_digest(digests: Iterator[bytes]) -> str:
    return BLOCKS_PREFIX + hashlib.sha256(b"".join(digests)).hexdigest()


def _hash_next(file: IO[bytes], size: int) -> bytes:
    """SHA-256 of the next ``size`` bytes, or of the rest if that is shorter."""
    digest = hashlib.sha256()
    while size > 0 and (data := file.read(min(size, READ_BYTES))):
        digest.update(data)
        size -= len(data)
    return digest.digest()


def file_checksum(path: Path) -> Checksum:
    """Size and digest of a file. Raises OSError."""
    return path.stat().st_size, file_digest(path)


class DepthChecksums:
    """Result listener that hashes each depth file once it is written. Depth files never change, but may be removed."""

    def __init__(self, folder: Path) -> None:
        self.checksums: dict[str, Checksum] = {}
        """Checksums by file name, relative to the folder."""
        self._folder = folder

    def add(self, result: FrameResult) -> None:
        """Raises OutputError."""
        path = depth_path(self._folder, result.index)
        with output_errors(path):
            if path.is_file():
                self.checksums[path.relative_to(self._folder).as_posix()] = file_checksum(path)

    def revise(self, revision: Revision) -> None:
        """Does nothing: revisions change poses, not depth files."""


@dataclass(frozen=True)
class CheckResult:
    """Whether a folder holds a finished result."""

    result: dict[str, Any] | None
    """Record of the finished scene; None if the scene has to be reconstructed."""
    reason: str
    """Why it has to be; empty for a finished one."""


def check_manifest(folder: Path, key: Mapping[str, Any]) -> CheckResult:
    """Whether ``folder`` holds the complete result of the job with that ``key``; hashes all. Raises OutputError."""
    path = folder / MANIFEST_NAME
    with output_errors(folder):
        if not path.is_file():
            return CheckResult(None, "not there" if not folder.exists() else "unfinished")
        sizes = {name: entry.stat().st_size for name, entry in _files(folder)}
        return check_files(read_file(path), key, sizes, lambda name: file_digest(folder / name))


def check_files(
    manifest: bytes, key: Mapping[str, Any], sizes: Mapping[str, int], digest: Callable[[str], str]
) -> CheckResult:
    """`check_manifest` for files in any store: ``sizes`` in bytes by file name; ``digest`` gives that of a file."""
    try:
        content = parse_json(manifest)
        recorded, result = content["key"], checked_result(content["result"])
        expected = _recorded_checksums(content)
        _ = [result[name] for name in ALWAYS_RECORDED]
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return CheckResult(None, "its manifest is damaged")
    if recorded != key:
        return CheckResult(None, f"made with other {_difference(recorded, key)}")
    for name, (size, _) in expected.items():
        if sizes.get(name) != size:
            return CheckResult(None, f"{name} is missing or changed")
    with ThreadPoolExecutor(HASH_THREADS, "check") as pool:
        for (name, (_, recorded_digest)), actual in zip(expected.items(), pool.map(digest, expected), strict=True):
            if actual != recorded_digest:
                pool.shutdown(cancel_futures=True)
                return CheckResult(None, f"{name} is missing or changed")
    return CheckResult(result, "")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(k, str) and _is_number(v) for k, v in value.items())


def _is_list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) for each in value)


RECORD_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("frames", "keyframes", "damaged"), _is_count),
    "seconds": lambda v: _is_number(v) and v >= 0,
    "device": lambda v: isinstance(v, str),
    "warnings": lambda v: _is_list_of(str, v),
    "metric": lambda v: v is None or isinstance(v, bool),
    "figures": lambda v: v is None or (isinstance(v, dict) and _are_numbers({k: v[k] for k in v if v[k] is not None})),
    **dict.fromkeys(("phases", "stitch_phases"), _are_numbers),
    "chunk_phases": lambda v: isinstance(v, list) and all(map(_are_numbers, v)),
    "metric_scale": lambda v: v is None or isinstance(v, dict),
    "overlaps": lambda v: _is_list_of(dict, v),
    "plot": lambda v: isinstance(v, dict) and all(x is None or isinstance(x, list) for x in v.values()),
}
"""Checks of the values in the record of a scene that tables and pages use."""
ALWAYS_RECORDED = "frames", "keyframes", "damaged", "seconds", "device", "warnings", "metric", "figures", "plot"
"""Entries that the record of each finished scene has."""


def checked_result(result: dict[str, Any]) -> dict[str, Any]:
    """Record of a scene, after `RECORD_CHECKS`.

    Raises ValueError or TypeError: one has a type or value that no batch writes.
    """
    for name, check in RECORD_CHECKS.items():
        if name in result and not check(result[name]):
            raise ValueError(f"'{name}' of a scene has a value that no batch writes")
    return result


def recorded_files(folder: Path) -> dict[str, Checksum]:
    """Checksums by file name, from the manifest of a finished result. Raises OutputError."""
    path = folder / MANIFEST_NAME
    try:
        return _recorded_checksums(parse_json(read_file(path)))
    except (OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error


def _recorded_checksums(manifest: Mapping[str, Any]) -> dict[str, Checksum]:
    return {name: (int(size), str(digest)) for name, (size, digest) in manifest["files"].items()}


def _difference(recorded: Any, key: Mapping[str, Any]) -> str:
    if not isinstance(recorded, dict):
        return "options"
    return ", ".join(name for name in key if recorded.get(name) != key[name]) or "options"


def manifest_bytes(
    work: Path, key: Mapping[str, Any], result: Mapping[str, Any], known: Mapping[str, Checksum] | None = None
) -> bytes:
    """Content of the manifest for the files in ``work``.

    ``key`` and ``result`` are key and record of the job. ``known`` has checksums by file name of files that need not be
    read; names without a file are ignored. Raises OutputError.
    """
    known = known or {}
    with output_errors(work):
        names = file_names(work)
        with ThreadPoolExecutor(HASH_THREADS, "hash") as pool:
            checksums = pool.map(lambda name: known.get(name) or file_checksum(work / name), names)
            files = dict(zip(names, checksums, strict=True))
    manifest = {"program": PROGRAM, "format": 1, "key": key, "result": result, "files": files}
    return (json.dumps(manifest, indent=1, allow_nan=False) + "\n").encode()


def publish(
    work: Path,
    folder: Path,
    key: Mapping[str, Any],
    result: Mapping[str, Any],
    known: Mapping[str, Checksum] | None = None,
) -> None:
    """Move the files in ``work`` to ``folder``, replacing an earlier result, and write the manifest last.

    Arguments are those of `manifest_bytes`. Raises OutputError, also where `check_target` does.
    """
    check_target(folder)
    manifest = manifest_bytes(work, key, result, known)
    with output_errors(folder):
        names = file_names(work)
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        for path in _own_files(folder) if _is_own_folder(folder) else ():
            # run.json stays until the new one replaces it, so that the folder is identified at any moment.
            if path.name != RUN_NAME:
                path.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        moved: set[str] = set()
        for name in names:
            subfolder = name.rpartition("/")[0]
            if subfolder and subfolder not in moved:
                # A folder is moved at once where that is possible: not where the target has files.
                with suppress(OSError):
                    (work / subfolder).rename(folder / subfolder)
                    moved.add(subfolder)
            if subfolder not in moved:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (work / name).replace(folder / name)
    replace_file(folder / MANIFEST_NAME, lambda file: file.write(manifest))


def file_names(folder: Path) -> list[str]:
    """Names of all files in a folder, relative to it; ``run.json`` first, to identify a move that was cut short."""
    return sorted(sorted(name for name, _ in _files(folder)), key=lambda name: name != RUN_NAME)


def check_target(folder: Path) -> None:
    """Raises OutputError if ``folder`` holds something that this program has not written."""
    with output_errors(folder):
        if folder.is_dir() and any(p.name != LOCK_NAME for p in folder.iterdir()) and not _is_own_folder(folder):
            raise OutputError(f"{folder} holds other files: move them away, or choose another folder with -o")
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file: move it away, or choose another folder with -o")


def _files(folder: Path, prefix: str = "") -> Iterator[tuple[str, "os.DirEntry[str]"]]:
    """Files beneath a folder, with names relative to it. The listing gives their types without further reads."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(folder / entry.name, f"{prefix}{entry.name}/")
            elif entry.is_file():
                yield prefix + entry.name, entry


def _is_own_folder(folder: Path) -> bool:
    for name in IDENTITY_FILES:
        with suppress(OSError):
            if is_own_record(read_file(folder / name)):
                return True
    return False


def is_own_record(data: bytes) -> bool:
    """Whether the content of one of `IDENTITY_FILES` was written by this program."""
    try:
        record = parse_json(data)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("program") == PROGRAM


def is_own_name(name: str) -> bool:
    """Whether a run or a batch writes a file of that name, relative to its result folder."""
    folder, _, file = TEMPORARY_ENDING.sub("", name).rpartition("/")
    if folder:
        return folder in FRAME_FOLDERS and FRAME_FILE.fullmatch(file) is not None
    return file in (*FILE_NAMES, MANIFEST_NAME, RUN_NAME, LOCK_NAME)


def remove_result(folder: Path, *, keep_folder: bool = False) -> None:
    """Remove a result's files from a folder known to be one of this program, and the folder once it is empty.

    ``keep_folder``: keep the folder and its lock file, which a process holds. Raises OutputError.
    """
    with output_errors(folder):
        if not is_real_folder(folder):
            return
        for path in _own_files(folder):
            if not keep_folder or path.name != LOCK_NAME:
                path.unlink(missing_ok=True)
        for emptied in (*(folder / name for name in FRAME_FOLDERS), *(() if keep_folder else (folder,))):
            if is_real_folder(emptied) and not any(emptied.iterdir()):
                emptied.rmdir()


def is_real_folder(path: Path) -> bool:
    """Whether a path is a folder and not a link: nothing is removed through links."""
    return path.is_dir() and not path.is_symlink()


def _own_files(folder: Path) -> list[Path]:
    """Paths of a result's files in the order of removal: the manifest first, what identifies the folder last."""
    folders = [folder, *(folder / name for name in FRAME_FOLDERS if is_real_folder(folder / name))]
    paths = [path for each in folders for path in each.iterdir() if path.is_symlink() or not path.is_dir()]
    own = [path for path in paths if is_own_name(path.relative_to(folder).as_posix())]
    return sorted(own, key=lambda path: (path.name == RUN_NAME, path.name != MANIFEST_NAME))
