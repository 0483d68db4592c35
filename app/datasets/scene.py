"""One scene of a data set: its frames as a source for the pipeline, and its truth.

>>> for scene in find_scenes(Path("datasets")):
...     with scene.open(stride=2) as source:
...         reconstruct(source, engine, writer)
...     truth = scene.truth()
"""

from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.core.ground_truth import GroundTruth
from stream_recon.app.datasets.catalogue import reader_named
from stream_recon.app.datasets.rectified import rectified
from stream_recon.app.datasets.text import dataset_errors
from stream_recon.app.sources.calibration import parse_camera
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import InputError

CALIBRATED = "calibrated"
"""In place of a camera's numbers: what the scene's own files say."""


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
    camera: str | None = None
    """A known camera, without whose lens the frames come: as `FrameChoice` has it, or `CALIBRATED`."""
    masks: str | None = None
    """A folder of masks of its frames, see `MaskFolder`."""

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
            if self.camera == CALIBRATED:
                raise InputError(f"--calibrated: {self.path.name} is a video, which says nothing of its camera")
            return open_source(
                str(self.path), stride=stride, max_frames=max_frames, camera=self.camera, masks=self.masks
            )
        recording = reader.load(self.path)
        camera = recording.known_camera(self.name).text() if self.camera == CALIBRATED else self.camera
        return recording.source(self.name, FrameChoice(stride, max_frames=max_frames, camera=camera, masks=self.masks))

    def truth(self) -> GroundTruth | None:
        """What the scene's files know of its frames, None where that is nothing. Decodes one image, for its size.

        Raises:
            InputError: files of the scene that do not have their layout's form.
        """
        reader = reader_named(self.dataset)
        if reader.loader is None:
            return None
        recording = reader.load(self.path)
        with dataset_errors(self.path):
            truth = recording.truth()
        if truth is None or self.camera is None:
            return truth
        calibrated = self.camera == CALIBRATED
        return rectified(truth, recording.known_camera(self.name) if calibrated else parse_camera(self.camera))
