"""Process of a job that copies a file from an object store, or a result to one: it can be stopped, as a run."""

import signal
import sys
from contextlib import suppress
from pathlib import Path

from stream_recon.app.core.output_file import new_file
from stream_recon.app.core.progress_file import ProgressFile
from stream_recon.app.core.remote_files import RemoteFiles
from stream_recon.app.result.lock import LOCK_NAME, FolderLock
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.configs.errors import InputError, OutputError, StreamReconError

TRANSFER = (sys.executable, "-m", "stream_recon.app.web.transfer")
"""The command that runs it."""
BLOCK_BYTES = 2**22


def get(address: str, target: Path, limit: int) -> None:
    """Copy a file of at most ``limit`` bytes to ``target``. Raises InputError, OutputError, ResourceError, OSError."""
    folder, _, name = address.rpartition("/")
    target.unlink(missing_ok=True)
    size, progress = 0, ProgressFile.from_environment()
    try:
        with RemoteFiles(folder).open(name) as source, new_file(target, 0o600) as file:
            while block := source.read(BLOCK_BYTES):
                size += len(block)
                if size > limit:
                    raise InputError(f"{address} is larger than the {limit / 1e9:.1f} GB that there is room for")
                file.write(block)
                progress.write("megabytes fetched", size / 1e6, None, None)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def put(folder: Path, address: str) -> None:
    """Copy a result to an address without files; ``run.json`` comes last. What fails leaves nothing there.

    Links are left out. Raises OutputError, ResourceError.
    """
    with FolderLock(folder):
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
        names = [path.relative_to(folder).as_posix() for path in paths]
        files = RemoteFiles(address)
        if files.sizes(""):
            raise OutputError(f"{address} has files: give another output, or remove them")
        try:
            files.upload(folder, "", [name for name in names if name not in (LOCK_NAME, RUN_NAME)])
            files.upload(folder, "", [name for name in names if name == RUN_NAME])
        except BaseException:
            with suppress(StreamReconError):
                files.remove(names)
            raise


def main(command: str, source: str, target: str, *limit: str) -> int:
    """Exit code, as that of the command line program."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if command == "get":
            get(source, Path(target), int(*limit))
        else:
            put(Path(source), target)
    except KeyboardInterrupt:
        return 130
    except (StreamReconError, OSError) as error:
        kept = "the result is on this server alone: " if command == "put" else ""
        ProgressFile.from_environment().note(error=f"{kept}{error}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
