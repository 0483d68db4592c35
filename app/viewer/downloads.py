"""Downloads that a page can ask for: files made on request, one at a time."""

import json
import struct
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream_recon.app.viewer.points import send_file
from stream_recon.configs.errors import StreamReconError

LATER = "It is made from the finished result: ask again at the end of the run."
MISSING = {
    "mesh": "This result has no mesh: stream-recon export FOLDER --format mesh makes one.",
    "colmap": "This result cannot be exported from here: use stream-recon export FOLDER --format colmap.",
    "around": "This result cannot be rendered from here: use stream-recon render FOLDER VIDEO.mp4.",
    "path": "This result cannot be rendered from here: use stream-recon render FOLDER VIDEO.mp4.",
}
"""What to do about a download that is not offered."""


class Downloads:
    """Makers of files by kind, see `SAVES` of the panel."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[Path], Path]] = {}
        self._busy = threading.Lock()

    def offer(self, kind: str, make: Callable[[Path], Path]) -> None:
        """Offer a kind; ``make`` writes a file into a folder and gives its path."""
        self._makers[kind] = make

    def send(self, kind: str, client: Any, ended: bool) -> None:
        """Make a file and send it, or a line that says why not. Takes as long as the file takes to make.

        ``ended``: the run is over, so that what is not there now will not come.
        """
        make = self._makers.get(kind)
        if make is None:
            _note(client, "Not available", MISSING[kind] if ended else LATER)
            return
        if not self._busy.acquire(blocking=False):
            _note(client, "Not now", "Another file is being made: ask again when it is done.")
            return
        try:
            note = client.add_notification("Making the file", "This can take minutes.", loading=True)
            try:
                with tempfile.TemporaryDirectory(prefix="stream-recon-") as folder:
                    path = make(Path(folder))
                    send_file(client, path, path.name)
            except StreamReconError as error:
                _note(client, "Not available", str(error))
            except OSError as error:
                _note(client, "Not available", f"The file cannot be written: {error}")
            finally:
                note.remove()
        finally:
            self._busy.release()


def vertex_count(path: Path) -> int | None:
    """Number of points of a PLY file; None where it cannot be read."""
    with path.open("rb") as file:
        for line in file.read(4096).split(b"\n"):
            if line.startswith(b"element vertex "):
                return int(line.split()[-1])
    return None


def triangle_count(glb: bytes) -> int:
    """Number of triangles of a GLB file; 0 where it cannot be read."""
    try:
        (length,) = struct.unpack_from("<I", glb, 12)
        document = json.loads(glb[20 : 20 + length])
        accessors = document["accessors"]
        primitives = [p for mesh in document["meshes"] for p in mesh["primitives"]]
        return sum(accessors[p["indices"]]["count"] // 3 for p in primitives if "indices" in p)
    except (struct.error, ValueError, LookupError, TypeError):
        return 0


def _note(client: Any, title: str, line: str) -> None:
    client.add_notification(title, line, auto_close_seconds=12.0)
