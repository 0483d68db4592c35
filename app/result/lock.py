"""Lock for one writer per folder; the system releases it when the process ends, also by a kill."""

import errno
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from stream_recon.app.core.platform import NO_FOLLOW, OPEN_FLAGS, lock_file, read_at, write_at
from stream_recon.app.result.commit import complete_change
from stream_recon.app.result.files import output_errors, remove_temporary
from stream_recon.configs.errors import OutputError

LOCK_NAME = ".stream-recon.lock"
WRITTEN_FOLDERS = ("depth", "dense")
"""Folders of a result in which killed processes leave temporary files."""
UNLOCKABLE = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Errors of file systems without locks."""

log = logging.getLogger(__name__)


class FolderLock:
    """Locks a folder, and creates it if missing, until `release`, the end of a ``with`` block or of the process.

    A killed process leaves an unlocked file, which the next process locks.
    """

    def __init__(self, folder: Path, what: str = "run", name: str = LOCK_NAME) -> None:
        """``what``: kind of process that holds the lock, for messages; ``name``: of the lock file.

        Raises OutputError where this or another process has locked the folder, or it cannot be created.
        """
        self.folder = folder
        self._path = folder / name
        with output_errors(folder):
            if folder.exists() and not folder.is_dir():
                raise OutputError(f"{folder} is a file: choose another folder with -o")
            self._made = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            while True:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | NO_FOLLOW | OPEN_FLAGS, 0o644)
                self._take(what)
                if self._is_current():
                    break
                os.close(self._file)  # its last holder removed this file in the meantime
            os.ftruncate(self._file, 0)
            write_at(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        if name != LOCK_NAME:
            return
        try:
            complete_change(folder)
            for each in (folder, *(folder / inner for inner in WRITTEN_FOLDERS)):
                if not each.is_symlink():
                    remove_temporary(each)
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Unlock, remove the lock file, and remove the folder if it was created here and is empty."""
        if self._file < 0:
            return
        # Before unlocking: a process that waits for this file then sees that it is not the folder's lock file.
        with suppress(OSError):
            if self._is_current():
                self._path.unlink()
        os.close(self._file)
        self._file = -1
        if self._made:
            with suppress(OSError):
                self.folder.rmdir()

    def _take(self, what: str) -> None:
        try:
            lock_file(self._file)
        except OSError as error:
            if error.errno in UNLOCKABLE:
                log.warning("%s is on a file system without locks: start no second %s there", self.folder, what)
                return
            holder = read_at(self._file, 200, 0).decode(errors="replace").strip()
            os.close(self._file)
            self._file = -1
            if not isinstance(error, BlockingIOError):
                raise
            who = f" ({holder})" if holder else ""
            raise OutputError(
                f"another {what} is writing to {self.folder}{who}: wait for it, or choose another -o"
            ) from error

    def _is_current(self) -> bool:
        """Whether the open file is still the folder's lock file."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.lstat())
        except FileNotFoundError:
            return False
