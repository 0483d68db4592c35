"""One batch at a time on one output folder."""

from pathlib import Path

from stream_recon.app.result.lock import FolderLock

LOCK_NAME = ".batch.lock"


def output_lock(out: Path) -> FolderLock:
    """Hold the folder, which is made if need be. The system lets go when the process ends, however it ends.

    Raises:
        OutputError: another batch holds it, or it cannot be made.
    """
    return FolderLock(out, "batch", LOCK_NAME)
