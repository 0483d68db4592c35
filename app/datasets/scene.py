"""`Scene`: one scene of a data set, with its frames as a source for the pipeline, and its ground truth.

>>> for scene in find_scenes(Path("datasets")):
...     with scene.open(stride=2) as source:
...         reconstruct(source, engine, writer)
...     truth = scene.truth()
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from stream_recon.app.core.ground_truth import DepthMap, DepthPoints, DepthTruth, GroundTruth
from stream_recon.app.datasets.catalogue import READERS, reader_named
from stream_recon.app.datasets.recording import Recording
from stream_recon.app.datasets.text import dataset_errors
from stream_recon.app.sources.calibration import Calibration, parse_camera
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import Source, open_source
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import InputError


def undistorted_truth(truth: GroundTruth, camera: Calibration) -> GroundTruth:
    """Ground truth of frames that were undistorted with a known camera. Raises InputError for another image shape."""
    rectifier = Undistorter(camera.for_size(truth.source_size), truth.source_size)
    if not rectifier.changes_image:
        return truth

    def read(index: int) -> DepthTruth | None:
        depth = truth.depth(index)
        if isinstance(depth, DepthPoints):
            return DepthPoints(np.column_stack([rectifier.from_source(depth.uvz[:, :2]), depth.uvz[:, 2]]))
        return None if depth is None else _undistorted_depth(depth, rectifier)

    return dataclasses.replace(truth, intrinsics=rectifier.intrinsics, read_depth=read)


def _undistorted_depth(depth: DepthMap, rectifier: Undistorter) -> DepthMap:
    """Depth resampled to undistorted frames; its values along the optical axis do not change."""
    xy = rectifier.shown_at * (depth.metres.shape[1] / rectifier.size[0], depth.metres.shape[0] / rectifier.size[1])
    x, y = (xy[..., axis].astype(np.float32) - np.float32(0.5) for axis in (0, 1))
    metres = depth.metres.astype(np.float32)
    # Interpolation would put depth between two surfaces.
    return DepthMap(np.asarray(cv2.remap(metres, x, y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT)))


def given_camera(text: str) -> Calibration:
    """A camera as `parse_camera` reads it, or that of a folder of a data set or capture. Raises as it."""
    path = Path(text).expanduser()
    with dataset_errors(path):
        reader = next((each for each in READERS if each.loader and path.is_dir() and each.recognise(path)), None)
    return parse_camera(text) if reader is None else reader.load(path).known_camera(path.name)


CALIBRATED = "calibrated"
"""In place of a camera's numbers: the calibration in the scene's files."""


@dataclass(frozen=True)
class Scene:
    """A scene found under a folder. Plain data that can be sent to another process; its files are read by `open`."""

    name: str
    """Unique among the scenes found together, and valid as a folder's name."""
    dataset: str
    """Name of the reader in `READERS`."""
    path: Path
    """The scene's folder, or its video file; absolute."""
    frames: int | None
    """Number of images, or the video container's number of frames; None where unknown."""
    camera: str | None = None
    """A known camera to undistort the frames with, see `FrameChoice`, or `CALIBRATED`."""
    masks: str | None = None
    """A folder of masks of its frames, see `MaskFolder`."""
    side: int | None = None
    """Longer side to which its images are reduced; None: they stay as they are."""

    def open(self, stride: int = 1, max_frames: int | None = None) -> Source:
        """The frames as a source, in the order of the data set's timestamps, which are in seconds.

        ``warnings`` of the source tells where the files list them in another order. Unreadable images are left out and
        counted when they are reached. Raises InputError: files of the scene that do not match their layout, or nothing
        to read; ConfigError: a stride or limit below 1.
        """
        recording = self._recording()
        if recording is None:
            if self.camera == CALIBRATED:
                raise InputError(f"--dataset-intrinsics: {self.path.name} is a video, which has no calibration")
            return open_source(
                str(self.path), FrameChoice(stride=stride, max_frames=max_frames, camera=self.camera, masks=self.masks)
            )
        camera = recording.known_camera(self.name).text() if self.camera == CALIBRATED else self.camera
        return recording.source(self.name, FrameChoice(stride, max_frames=max_frames, camera=camera, masks=self.masks))

    def truth(self) -> GroundTruth | None:
        """Ground truth in the scene's files, None where there is none. Decodes one image for its size.

        Raises InputError: files of the scene that do not match their layout.
        """
        recording = self._recording()
        if recording is None:
            return None
        with dataset_errors(self.path):
            truth = recording.truth()
        if truth is None or self.camera is None:
            return truth
        calibrated = self.camera == CALIBRATED
        return undistorted_truth(truth, recording.known_camera(self.name) if calibrated else parse_camera(self.camera))

    def _recording(self) -> Recording | None:
        """Everything but the images; None for a video."""
        reader = reader_named(self.dataset)
        return None if reader.loader is None else dataclasses.replace(reader.load(self.path), side=self.side)
