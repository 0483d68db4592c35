"""What has no layout of a data set: the evaluation's own sequences, folders of images, video files."""

from pathlib import Path

from stream_recon.app.datasets.frames import has_images, images_in
from stream_recon.app.datasets.recording import PinholeCamera, Recording
from stream_recon.app.datasets.sequence import read_sequence
from stream_recon.app.sources.capture import capture_frame_count, open_capture
from stream_recon.app.sources.readers import list_images

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
