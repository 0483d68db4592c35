"""Downloads that a page can ask for: files made on request, one at a time."""

import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import ply
from stream_recon.app.core.box import Box, cut_primitive
from stream_recon.app.core.gltf import glb, read_glb
from stream_recon.app.core.input_file import open_regular
from stream_recon.app.viewer.points import send_file
from stream_recon.app.viewer.scene_mesh import SceneMesh
from stream_recon.configs.errors import StreamReconError

END_HEADER = b"end_header\n"
LATER = "It is made from the finished result: ask again at the end of the run."
PAGE_SAVES = {"points": "Points (PLY)", "mesh": "Mesh (GLB)"}
"""Labels of what the page shows, and can cut by its box."""
FILMS = {"around": "Film around it (MP4)", "path": "Film along the path (MP4)"}


class Downloads:
    """Makers of files by kind: `PAGE_SAVES`, formats of ``export``, and `FILMS`."""

    def __init__(self, exports: Mapping[str, str]) -> None:
        """``exports``: labels by the format's name."""
        self.labels = {**PAGE_SAVES, **exports, **FILMS}
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
            command = "render FOLDER VIDEO.mp4" if kind in FILMS else f"export FOLDER --format {kind}"
            missing = f"It cannot be saved from here: stream-recon {command} makes it."
            _note(client, "Not available", missing if ended else LATER)
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
    with open_regular(path) as file:
        for line in file.read(4096).split(b"\n"):
            if line.startswith(b"element vertex "):
                return int(line.split()[-1])
    return None


def cut_cloud(path: Path, box: Box, R_gltf_world: NDArray[np.floating]) -> bytes:
    """What a box leaves of a PLY file that the program wrote, as a PLY file. Raises OSError, ValueError."""
    with open_regular(path) as file:
        start = file.read(4096)
    end, count = start.find(END_HEADER), vertex_count(path)
    if end < 0 or count is None:
        raise ValueError(f"{path} is not a cloud of this program")
    vertices = np.memmap(path, ply.VERTEX, "r", offset=end + len(END_HEADER), shape=(count,)) if count else None
    if vertices is None:
        return ply.header(0)
    inside = box.contains(ply.positions(vertices), R_gltf_world)
    return ply.header(int(inside.sum())) + ply.select_vertices(np.asarray(vertices), np.flatnonzero(inside)).tobytes()


def cut_mesh(mesh: SceneMesh, box: Box, R_gltf_world: NDArray[np.floating]) -> bytes:
    """What a box leaves of a mesh, as a GLB file in its own axes. Raises ValueError."""
    planes = box.planes(np.asarray(R_gltf_world) @ mesh.R_world_mesh)
    return glb([cut_primitive(part, planes) for part in read_glb(mesh.glb)])


def _note(client: Any, title: str, line: str) -> None:
    client.add_notification(title, line, auto_close_seconds=12.0)
