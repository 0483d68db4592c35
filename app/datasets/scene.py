"""One scene of a data set: its frames as a source for the pipeline, and its truth.

>>> for scene in find_scenes(Path("datasets")):
...     with scene.open(stride=2) as source:
...         reconstruct(source, engine, writer)
...     truth = scene.truth()

The truth of a scene whose frames come without their lens: its camera and depth are then of the frames as given.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from stream_recon.app.core.ground_truth import DepthMap, DepthPoints, DepthTruth, GroundTruth
from stream_recon.app.datasets.catalogue import reader_named
from stream_recon.app.datasets.text import dataset_errors
from stream_recon.app.sources.calibration import Calibration, parse_camera
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import Source, open_source
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import InputError


def rectified(truth: GroundTruth, camera: Calibration) -> GroundTruth:
    """The same for frames that a known camera's lens was taken from. Raises InputError: of images of another shape."""
    rectifier = Undistorter(camera.for_size(truth.source_size), truth.source_size)
    if not rectifier.bends:
        return truth

    def read(index: int) -> DepthTruth | None:
        found = truth.depth(index)
        if isinstance(found, DepthPoints):
            return DepthPoints(np.column_stack([rectifier.from_source(found.uvz[:, :2]), found.uvz[:, 2]]))
        return None if found is None else _bent_back(found, rectifier)

    return dataclasses.replace(truth, intrinsics=rectifier.intrinsics, read_depth=read)


def _bent_back(depth: DepthMap, rectifier: Undistorter) -> DepthMap:
    """Depth along the axis stays what it is; only where a pixel sees it changes."""
    at = rectifier.shown_at * (depth.metres.shape[1] / rectifier.size[0], depth.metres.shape[0] / rectifier.size[1])
    x, y = (at[..., axis].astype(np.float32) - np.float32(0.5) for axis in (0, 1))
    metres = depth.metres.astype(np.float32)
    # Not interpolated: between two surfaces there is none.
    return DepthMap(np.asarray(cv2.remap(metres, x, y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT)))


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
                raise InputError(f"--dataset-intrinsics: {self.path.name} is a video, which says nothing of its camera")
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
