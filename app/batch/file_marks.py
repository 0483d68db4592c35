"""Marks of depth files, made while frames come: at the end there would be gigabytes to read at once."""

from pathlib import Path

from stream_recon.app.batch.manifest import Mark, mark_of
from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.files import output_errors


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
