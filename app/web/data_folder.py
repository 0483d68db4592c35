"""The data folder of the server: its results, its state, and safe names."""

import errno
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from stream_recon.app.result.files import output_errors
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.app.web.limits import USER, USER_SHARE, NoRoomError

STATE_FOLDER = ".stream-recon-serve"
"""Folder of the queue, uploads and exports; results stand next to it."""
MAX_NAME = 80
"""Characters of a result's name; file systems allow 255 bytes, and exports add to it."""
RESERVE_BYTES = 1_000_000_000
"""Disk space that uploads leave free, for results."""
RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)", re.IGNORECASE)
"""Names that some systems do not allow."""


class DataFolder:
    """The folder of the results, with the server's own state in it."""

    def __init__(self, path: Path, quota: int | None = None) -> None:
        """``quota``: bytes that all of it may have; None: what the disk has."""
        self.path, self.quota, self._bytes = path.resolve(), quota, 0
        self._bytes_of: dict[str, int] = {}
        self.state = self.path / STATE_FOLDER
        self.uploads, self.jobs = self.state / "uploads", self.state / "jobs"
        self.exports, self.scans = self.state / "exports", self.state / "scans"
        self.queue = self.state / "queue.sqlite"

    def make(self) -> None:
        """Create the folders, readable by this user alone. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.state, self.uploads, self.jobs, self.exports, self.scans):
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.is_symlink():
                raise OSError(errno.ELOOP, f"{folder} is a link")

    def secrets(self) -> Path:
        """Folder of token and key, the user's own: who made the data folder must not know them. Raises OutputError."""
        own = Path(os.environ.get("XDG_STATE_HOME", ""))
        own = own if own.is_absolute() else Path.home() / ".local/state"
        folder = own / "stream-recon" / hashlib.sha256(os.fsencode(self.path)).hexdigest()[:32]
        with output_errors(own):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def results(self) -> list[str]:
        """Names of the result folders of the data folder. Raises OSError."""
        return sorted(entry.name for entry in os.scandir(self.path) if self.result(entry.name) is not None)

    def result(self, name: str) -> Path | None:
        """Folder of a result; None where there is none of this name, which is never a path."""
        folder = self.path / name
        if name.startswith(".") or folder.name != name:
            return None
        # It may be unreadable, or have a name that no page can show.
        with suppress(OSError, ValueError):
            name.encode()
            is_file = stat.S_ISREG((folder / RUN_NAME).stat().st_mode)
            return folder if is_file and not folder.is_symlink() else None
        return None

    def is_taken(self, name: str, jobs: Collection[str] = ()) -> bool:
        """Whether a new result cannot have a name; ``jobs``: names of jobs, which may have no folder yet."""
        own = name.casefold()  # some file systems ignore case
        return os.path.lexists(self.path / name) or any(own == each.casefold() for each in jobs)

    def free_name(self, title: str, jobs: Collection[str] = ()) -> str:
        """A name for a new result folder, from a title of any kind; ``jobs``: see `is_taken`."""
        base, number = safe_name(title), 1
        name = f"{base}-recon"
        while self.is_taken(name, jobs):
            number += 1
            name = f"{base}-recon-{number}"
        return name

    def measure(self, owned: Mapping[str, Iterable[tuple[str, str]]] | None = None) -> None:
        """Count the bytes of all files, where there is a quota.

        ``owned``: results of each user, and what they were made of.
        """
        if self.quota is not None:
            self._bytes = _bytes_below(self.path)
            self._bytes_of = {
                user: sum(map(_bytes_below, {folder for each in results for folder in self._folders(*each)}))
                for user, results in (owned or {}).items()
            }

    def _folders(self, name: str, source: str) -> Iterator[Path]:
        """Folders of a result, and of the upload or scan that it was made of."""
        if (result := self.result(name)) is not None:
            yield result
        with suppress(OSError, ValueError, RuntimeError):
            path = Path(source).resolve()
            for parent in {self.uploads, self.scans} & {*path.parents}:
                yield parent / path.relative_to(parent).parts[0]

    def check_quota(self) -> None:
        """Raises NoRoomError where the quota, or the user's part of it, was reached at the last `measure`."""
        if self.quota is not None and self._bytes >= self.quota:
            raise NoRoomError("the data folder has reached its quota: remove results or uploads")
        if self.quota is not None and self._bytes_of.get(USER.get(), -1) >= self.quota // USER_SHARE:
            raise NoRoomError("you have reached your part of the quota: remove results with their uploads")

    def free_bytes(self, user: str = "") -> int:
        """Bytes that uploads, or those of a user, may fill."""
        free = shutil.disk_usage(self.path).free - RESERVE_BYTES
        if self.quota is not None:
            free = min(free, self.quota - self._bytes)
            free = min(free, self.quota // USER_SHARE - self._bytes_of.get(user, 0)) if user else free
        return max(0, free)


def _bytes_below(folder: Path) -> int:
    """Size of all files; those that go away in the meantime count nothing."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(at, name)).st_size  # noqa: PTH118  # a Path for each takes longer
    return total


def safe_name(title: str) -> str:
    """A title as one part of a path: letters, digits, dots, dashes and underscores, and never a dot at the start."""
    name = re.sub(r"[^\w.-]+", "-", title).strip("-._")[:MAX_NAME].strip("-._")
    while len(name.encode()) > 2 * MAX_NAME:
        name = name[:-1]
    return f"{name}-1" if RESERVED.fullmatch(name) else name or "scene"
