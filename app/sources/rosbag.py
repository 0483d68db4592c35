"""Reader of ROS recordings: ROS 1 bags, ROS 2 bag folders and files, and MCAP, by the library rosbags."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.camera_models import SKEW, distortion
from stream_recon.app.sources.frame_choice import check_frame_size
from stream_recon.app.sources.image_decoding import BIT_SAMPLES, bits_of
from stream_recon.app.sources.mcap_file import McapFile, alike
from stream_recon.app.sources.readers import Reader
from stream_recon.app.sources.ros_images import ENCODINGS, STILLS, decoded, turn_notes, unsupported, used_bits
from stream_recon.configs.errors import ConfigError, InputError, StreamReconError, missing_library

SUFFIXES = frozenset({".bag", ".mcap", ".db3"})
"""Suffixes of single-file recordings."""
METADATA = "metadata.yaml"
"""Name of the file that lists those of a recording of ROS 2."""
SIGNATURES = {".bag": b"#ROSBAG V2.0", ".mcap": b"\x89MCAP0\r\n", ".db3": b"SQLite format 3\0"}
"""First bytes of recordings."""
RAW, COMPRESSED, CAMERA = (f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "CameraInfo"))
"""Message types of images, compressed images and camera calibrations."""
VIDEO = re.compile(r"CompressedVideo$|FFMPEGPacket$|theora_image_transport|H264|H265|HEVC", re.IGNORECASE)
"""Message types of video streams."""
MAX_DISAGREEMENT_S = 1.0
"""Time by which a stamp may advance otherwise than the clock of the recording since the image before."""
MAX_RATIO = 2.0
"""Ratio of the clocks up to which that of the recording is the time of the images, and not that of a conversion."""
RATE_FRAMES = 30
"""First frames whose median interval gives the rate: about a second, read in a moment."""
DAMAGE = Exception
"""What the libraries raise for damaged recordings: they have no common error, and let through those of Python."""
_RECTIFIED = re.compile(r"(^|_)(rect|rectified|undist|undistorted)(_|$)")
"""Pattern of a rectified topic's last name: image_rect, image_rect_color (image_proc)."""


def is_recording(path: Path) -> bool:
    """Whether a file or folder is a ROS recording, by its name and content."""
    if path.is_dir():
        return (path / METADATA).is_file() and any(
            file.name.endswith((".db3", ".mcap", ".db3.zstd", ".mcap.zstd")) for file in path.iterdir()
        )
    return path.suffix.lower() in SUFFIXES


class RecordingReader(Reader):
    """Images of one topic. Timestamps are those of the message headers, relative to the first one; the camera is that
    of the topic's ``camera_info``, if it has one."""

    has_topics = True

    def __init__(self, path: Path, topic: str | None = None) -> None:
        """
        Args:
            topic: image topic; None: the only one.

        Raises:
            InputError: not a recording, a damaged one, or one without images.
            ConfigError: no such topic, or several topics and none chosen.
            ResourceError: the library is not installed.
        """
        self._bits = 16
        self._bag, infos = open_recording(path)
        self._closed = False
        self.info: Any = None
        """First ``camera_info`` of the topic."""
        self.frame_id = ""
        """Coordinate frame of its images; empty where they state none, or several."""
        try:
            self._topic = _choose_topic(infos, topic, path.name)
            self._connections = [c for c in self._bag.connections if c.topic == self._topic]
            stamps, logged = self._first_times()
            self._clock = _Clock(stamps, logged)
            super().__init__(
                path.name, _rate(logged if self._clock.is_stopped else stamps), infos[self._topic].msgcount
            )
            begin = logged[0] if self._clock.is_stopped else self._clock.begin
            self.origin_ns = round(begin * 1e9) + (0 if self._clock.is_stopped else self._first_ns)
            if self._clock.is_stopped:
                said = f"all stamps of {self._topic} are {self._first_ns * 1e-9:g}"
                self.warnings.append(f"{said}: the times at which images were recorded are used")
            if self._bits < 16:
                self.warnings.append(f"{self._topic} has images of 16 bits that use {self._bits}: read as such")
            self.calibration = self._camera()
        except BaseException:
            self.close()
            raise
        self._messages = self._images()
        self._index, self._time = -1, -1.0
        self._message: Any = None
        self._first: tuple[str, tuple[int, int]] | None = None

    def grab(self) -> tuple[int, float] | None:
        try:
            self._message, logged = next(self._messages, (None, 0.0))
        except DAMAGE as error:
            self._message, self.frame_hint = None, self._index + 1
            self.damaged += 1
            self.warnings.append(f"{self.name} is cut off after frame {self._index}: {first_line(error)}")
        if self._message is None:
            if self._clock.replaced > 1:
                self.warnings.append(f"{self._clock.replaced} stamps of {self._topic} were replaced")
            if self.frame_hint != self._index + 1:
                stated = f"{self.name} states {self.frame_hint} images of {self._topic}"
                self.warnings.append(f"{stated}, and has {self._index + 1}")
            return None
        self._index += 1
        if self.frame_id and (frame_id := frame_of(self._message)) != self.frame_id:
            self.warnings.append(f"{self._topic} has images of {self.frame_id} and {frame_id}, taken as one camera")
            self.frame_id = ""
        stamp, before = (stamp_ns(self._message) - self._first_ns) * 1e-9, self._clock.replaced
        time = self._clock.time(stamp, logged)
        if time <= self._time:
            # A clock may be set back; timestamps must increase.
            time, self._clock.replaced = self._time + 1 / self.rate, self._clock.replaced + 1
        if self._clock.replaced > before == 0:
            off = abs(stamp - self._clock.begin - time)
            said = f"the stamp of frame {self._index} of {self._topic} is {off:.1f} s off"
            self.warnings.append(f"{said}: such stamps are replaced by the times of recording")
        self._time = time
        return self._index, time

    def retrieve(self) -> NDArray[np.uint8] | None:
        try:
            rgb = decoded(self._message, self._bits)
        except DAMAGE:
            rgb = None
        if rgb is None:
            self.damaged += 1
            self.warnings.append(f"frame {self._index} of {self.name} is not a readable image and was skipped")
            return None
        size = (rgb.shape[1], rgb.shape[0])
        name = f"image {self._index} of {self._topic}"
        self.warnings += [f"{self._topic}: {note}" for note in ([] if self._first else turn_notes(self._message))]
        self._first = self._first or (name, size)
        check_frame_size(name, size, *self._first)
        return rgb

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._messages = iter(())
            self._bag.close()

    def _read(self, connections: list[Any]) -> Iterator[tuple[Any, float]]:
        """Messages, and the times in seconds at which they were recorded."""
        for connection, logged, data in self._bag.messages(connections):
            yield self._bag.deserialize(data, connection.msgtype), logged * 1e-9

    def _images(self) -> Iterator[tuple[Any, float]]:
        """Images as `_read`, with a warning where a later ``camera_info`` states another camera."""
        infos = self._infos
        for connection, logged, data in self._bag.messages([*self._connections, *infos]):
            if connection.topic == self._topic:
                yield self._bag.deserialize(data, connection.msgtype), logged * 1e-9
            elif infos:
                camera = None
                with suppress(DAMAGE):
                    message = self._bag.deserialize(data, connection.msgtype)
                    camera = camera_of(message, rectified=is_rectified(self._topic))
                if camera != self.calibration:
                    at = f"after {max(self._time, 0):.2f} s (frame {max(self._index, 0)})"
                    self.warnings.append(f"the camera_info of {self._topic} changes {at}: its first camera is used")
                    infos = []

    def _first_times(self) -> tuple[list[float], list[float]]:
        """Times of the headers since the first one, and of recording, of the first images.

        Raises InputError: an unknown encoding.
        """
        times: list[tuple[float, float]] = []
        used = 0
        try:
            for message, logged in self._read(self._connections):
                if not times:
                    self._check_encoding(message)
                    self._first_ns, self.frame_id = stamp_ns(message), frame_of(message)
                if len(times) < BIT_SAMPLES:
                    used |= used_bits(message)
                times.append(((stamp_ns(message) - self._first_ns) * 1e-9, logged))
                if len(times) == RATE_FRAMES:
                    break
        except StreamReconError:
            raise
        except DAMAGE as error:
            if not times:
                raise InputError(f"no image of {self._topic} can be read: {first_line(error)}") from error
        if not times:
            raise InputError(f"{self._topic} has no images")
        self._bits = bits_of(used)
        return [stamp for stamp, _ in times], [logged for _, logged in times]

    def _check_encoding(self, message: Any) -> None:
        if what := unsupported(message):
            known = ENCODINGS if hasattr(message, "encoding") else STILLS
            said = f"the images of {self._topic} have {what}, which is not supported"
            raise InputError(f"{said}: convert them to one of {', '.join(known)}")

    def _camera(self) -> Calibration | None:
        """First camera of the topic's ``camera_info``; None without one, and for one of zeros."""
        names = info_topics(self._topic)
        others = [c for c in self._bag.connections if alike(str(c.msgtype)) == CAMERA or c.topic in names]
        self._infos = connections = [c for c in others if alike(str(c.msgtype)) == CAMERA and c.topic in names]
        if others and not connections:
            other = f"{others[0].topic} of type {others[0].msgtype}"
            self.warnings.append(f"{self._topic} has no camera_info of its own: {other} is not used")
        try:
            for message, _ in self._read(connections) if connections else ():
                self.info = message
                return camera_of(message, rectified=is_rectified(self._topic))
            if connections:
                raise InputError("it has no message")
        except DAMAGE as error:
            self._infos = []
            self.warnings.append(f"the camera_info of {self._topic} is not used: {first_line(error)}")
        return None


class _Clock:
    """Times of images by their stamps, and by the clock of the recording where a stamp contradicts it."""

    def __init__(self, stamps: list[float], logged: list[float]) -> None:
        """Stamps and times of recording of the first images, in seconds."""
        self.is_stopped = len(stamps) > 1 and stamps[-1] == stamps[0]
        """Whether a driver without a clock writes the same stamp into every header."""
        step = float(np.median(np.diff(logged))) if len(logged) > 1 else 0.0
        ratio = float(np.median(np.diff(stamps))) / step if step > 0 else 0.0
        self._ratio = ratio if 1 / MAX_RATIO <= ratio <= MAX_RATIO else None
        self.begin = 0.0
        """Time of the first image since its stamp, which may be wrong itself."""
        self.replaced = 0
        """Number of stamps so far that were not believed."""
        if self._ratio is not None:
            at = float(np.median(np.subtract(stamps, ratio * np.subtract(logged, logged[0]))))
            self.begin = at if abs(at) > MAX_DISAGREEMENT_S else 0.0
        self._last, self._origin = (self.begin, logged[0]), logged[0]

    def time(self, stamp: float, logged: float) -> float:
        """Seconds since the first image."""
        if self.is_stopped:
            return logged - self._origin
        expected = stamp if self._ratio is None else self._last[0] + self._ratio * (logged - self._last[1])
        if abs(stamp - expected) > MAX_DISAGREEMENT_S:
            self.replaced += 1
            return expected - self.begin
        self._last = stamp, logged
        return stamp - self.begin


def _choose_topic(infos: dict[str, Any], chosen: str | None, name: str) -> str:
    topics = {topic: info for topic, info in infos.items() if alike(str(info.msgtype)) in (RAW, COMPRESSED)}
    for topic, info in infos.items():
        if VIDEO.search(str(info.msgtype)) and (chosen == topic or not topics):
            raise InputError(f"{topic} of {name} is a video stream, which is not read: convert it to images")
    if chosen is not None:
        if chosen not in topics:
            raise ConfigError(f"{name} has no image topic {chosen}: it has {_listed(topics)}")
        return chosen
    found = pictures(infos)
    if not found:
        raise InputError(f"{name} has no image topic" + (f"; it has {_listed(topics)}" if topics else ""))
    if len(found) > 1:
        raise ConfigError(f"{name} has several image topics; choose one with --topic, or --rig tf: {_listed(found)}")
    return next(iter(found))


def pictures(infos: dict[str, Any]) -> dict[str, Any]:
    """Image topics; depth images are not pictures, and a raw topic is preferred to its compressed copy."""
    images = {topic: info for topic, info in infos.items() if alike(str(info.msgtype)) in (RAW, COMPRESSED)}
    copies = [f"{topic}/compressed" for topic in images]
    return {t: i for t, i in images.items() if i.msgcount and "depth" not in t.lower() and t not in copies}


def _listed(topics: dict[str, Any]) -> str:
    return ", ".join(f"{topic} ({info.msgcount})" for topic, info in topics.items()) or "none"


def info_topics(topic: str) -> tuple[str, ...]:
    """Topics that may hold the camera of an image topic, by ROS's naming convention."""
    base = topic.removesuffix("/compressed")
    return (f"{base.rpartition('/')[0]}/camera_info", f"{base}/camera_info")


def is_rectified(topic: str) -> bool:
    return _RECTIFIED.search(topic.removesuffix("/compressed").rpartition("/")[2]) is not None


def frame_of(message: Any) -> str:
    """Name of the coordinate frame of a message; empty where it has none."""
    return str(getattr(getattr(message, "header", message), "frame_id", "")).strip("/")


def stamp_ns(message: Any) -> int:
    """Time in the header of a message of ROS, or in one of Foxglove, in nanoseconds."""
    stamp = message.header.stamp if hasattr(message, "header") else message.timestamp
    return int(stamp.sec) * 10**9 + int(stamp.nanosec)


def _rate(times: list[float]) -> float:
    steps = np.diff(times)
    interval = float(np.median(steps)) if len(steps) else 0.0
    return 1 / interval if 1e-3 < interval < 1e3 else 30.0


def camera_of(message: Any, *, rectified: bool) -> Calibration | None:
    """Camera of a ``camera_info``; None for one of zeros.

    Args:
        rectified: the images are rectified: their camera is the projection matrix P, without distortion.

    Raises InputError, ConfigError or ValueError: a camera that cannot be applied.
    """
    size, notes = (int(message.width), int(message.height)), tuple[str, ...]()
    K, D, model = _matrix(message, rectified=rectified)
    if not any(K):
        return None
    kind, used = distortion(model, D)
    if bool(model) != bool(D):
        notes = (f"camera_info has distortion_model {model!r} and {len(D)} coefficients D: taken as {kind} {used}",)
    fx, skew, cx, _, fy, cy = K[:6]
    if abs(skew) > SKEW * fx:
        raise InputError(f"its camera matrix has skew {skew:g}")
    # The matrix is for the whole sensor. Images may be a part of it (roi), of which pixels were joined (binning).
    region = getattr(message, "roi", None)  # Foxglove's messages have neither
    across, down = (max(1, int(getattr(message, f"binning_{axis}", 1))) for axis in "xy")
    left, top, *sides = (int(getattr(region, name, 0)) for name in ("x_offset", "y_offset", "width", "height"))
    width, height = sides[0] or size[0], sides[1] or size[1]
    # In ROS (0, 0) is the centre of the first pixel.
    centre = (cx + 0.5 - left) / across, (cy + 0.5 - top) / down
    return Calibration(fx / across, fy / down, *centre, kind, used, (width // across, height // down), notes=notes)


def _matrix(message: Any, *, rectified: bool) -> tuple[list[float], list[float], str]:
    """Camera matrix, which may be zero, coefficients, and name of the model of distortion. Raises InputError."""
    K, P, D = (numbers_of(message, name) for name in ("k", "p", "d"))
    if len(K) == 9 and not any(K):
        return K, D, ""
    if len(K) != 9 or not K[0] > 0 or [K[3], *K[6:]] != [0, 0, 0, 1] or min(message.width, message.height) < 1:
        raise InputError(f"its camera matrix K {K} for {message.width}x{message.height} pixels is none")
    if not rectified:
        return K, D, str(message.distortion_model)
    if len(P) != 12 or not P[0] > 0:
        raise InputError("the images are rectified, and it has no projection matrix P")
    return [*P[:3], *P[4:7], *P[8:11]], [], ""


def numbers_of(message: Any, name: str) -> list[float]:
    """Numbers of a field, whose name is upper-case in ROS 1."""
    values = getattr(message, name.upper()) if hasattr(message, name.upper()) else getattr(message, name)
    return [float(value) for value in np.asarray(values, np.float64).ravel()]


def first_line(error: BaseException) -> str:
    """First line of an error's message; some contain half of the file."""
    return next((line[:200] for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _check_signatures(path: Path) -> None:
    """Raises InputError for files that are no recordings: the library searches all of a file of zeros."""
    for file in [path] if path.is_file() else sorted(path.iterdir()):
        signature = SIGNATURES.get(file.suffix.lower())
        if signature is None:
            continue
        try:
            with open_regular(file) as opened:
                head = opened.read(len(signature))
        except OSError as error:
            raise InputError(f"{file.name} is not a readable recording: {error.strerror}") from error
        if head != signature:
            raise InputError(f"{path.name} is not a readable recording: {file.name} does not begin like one")
        if file != path and file.name not in (path / METADATA).read_text("utf-8", "replace"):
            raise InputError(f"{file.name} is not in {METADATA} of {path.name}: move it, or run ros2 bag reindex")


def open_recording(path: Path) -> tuple[Any, dict[str, Any]]:
    """The recording, opened by rosbags, or an MCAP file of another program, and its topics. Raises InputError."""
    _check_signatures(path)
    try:
        import rosbags.highlevel as library
        from rosbags.typesys import Stores, get_typestore
    except ImportError as error:
        raise missing_library("reading of ROS recordings", "rosbags") from error
    try:
        bag = library.AnyReader([path], default_typestore=get_typestore(Stores.ROS2_HUMBLE))
        try:
            bag.open()
        except (KeyError, library.AnyReaderError) as error:
            # A schema that is not ROS 2's, or another profile.
            if path.suffix.lower() != ".mcap" or not (isinstance(error, KeyError) or "rofile" in str(error)):
                raise
            bag = McapFile(path)
        return bag, dict(bag.topics)
    except StreamReconError:
        raise
    except DAMAGE as error:
        raise InputError(f"{path.name} is not a readable recording: {first_line(error)}") from error
