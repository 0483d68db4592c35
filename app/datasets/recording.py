"""What a reader knows of one scene before any image is decoded: its images, times, poses, camera and depth.

What has no layout of a data set: the evaluation's own sequences, folders of images, video files.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthTruth, GroundTruth, Poses, no_depth
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.datasets.frames import has_images, images_in
from stream_recon.app.datasets.sequence import read_sequence
from stream_recon.app.datasets.text import dataset_errors
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.capture import capture_frame_count, open_capture
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.readers import IMAGE_FOLDER_FPS, ImageReader, list_images, read_image
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

SAME_CAMERA_TOLERANCE = 0.05
"""Structure from motion fits each image's focal length anew; within this they are one lens."""


@dataclass(frozen=True)
class PinholeCamera:
    """Intrinsics with the size (width, height) of the images that they hold for; None for whatever is there.

    Raises:
        ValueError: a number that no camera has, such as nan.
    """

    intrinsics: Intrinsics
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        k = self.intrinsics
        if not (np.isfinite([k.fx, k.fy, k.cx, k.cy]).all() and k.fx > 0 and k.fy > 0):
            raise ValueError(f"a camera cannot have focal lengths {k.fx:g}, {k.fy:g} and centre {k.cx:g}, {k.cy:g}")
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"images of a camera cannot have {self.size[0]}x{self.size[1]} pixels")

    def at(self, size: tuple[int, int]) -> Intrinsics | None:
        """The same camera for images resized to (width, height); None where they were turned on their side."""
        if self.size is None:
            return self.intrinsics
        if (size[0] - size[1]) * (self.size[0] - self.size[1]) < 0:
            return None
        k, sx, sy = self.intrinsics, size[0] / self.size[0], size[1] / self.size[1]
        return Intrinsics(k.fx * sx, k.fy * sy, k.cx * sx, k.cy * sy)


class TimedImageReader(ImageReader):
    """Image files with timestamps of their own, in seconds, rising."""

    def __init__(self, paths: list[Path], name: str, timestamps: NDArray[np.float64]) -> None:
        assert len(paths) == len(timestamps)
        gaps = np.diff(timestamps)
        assert (gaps > 0).all(), "sorted when the scene was read"
        super().__init__(paths, name, float(1 / np.median(gaps)) if len(gaps) else None)
        self._timestamps = timestamps

    def grab(self) -> tuple[int, float] | None:
        step = super().grab()
        return None if step is None else (step[0], float(self._timestamps[step[0]]))


@dataclass(frozen=True)
class Recording:
    """The images of a scene, in order, and what its files say of them, by position in ``images``."""

    images: tuple[Path, ...]
    timestamps: NDArray[np.float64] | None = None
    """Seconds, in the data set's own clock; None where it has none: a nominal 30 frames a second."""
    poses: Poses = field(default_factory=dict)
    camera: PinholeCamera | None = None
    lens: Calibration | None = None
    """The whole camera with its lens, where the files have more than ``camera`` says."""
    read_depth: Callable[[int], DepthTruth | None] | None = None
    metric: bool = True
    warnings: tuple[str, ...] = ()

    def source(self, name: str, choice: FrameChoice) -> Source:
        """The frames; see `Scene.open`."""
        times = self.timestamps
        if times is None:
            times = np.arange(len(self.images)) / IMAGE_FOLDER_FPS
        reader = TimedImageReader(list(self.images), name, times)
        reader.warnings.extend(self.warnings)
        return Source(reader, choice)

    def known_camera(self, name: str) -> Calibration:
        """The camera that the files say. Raises InputError: they say none."""
        if self.lens is not None:
            return self.lens
        if self.camera is None:
            raise InputError(f"--dataset-intrinsics: the files of {name} do not say one camera for all its images")
        k = self.camera.intrinsics
        return Calibration(k.fx, k.fy, k.cx, k.cy, size=self.camera.size)

    def truth(self) -> GroundTruth | None:
        """None where the files say nothing that an estimate could be compared with.

        Raises:
            InputError: no image is readable.
        """
        if not self.poses and self.camera is None and self.read_depth is None:
            return None
        size = image_size(self.images)
        return GroundTruth(
            source_size=size,
            poses=self.poses,
            intrinsics=None if self.camera is None else self.camera.at(size),
            metric=self.metric,
            has_depth=self.read_depth is not None,
            read_depth=no_depth if self.read_depth is None else self._depth,
        )

    def _depth(self, index: int) -> DepthTruth | None:
        assert self.read_depth is not None
        with dataset_errors(self.images[0].parent):
            return self.read_depth(index)


def image_size(images: Sequence[Path]) -> tuple[int, int]:
    """Width and height of the first readable image.

    Raises:
        InputError: none is readable.
    """
    for path in images:
        rgb = read_image(path)
        if rgb is not None:
            return rgb.shape[1], rgb.shape[0]
    raise InputError(f"not one image in {images[0].parent} is readable")


def common_camera(cameras: Sequence[PinholeCamera | None]) -> PinholeCamera | None:
    """One camera for images that say theirs one by one: the median, if all are within 5 % of it; else None."""
    known = [camera for camera in cameras if camera is not None]
    if not known or len(known) < len(cameras) or len({camera.size for camera in known}) > 1:
        return None
    rows = np.array([dataclasses.astuple(camera.intrinsics) for camera in known])
    median = np.median(rows, axis=0)
    if np.abs(rows[:, :2] / median[:2] - 1).max() > SAME_CAMERA_TOLERANCE:
        return None
    return PinholeCamera(Intrinsics(*(float(value) for value in median)), known[0].size)


VIDEO_SUFFIXES = frozenset(
    {".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".webm", ".wmv"}
)
LEAST_IMAGES = 2
"""A single image in a folder is seldom meant as a scene."""
OTHER_IMAGES = frozenset({"depth", "depths", "mask", "masks", "normal", "normals", "semantic", "instance", "label"})
"""Names of folders whose images are no photographs."""


def is_sequence(path: Path) -> bool:
    truth = any((path / name).is_file() for name in ("poses.txt", "intrinsics.txt")) or (path / "sparse").is_dir()
    return truth and has_images(path / "rgb")


def is_image_folder(path: Path) -> bool:
    return path.name.lower() not in OTHER_IMAGES and len(list_images(path)) >= LEAST_IMAGES


def is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()


def sequence_images(path: Path) -> tuple[Path, ...]:
    return images_in(path / "rgb")


def count_video(path: Path) -> int | None:
    """The container's claim."""
    capture = open_capture(path, path.name)
    try:
        return capture_frame_count(capture)
    finally:
        capture.release()


def load_sequence(path: Path) -> Recording:
    """See `stream_recon.app.datasets.sequence`."""
    sequence = read_sequence(path)
    sparse = (path / "sparse").is_dir()
    return Recording(
        images=sequence.images,
        poses=sequence.poses,
        camera=None if sequence.intrinsics is None else PinholeCamera(sequence.intrinsics, sequence.source_size),
        read_depth=sequence.depth if sparse or (path / "depth").is_dir() else None,
        metric=not sparse,
    )


def load_image_folder(path: Path) -> Recording:
    return Recording(images=images_in(path))
