"""Choice of the reader for what a user names as a source: a file, a pattern, a folder, a camera or an address."""

import re
from collections.abc import Sequence
from contextlib import closing, suppress
from mimetypes import guess_type
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import input_errors
from stream_recon.app.sources.capture import capture_frame_count, open_capture
from stream_recon.app.sources.containers import VideoTrack, film
from stream_recon.app.sources.cube_maps import EQUIRECTANGULAR, SphereLayout, find_layout, may_be_round
from stream_recon.app.sources.exif import read_exif
from stream_recon.app.sources.growing import GrowingVideoReader, is_growing
from stream_recon.app.sources.image_decoding import IMAGE_SUFFIXES, read_image, readable_suffixes
from stream_recon.app.sources.image_files import (
    WEB_PAGES,
    files_of_pattern,
    hint_for_missing,
    images_below,
    only_photographs,
    turns_to_one_size,
    unreadable_images,
)
from stream_recon.app.sources.live import LIVE_LIMITS, LiveLimits, LiveReader
from stream_recon.app.sources.panorama import CONTENT, ROUND, SPHERES, is_equirectangular, kind_by_file, refusal
from stream_recon.app.sources.readers import ImageReader, Reader, VideoReader
from stream_recon.app.sources.rosbag import RecordingReader, is_recording
from stream_recon.app.sources.scan_folder import ScanReader, is_scan
from stream_recon.app.sources.two_tracks import SUFFIX, TwoTrackReader
from stream_recon.app.sources.zenoh_topic import ZenohReader
from stream_recon.configs.errors import InputError

ADDRESS = re.compile(r"^(rtsps?|https?|rtmps?|srt|udp|tcp|zenoh)://", re.IGNORECASE)
"""Pattern of stream addresses."""
_SECRET = re.compile(
    r"(?P<name>(?<![a-z0-9])(?:[a-z_-]*(?:user|username|login|password|passwd|passphrase|pass|pwd|token|key|auth|secret"
    r"|signature|sig|credential|session|sid|jwt|code|hash))=)(?P<value>.*?)(?=$|[&;/?#\s]|_[a-z]+=)",
    re.IGNORECASE,
)
"""Pattern of a parameter that gives access, in the path or query of an address."""
FIRST_FRAMES = 60
"""Frames of a film among which one is looked for that shows something: films begin with black."""


def layout_of(spec: str) -> SphereLayout | None:
    """Layout of a film, photograph or folder of photographs of 360 degrees, by its metadata or its first picture; None:
    it is none that is read."""
    path = Path(spec).expanduser()
    with suppress(OSError, InputError):
        if path.is_dir() and not is_recording(path) and not is_scan(str(path)):
            path = next(iter(images_below(path)[1]), path)
        return _layout(path) if path.is_file() and not is_recording(path) else None
    return None


def _layout(path: Path) -> SphereLayout | None:
    is_image = path.suffix.lower() in IMAGE_SUFFIXES | readable_suffixes()
    tracks = () if is_image else film(path).tracks[:1]
    kind = next((track.refused for track in tracks), "") or kind_by_file(path)
    sizes = [read_exif(path).size] if is_image else [track.size for track in tracks]
    if kind == ROUND:
        return EQUIRECTANGULAR
    # Most photographs and films need not be decoded.
    if kind not in SPHERES and (kind or not may_be_round(sizes)):
        return None
    rgb = read_image(path) if is_image else _first_frame(path)
    if rgb is None or (not kind and is_equirectangular(rgb)):
        return None if rgb is None else EQUIRECTANGULAR
    return find_layout(rgb, is_stated=bool(kind))


def _first_frame(path: Path) -> NDArray[np.uint8] | None:
    """The first frame of a film that shows something. Raises InputError."""
    with closing(_video_reader(path)) as reader:
        frames = (reader.retrieve() for _ in range(FIRST_FRAMES) if reader.grab() is not None)
        return next((rgb for rgb in frames if rgb is not None and rgb.std() > CONTENT), None)


def _video_reader(path: Path) -> VideoReader:
    if path.suffix.lower() == SUFFIX:
        return TwoTrackReader(path)
    return VideoReader(open_capture(path, path.name), path.name, path)


def open_reader(
    spec: str,
    fps: float | None,
    reconnect: float,
    topic: str | None,
    limits: LiveLimits = LIVE_LIMITS,
    *,
    is_panorama: bool = False,
) -> Reader:
    """The reader of a source; arguments and errors as of `open_source`. ``is_panorama``: such frames are wanted."""
    if ADDRESS.match(spec):
        return _open_address(spec, reconnect, limits)
    if spec.lower().startswith("file://"):
        spec = url2pathname(urlsplit(spec).path)
    path = Path(spec).expanduser()
    with input_errors(spec):
        exists, recording = path.exists(), is_recording(path)
    if not exists:
        return _open_pattern_or_camera(spec, fps, reconnect, limits)
    if recording:
        if not path.is_dir() and not path.is_file():
            raise InputError(f"{spec} is not a regular file")
        return RecordingReader(path, topic)
    if path.is_dir():
        return _open_folder(path, fps, is_panorama=is_panorama)
    if path.is_char_device():
        return _open_live(path, str(path), reconnect, limits)
    _check_kind(path.name, kind_by_file(path), is_panorama=is_panorama)
    if path.suffix.lower() in IMAGE_SUFFIXES | readable_suffixes():
        return ImageReader([path], path.name, fps)
    return _open_video(spec, path, is_panorama=is_panorama)


def _open_pattern_or_camera(spec: str, fps: float | None, reconnect: float, limits: LiveLimits) -> Reader:
    """Images of a pattern, or a camera by its number, where no file has the name."""
    if files := files_of_pattern(spec):
        photographs, warnings = only_photographs(files)
        reader = _photographs(photographs, Path(spec).expanduser().parent.resolve().name, fps)
        reader.warnings += warnings
        return reader
    if spec.isascii() and spec.isdecimal() and len(spec) < 5:
        return _open_live(int(spec), f"camera {spec}", reconnect, limits)
    raise InputError(f"no such file or folder: {without_password(spec)}{hint_for_missing(spec)}")


def _check_kind(name: str, kind: str, *, is_panorama: bool) -> None:
    """Refuse frames of a kind that no pinhole camera shows; panoramas where they are not wanted. Raises InputError."""
    if kind and not (is_panorama and kind in SPHERES):
        raise InputError(refusal(name, kind))


def _open_video(spec: str, path: Path, *, is_panorama: bool) -> VideoReader:
    if not path.is_file():
        raise InputError(
            f"{spec} is not a regular file: read a program's output from an address such as tcp:// or udp://"
        )
    with input_errors(spec), path.open("rb") as file:
        if not (head := file.read(4)):
            raise InputError(f"{spec} is an empty file")
        if head == b"PK\3\4":  # FFmpeg would take photographs in it for frames, maps of depth among them
            raise InputError(f"{spec} is an archive (ZIP): unpack it, and give the folder of its images")
    stated = film(path)
    tracks = stated.tracks
    if stated.container and not tracks and stated.others:
        raise InputError(f"{path.name} has no video track, only {', '.join(stated.others)}")
    _check_kind(path.name, next((track.refused for track in tracks), ""), is_panorama=is_panorama)
    if tracks and tracks[0].samples <= 1 < max(track.samples for track in tracks):
        longest = max(range(len(tracks)), key=lambda number: tracks[number].samples)
        raise InputError(
            f"the first video track of {path.name} is a still picture: take out the film with "
            f"ffmpeg -i {path.name} -map 0:v:{longest} -c copy film.mp4"
        )
    if is_growing(path):
        return GrowingVideoReader(path)
    try:
        reader = _video_reader(path)
    except InputError as error:
        notes = [*stated.notes, *(note for track in tracks for note in track.notes)]
        raise InputError("; ".join([str(error), *notes])) from error
    reader.warnings += _track_choice(path.name, tracks)
    return reader


def _track_choice(name: str, tracks: Sequence[VideoTrack]) -> list[str]:
    """Warning on a film with several video tracks, of which OpenCV reads the first."""
    if len(tracks) < 2 or name.lower().endswith(SUFFIX):
        return []
    sizes = [track.size for track in tracks]
    listed = ", ".join(f"{width}x{height}" for width, height in sizes)
    largest = max(range(len(sizes)), key=lambda number: sizes[number][0] * sizes[number][1])
    line = f"{name} has {len(sizes)} video tracks ({listed}): the first is used"
    if sizes[largest] > sizes[0]:
        line += f"; take out the largest with ffmpeg -i {name} -map 0:v:{largest} -c copy film.mp4"
    return [line]


def without_password(address: str) -> str:
    """Address without ``user:password@`` and with the values of secret parameters blanked, for messages and files."""
    return _SECRET.sub(r"\g<name>***", re.sub(r"(?<=://)[^/?#]*@", "", address))


def _open_live(spec: Path | int, name: str, reconnect: float, limits: LiveLimits) -> LiveReader:
    return LiveReader(open_capture(spec, name), name, lambda: open_capture(spec, name), reconnect, limits)


def _open_address(spec: str, reconnect: float, limits: LiveLimits) -> Reader:
    name = without_password(spec)
    if WEB_PAGES.match(spec):
        raise InputError(f"{name} is a page that shows a video: download the video first, such as with yt-dlp")
    if spec.lower().startswith("zenoh"):
        return ZenohReader(spec, reconnect, limits)
    capture = open_capture(spec, name, limits.address_s)
    # A file behind a web address has a length; it is read like a local file, and no frame is dropped.
    if spec.lower().startswith("http") and capture_frame_count(capture) is not None:
        return VideoReader(capture, name)
    return LiveReader(capture, name, lambda: open_capture(spec, name, limits.address_s), reconnect, limits)


def _open_folder(path: Path, fps: float | None, *, is_panorama: bool) -> Reader:
    with input_errors(path):
        if is_scan(str(path)):
            return ScanReader(path)
        folder, images, inner = images_below(path)
        films = [p.name for p in path.iterdir() if (guess_type(p.name)[0] or "").startswith("video/")]
    left_out = unreadable_images(folder)
    if not images:
        others = ", ".join([*films, *(p.relative_to(path).as_posix() for p in inner)][:5])
        reason = left_out or f"looked for {', '.join(sorted(IMAGE_SUFFIXES))}"
        where = f"but in it {others}: give one of these" if others else reason
        raise InputError(f"no images in {path} ({where})")
    photographs, warnings = only_photographs(images)
    reader = _photographs(photographs, path.resolve().name, fps, is_panorama=is_panorama)
    if films:
        warnings.append(f"{path.name} has films, too, which are not read: {', '.join(films[:3])}")
    if folder != path:
        warnings.append(f"the photographs in {folder.relative_to(path).as_posix()} of {path.name} are used")
    reader.warnings += [*warnings, *filter(None, [left_out])]
    return reader


def _photographs(images: list[Path], name: str, fps: float | None, *, is_panorama: bool = False) -> ImageReader:
    _check_kind(str(images[0]), kind_by_file(images[0]), is_panorama=is_panorama)
    turns = turns_to_one_size(images)
    reader = ImageReader(images, name, fps, as_stored=turns.as_stored, by_90=turns.by_90)
    if turns.as_stored:
        reader.warnings.append(f"{name} has upright and wide photographs: all are used as stored, some lie on a side")
    if turns.by_90:
        example = min(path.name for path in turns.by_90)
        reader.warnings.append(
            f"{name} has upright and wide photographs: {len(turns.by_90)} of {len(images)} are used turned by 90 "
            f"degrees, such as {example}"
        )
    return reader
