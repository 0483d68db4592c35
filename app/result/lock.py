"""One writer at a time in one folder: a lock that the system lets go of when its process ends, however it ends."""

import errno
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from stream_recon.app.result.files import output_errors
from stream_recon.configs.errors import OutputError

LOCK_NAME = ".stream-recon.lock"
UNLOCKABLE = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Of file systems that know no locks."""

log = logging.getLogger(__name__)


class FolderLock:
    """Holds a folder, which is made if need be, until `release`, the end of a ``with`` block or of the process.

    What a killed process leaves is a file that nobody holds; the next one takes it over.
    """

    def __init__(self, folder: Path, what: str = "run", name: str = LOCK_NAME) -> None:
        """
        Args:
            what: who else may hold it, in the message.
            name: of the lock's file.

        Raises:
            OutputError: another process, or this one, holds the folder already; or it cannot be made.
        """
        self.folder = folder
        self._path = folder / name
        with output_errors(folder):
            if folder.exists() and not folder.is_dir():
                raise OutputError(f"{folder} is a file: choose another folder with -o")
            self._made = not folder.exists()
            folder.mkdir(parents=True, exist_ok=True)
            while True:
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
                self._take(what)
                if self._is_current():
                    break
                os.close(self._file)  # the one before removed its file just now
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def __enter__(self) -> "FolderLock":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let go, remove the lock's file, and the folder, too, if it was made here and nothing is in it."""
        if self._file < 0:
            return
        # While it is held: whoever opens it now sees, once it is theirs, that it is not the folder's any more.
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
            _lock(self._file)
        except OSError as error:
            if error.errno in UNLOCKABLE:
                log.warning("%s has no file locks: nothing keeps a second %s out", self.folder, what)
                return
            holder = os.pread(self._file, 200, 0).decode(errors="replace").strip()
            os.close(self._file)
            self._file = -1
            if not isinstance(error, BlockingIOError):
                raise
            who = f" ({holder})" if holder else ""
            raise OutputError(
                f"another {what} is writing to {self.folder}{who}: wait for it, or choose another -o"
            ) from error

    def _is_current(self) -> bool:
        """Whether the file that is held is the one that others will find."""
        try:
            return os.path.samestat(os.fstat(self._file), self._path.lstat())
        except FileNotFoundError:
            return False


def _lock(file: int) -> None:
    """Raises BlockingIOError where another process, or another opening of the file, holds it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError as error:
            raise BlockingIOError(errno.EAGAIN, "locked") from error
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
