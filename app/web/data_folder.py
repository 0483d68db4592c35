"""The data folder of the server: its results, its state, and safe names."""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

from stream_recon.app.result.run_record import RUN_NAME

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

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self.state = self.path / STATE_FOLDER
        self.uploads, self.jobs = self.state / "uploads", self.state / "jobs"
        self.exports, self.scans = self.state / "exports", self.state / "scans"
        self.queue = self.state / "queue.sqlite"

    def make(self) -> None:
        """Create the folders, readable by this user alone. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        for folder in (self.state, self.uploads, self.jobs, self.exports, self.scans):
            folder.mkdir(mode=0o700, exist_ok=True)

    def results(self) -> dict[str, Path]:
        """Result folders of the data folder, by name. Requests name results by these keys alone, never by a path."""
        folders = {}
        for entry in sorted(self.path.iterdir()):
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if (entry / RUN_NAME).is_file():
                folders[entry.name] = entry
        return folders

    def free_name(self, title: str, taken: Collection[str] = ()) -> str:
        """A name for a new result folder, from a title of any kind; ``taken``: names of jobs without a folder yet."""
        base, number = safe_name(title), 1
        name = f"{base}-recon"
        while name in taken or (self.path / name).exists():
            number += 1
            name = f"{base}-recon-{number}"
        return name

    def free_bytes(self) -> int:
        """Bytes that uploads may fill."""
        return max(0, shutil.disk_usage(self.path).free - RESERVE_BYTES)


def safe_name(title: str) -> str:
    """A title as one part of a path: letters, digits, dots, dashes and underscores, and never a dot at the start."""
    name = re.sub(r"[^\w.-]+", "-", title).strip("-._")[:MAX_NAME].strip("-._")
    while len(name.encode()) > 2 * MAX_NAME:
        name = name[:-1]
    return f"{name}-1" if RESERVED.fullmatch(name) else name or "scene"
