"""One scene of a data set: its frames as a source for the pipeline, and its truth.

>>> for scene in find_scenes(Path("datasets")):
...     with scene.open(stride=2) as source:
...         reconstruct(source, engine, writer)
...     truth = scene.truth()
"""

from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.datasets.catalogue import reader_named
from stream_recon.app.datasets.text import dataset_errors
from stream_recon.app.truth import Truth
from stream_recon.app.video.frame_choice import FrameChoice
from stream_recon.app.video.sources import Source, open_source


@dataclass(frozen=True)
class Scene:
    """A scene that was found. Plain data: it can be sent to another process, and is read where it is opened."""

    name: str
    """Unique among the scenes found together, and fit for a folder's name."""
    dataset: str
    """Name of the reader in `READERS`."""
    path: Path
    """The scene's folder, or its video file; absolute."""
    frames: int | None
    """How many images there are, or the container's claim; None where it cannot be said cheaply."""

    def open(self, stride: int = 1, max_frames: int | None = None) -> Source:
        """The frames, as `open_source` gives them, with the data set's own timestamps in seconds.

        Frames come in the order of their timestamps; where the files list them otherwise, ``warnings`` says so.
        Unreadable images are left out and counted when they are reached.

        Raises:
            InputError: files of the scene that do not have their layout's form, or nothing to read.
            ConfigError: a stride or limit below 1.
        """
        reader = reader_named(self.dataset)
        if reader.loader is None:
            return open_source(str(self.path), stride=stride, max_frames=max_frames)
        return reader.load(self.path).source(self.name, FrameChoice(stride, max_frames=max_frames))

    def truth(self) -> Truth | None:
        """What the scene's files know of its frames, None where that is nothing. Decodes one image, for its size.

        Raises:
            InputError: files of the scene that do not have their layout's form.
        """
        reader = reader_named(self.dataset)
        if reader.loader is None:
            return None
        recording = reader.load(self.path)
        with dataset_errors(self.path):
            return recording.truth()
