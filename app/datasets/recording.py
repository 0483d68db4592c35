"""`Recording`: images, timestamps, poses, camera and depth of one scene as its reader finds them.

Helpers of readers, for images in time order and depth images. Readers of folders of images and video files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthMap, DepthPoints, DepthTruth, GroundTruth, Poses, no_depth
from stream_recon.app.core.input_file import input_errors
from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import Intrinsics, reduced_size
from stream_recon.app.datasets.text import dataset_errors
from stream_recon.app.sources.calibration import SAME_ASPECT, Calibration, one_camera
from stream_recon.app.sources.capture import open_capture, shown_frame_count
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_decoding import fits_stored, read_depth_image, read_image
from stream_recon.app.sources.image_files import OTHER_WORDS, is_map, list_images, only_photographs, unreadable_images
from stream_recon.app.sources.readers import IMAGE_FOLDER_FPS, ImageReader
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

MIN_STEP_S, MAX_STEP_S = 1e-4, 60.0
"""Time between images beyond which the unit of their times is doubted."""


@dataclass(frozen=True)
class TimedImages:
    """Images in the order of their timestamps."""

    images: tuple[Path, ...]
    times: FloatArray  # [N] seconds, ascending
    positions: NDArray[np.intp]  # [N] in the original list
    warnings: tuple[str, ...]


def in_time_order(images: Sequence[Path], times: FloatArray, where: Path) -> TimedImages:
    """Images sorted by timestamp, with warnings; of several with one timestamp the first is kept.

    Raises InputError: no images, or a timestamp that is negative or not finite.
    """
    if not len(images):
        raise InputError(f"{where} lists no images")
    if not np.isfinite(times).all() or times.min() < 0:
        raise InputError(f"{where}: a timestamp is negative or not a number")
    order = np.argsort(times, kind="stable")
    unique = np.concatenate([[True], np.diff(times[order]) > 0])
    positions = order[unique]
    warnings = []
    if (np.diff(times) < 0).any():
        warnings.append(f"timestamps in {where.name} are out of order: the frames were sorted by them")
    step = float(np.median(np.diff(times[positions]))) if len(positions) > 1 else 1.0
    if not MIN_STEP_S <= step <= MAX_STEP_S:
        warnings.append(f"images in {where.name} are {step:g} s apart: its times may be of another unit")
    if repeated := len(positions) - len({images[i] for i in positions}):
        warnings.append(f"{repeated} images in {where.name} are listed more than once, at different times")
    if not unique.all():
        count = int((~unique).sum())
        warnings.append(f"{count} images in {where.name} repeat another's timestamp and were left out")
    return TimedImages(tuple(images[i] for i in positions), times[positions], positions, tuple(warnings))


def images_in(folder: Path) -> tuple[Path, ...]:
    """Images directly in a folder, in natural order. Raises InputError: none, or the folder cannot be read."""
    with input_errors(folder):
        images = tuple(only_photographs(list_images(folder))[0])
    if not images:
        raise InputError(f"no images in {folder}")
    return images


def has_images(folder: Path) -> bool:
    return folder.is_dir() and bool(list_images(folder))


def frame_numbers(images: Sequence[Path]) -> list[int]:
    """Numbers that are the images' names; their positions where not all names are numbers."""
    stems = [path.stem for path in images]
    return [int(stem) for stem in stems] if all(s.isdecimal() for s in stems) else list(range(len(images)))


@dataclass(frozen=True)
class DepthImages:
    """Reader of depth along the optical axis from 16-bit images of one channel; 0 is unknown."""

    files: Mapping[int, Path]
    """Files by frame index."""
    units_per_metre: float
    invalid: int = 0
    """Another value that means unknown."""

    def __call__(self, index: int) -> DepthMap | None:
        """Depth in metres of one frame; None where there is no file.

        Raises InputError: not a 16-bit image of one channel.
        """
        path = self.files.get(index)
        if path is None or not path.is_file():
            return None
        units = read_depth_image(path)
        if units is None:
            raise InputError(f"{path} is not a 16-bit image of one channel (depth)")
        metres = units.astype(np.float32) / np.float32(self.units_per_metre)
        return DepthMap(np.where(units == self.invalid, np.float32(0), metres))


SAME_CAMERA_TOLERANCE = 0.05
"""Largest relative difference of one camera's focal lengths, which structure from motion may fit for each image."""


@dataclass(frozen=True)
class PinholeCamera:
    """Intrinsics with the image size (width, height) that they are for; None: the size of the given images.

    Raises ValueError: invalid intrinsics, such as nan.
    """

    intrinsics: Intrinsics
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        k = self.intrinsics
        if not (np.isfinite([k.fx, k.fy, k.cx, k.cy]).all() and k.fx > 0 and k.fy > 0):
            raise ValueError(f"a camera cannot have focal lengths {k.fx:g}, {k.fy:g} and centre {k.cx:g}, {k.cy:g}")
        if self.size is not None and min(self.size) < 1:
            raise ValueError(f"images of a camera cannot have {self.size[0]}x{self.size[1]} pixels")

    @classmethod
    def of(cls, camera: Calibration | str | None) -> "PinholeCamera | None":
        """A camera without its distortion; None for fish-eyes, and for a text that says why there is none."""
        if camera is None or isinstance(camera, str) or camera.distortion == "fisheye":
            return None
        return cls(Intrinsics(camera.fx, camera.fy, camera.cx, camera.cy), camera.size)

    def for_size(self, size: tuple[int, int]) -> Intrinsics:
        """Intrinsics for images resized to (width, height). Raises InputError: those have another shape."""
        k = self.intrinsics
        if self.size is None:
            if not (0 < k.cx < size[0] and 0 < k.cy < size[1]):
                raise InputError(
                    f"the camera's centre ({k.cx:g}, {k.cy:g}) is outside of images of {size[0]}x{size[1]}"
                )
            return k
        if abs(size[0] * self.size[1] / self.size[0] - size[1]) > max(
            1.0, SAME_ASPECT * size[1]
        ):  # a pixel is rounding
            raise InputError("the camera is of {}x{} pixels, the images of {}x{}".format(*self.size, *size))
        sx, sy = size[0] / self.size[0], size[1] / self.size[1]
        return Intrinsics(k.fx * sx, k.fy * sy, k.cx * sx, k.cy * sy)


class TimedImageReader(ImageReader):
    """Reader of image files with given timestamps in seconds, ascending."""

    def __init__(
        self, paths: list[Path], name: str, timestamps: FloatArray, *, as_stored: bool = False, side: int | None = None
    ) -> None:
        """``side``: longer side to which images are reduced; None: they stay as they are."""
        assert len(paths) == len(timestamps)
        gaps = np.diff(timestamps)
        assert (gaps > 0).all(), "sorted when the scene was read"
        super().__init__(paths, name, float(1 / np.median(gaps)) if len(gaps) else None, as_stored=as_stored)
        self._timestamps = timestamps
        self._side = side

    def retrieve(self) -> NDArray[np.uint8] | None:
        rgb = super().retrieve()
        if rgb is None or self._side is None or max(rgb.shape) <= self._side:
            return rgb
        size = reduced_size((rgb.shape[1], rgb.shape[0]), self._side)
        if self.transparent is not None:
            self.transparent = cv2.resize(self.transparent.view(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0
        return np.asarray(cv2.resize(rgb, size, interpolation=cv2.INTER_AREA), np.uint8)

    def grab(self) -> tuple[int, float] | None:
        step = super().grab()
        return None if step is None else (step[0], float(self._timestamps[step[0]]))


@dataclass(frozen=True)
class Recording:
    """Images of a scene in order, with what its files hold of them, by position in ``images``."""

    images: tuple[Path, ...]
    timestamps: FloatArray | None = None
    """Seconds of the data set's clock; None: a nominal 30 frames a second."""
    poses: Poses = field(default_factory=dict)
    camera: PinholeCamera | None = None
    calibration: Calibration | None = None
    """The camera with its distortion, where the files have it."""
    unusable: str | None = None
    """Why the cameras in the files cannot be used to undistort the images, if so."""
    read_depth: Callable[[int], DepthTruth | None] | None = None
    metric: bool = True
    warnings: tuple[str, ...] = ()
    side: int | None = None
    """Longer side to which the frames are reduced; None: they stay as they are."""

    @cached_property
    def as_stored(self) -> bool:
        """Whether images are read without their EXIF orientation, because camera and poses are those of stored images.

        Images alone are turned for display.
        """
        if not self.poses and self.camera is None and self.calibration is None and self.read_depth is None:
            return False
        sizes = (None if c is None else c.size for c in (self.calibration, self.camera))
        return fits_stored(self.images, next((size for size in sizes if size is not None), None))

    def source(self, name: str, choice: FrameChoice) -> Source:
        """The frames, see `Scene.open`."""
        times = self.timestamps
        if times is None:
            times = np.arange(len(self.images)) / IMAGE_FOLDER_FPS
        reader = TimedImageReader(list(self.images), name, times, as_stored=self.as_stored, side=self.side)
        depth = self.read_depth
        files = [*depth.files.values()] if isinstance(depth, DepthImages) else []
        if missing := [path.name for path in files if not path.is_file()]:
            reader.warnings.append(f"{len(missing)} depth images of {name} are missing, such as {missing[0]}")
        found = self.calibration if choice.camera is None else None
        notes = (self.unusable,) if self.unusable else () if found is None else found.notes
        reader.warnings.extend([*self.warnings, *(f"camera of {name}: {note}" for note in notes)])
        reader.warnings += self._doubts_of_poses(name)
        return Source(reader, choice)

    def _doubts_of_poses(self, name: str) -> list[str]:
        without = [image.name for i, image in enumerate(self.images) if i not in self.poses]
        if self.poses and without:
            return [f"{len(self.poses)} of {len(self.images)} images of {name} have a pose, not {without[0]}"]
        is_still = len(self.poses) > 1 and not np.ptp([*self.poses.values()], axis=0).any()
        return [f"all poses of {name} are the same"] if is_still else []

    def known_camera(self, name: str) -> Calibration:
        """The calibration in the files. Raises InputError where there is none."""
        if self.unusable is not None:
            raise InputError(f"no camera of {name} can be used: {self.unusable}")
        if self.calibration is not None:
            return self.calibration
        if self.camera is None:
            raise InputError(f"the files of {name} have no camera in common for all images")
        k = self.camera.intrinsics
        return Calibration(k.fx, k.fy, k.cx, k.cy, size=self.camera.size)

    def truth(self) -> GroundTruth | None:
        """Ground truth of the frames; None where the files have none. Raises InputError: no image is readable."""
        if not self.poses and self.camera is None and self.read_depth is None:
            return None
        size = image_size(self.images, as_stored=self.as_stored)
        shown = size if self.side is None else reduced_size(size, self.side)
        intrinsics = None if self.camera is None else self.camera.for_size(size)
        if intrinsics is not None:
            intrinsics = PinholeCamera(intrinsics, size).for_size(shown)
        return GroundTruth(
            source_size=shown,
            poses=self.poses,
            intrinsics=intrinsics,
            metric=self.metric,
            has_depth=self.read_depth is not None,
            read_depth=no_depth if self.read_depth is None else partial(self._depth, np.divide(shown, size)),
        )

    def _depth(self, scale: FloatArray, index: int) -> DepthTruth | None:
        """``scale``: of frames to images, across and down."""
        assert self.read_depth is not None
        with dataset_errors(self.images[0].parent):
            depth = self.read_depth(index)
        return DepthPoints(depth.uvz * [*scale, 1.0]) if isinstance(depth, DepthPoints) else depth


def image_size(images: Sequence[Path], *, as_stored: bool = False) -> tuple[int, int]:
    """Width and height of the first readable image. Raises InputError: none is readable."""
    missing = next((path for path in images if not path.exists()), None)
    for path in images:
        rgb = read_image(path, as_stored=as_stored)
        if rgb is not None:
            return rgb.shape[1], rgb.shape[0]
    if missing is not None:
        raise InputError(f"not one image is readable; the first missing one is {missing}")
    raise InputError(f"not one image in {images[0].parent} is readable")


def common_camera(cameras: Sequence[PinholeCamera | None]) -> PinholeCamera | None:
    """The median of the images' cameras, if all are within `SAME_CAMERA_TOLERANCE` of it; else None."""
    known = [camera for camera in cameras if camera is not None]
    if not known or len(known) < len(cameras) or len({camera.size for camera in known}) > 1:
        return None
    rows = np.array([(k.fx, k.fy, k.cx, k.cy) for k in (camera.intrinsics for camera in known)])
    median = np.median(rows, axis=0)
    if np.abs(rows[:, :2] / median[:2] - 1).max() > SAME_CAMERA_TOLERANCE:
        return None
    fx, fy, cx, cy = (float(value) for value in median)
    return PinholeCamera(Intrinsics(fx, fy, cx, cy), known[0].size)


def common_calibration(cameras: Sequence[Calibration | str | None]) -> tuple[Calibration | None, str | None]:
    """The camera that images have in common, or why they have none; None, None where not all have one."""
    if unusable := [camera for camera in cameras if isinstance(camera, str)]:
        return None, unusable[0]
    known = [camera for camera in cameras if isinstance(camera, Calibration)]
    try:
        return (one_camera(known), None) if known and len(known) == len(cameras) else (None, None)
    except InputError as error:
        return None, str(error)


VIDEO_SUFFIXES = frozenset(
    {".3gp", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".ogv", ".webm", ".wmv"}
)
MIN_IMAGES = 2
"""Fewest images of a scene: a single one in a folder is seldom meant as a scene."""
MAPS_PROBED = 3
"""Images of a folder whose content is looked at."""


def is_image_folder(path: Path) -> bool:
    if OTHER_WORDS.search(path.name.lower().replace("_", " ").replace("-", " ")):
        return False
    images = list_images(path)
    if len(images) < MIN_IMAGES:
        return False
    return not (all(map(is_map, images[:: -(-len(images) // MAPS_PROBED)])) and _has_twin(path, images))


def _has_twin(path: Path, images: Sequence[Path]) -> bool:
    """Whether a video, or a folder of images that are no maps and have the same names, stands next to a folder."""
    stems = {image.stem for image in images}
    for other in path.parent.iterdir():
        if is_video(other):
            return True
        if other != path and other.is_dir():
            same = [image for image in list_images(other) if image.stem in stems]
            if len(same) >= MIN_IMAGES and not is_map(same[0]):
                return True
    return False


def is_video(path: Path) -> bool:
    return path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()


def count_video(path: Path) -> int | None:
    """Number of frames as the container has it, which may be wrong."""
    capture = open_capture(path, path.name)
    try:
        return shown_frame_count(capture, path)
    finally:
        capture.release()


def load_image_folder(path: Path) -> Recording:
    with input_errors(path):
        warnings = only_photographs(list_images(path))[1]
    return Recording(images_in(path), warnings=(*warnings, *filter(None, [unreadable_images(path)])))
