"""Reader of ROS recordings: ROS 1 bags, ROS 2 bag folders and files, and MCAP, by the library rosbags."""

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app import MAX_PIXELS
from stream_recon.app.core.input_file import open_regular
from stream_recon.app.sources.calibration import Calibration, Distortion
from stream_recon.app.sources.camera_files import SKEW, distortion
from stream_recon.app.sources.frame_choice import check_frame_size
from stream_recon.app.sources.image_decoding import BIT_SAMPLES, bits_of, is_truncated_png
from stream_recon.app.sources.readers import Reader
from stream_recon.configs.errors import ConfigError, InputError, StreamReconError, missing_library

SUFFIXES = frozenset({".bag", ".mcap", ".db3"})
"""Suffixes of single-file recordings."""
SIGNATURES = {".bag": b"#ROSBAG V2.0", ".mcap": b"\x89MCAP0\r\n", ".db3": b"SQLite format 3\0"}
"""First bytes of recordings."""
RAW, COMPRESSED, CAMERA = (f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "CameraInfo"))
"""Message types of images, compressed images and camera calibrations."""
RATE_FRAMES = 30
"""First frames whose median interval gives the rate: about a second, read in a moment."""
DAMAGE = (
    OSError, LookupError, ValueError, ArithmeticError, TypeError, AttributeError, AssertionError, EOFError,
    RecursionError, MemoryError, NotImplementedError, StopIteration, RuntimeError, struct.error, cv2.error,
)  # fmt: skip
"""Exceptions that the library raises for damaged files, in addition to its own."""
_GREY = {"mono8": np.uint8, "8UC1": np.uint8, "mono16": np.uint16, "16UC1": np.uint16}
"""Data type of grey images by ROS encoding."""
_COLOURS = {
    "rgb8": (3, None),
    "bgr8": (3, cv2.COLOR_BGR2RGB),
    "8UC3": (3, cv2.COLOR_BGR2RGB),
    "rgba8": (4, cv2.COLOR_RGBA2RGB),
    "bgra8": (4, cv2.COLOR_BGRA2RGB),
    "8UC4": (4, cv2.COLOR_BGRA2RGB),
    "yuv422": (2, cv2.COLOR_YUV2RGB_UYVY),
    "uyvy": (2, cv2.COLOR_YUV2RGB_UYVY),
    "yuv422_yuy2": (2, cv2.COLOR_YUV2RGB_YUY2),
    "yuyv": (2, cv2.COLOR_YUV2RGB_YUY2),
    # OpenCV names a Bayer pattern by its second row and column.
    "bayer_rggb8": (1, cv2.COLOR_BayerBG2RGB),
    "bayer_bggr8": (1, cv2.COLOR_BayerRG2RGB),
    "bayer_gbrg8": (1, cv2.COLOR_BayerGR2RGB),
    "bayer_grbg8": (1, cv2.COLOR_BayerGB2RGB),
}
"""Number of 8-bit channels by ROS encoding, and OpenCV's conversion to RGB."""
_WIDE = {"rgb16": None, "16UC3": cv2.COLOR_BGR2RGB, "bgr16": cv2.COLOR_BGR2RGB}
"""OpenCV's conversion to RGB of images of three 16-bit channels, by ROS encoding."""
_PLANAR = {"nv12": cv2.COLOR_YUV2RGB_NV12, "nv21": cv2.COLOR_YUV2RGB_NV21}
"""OpenCV's conversion of images with a plane of colour in half resolution below the grey one."""
_RECTIFIED = re.compile(r"(^|_)(rect|rectified)(_|$)")
"""Pattern of a rectified topic's last name: image_rect, image_rect_color (image_proc)."""


def is_recording(path: Path) -> bool:
    """Whether a file or folder is a ROS recording, by its name and content."""
    if path.is_dir():
        return (path / "metadata.yaml").is_file() and any(
            file.name.endswith((".db3", ".mcap", ".db3.zstd", ".mcap.zstd")) for file in path.iterdir()
        )
    return path.suffix.lower() in SUFFIXES


class RecordingReader(Reader):
    """Images of one topic. Timestamps are those of the message headers, relative to the first one; the camera is that
    of the topic's ``camera_info``, if it has one."""

    def __init__(self, path: Path, topic: str | None = None) -> None:
        """
        Args:
            topic: image topic; None: the only one.

        Raises:
            InputError: not a recording, a damaged one, or one without images.
            ConfigError: no such topic, or several topics and none chosen.
            ResourceError: the library is not installed.
        """
        library = _library()
        self._errors = (
            *DAMAGE,
            library.highlevel.AnyReaderError,
            library.rosbag1.ReaderError,
            library.rosbag2.ReaderError,
            library.serde.SerdeError,
            library.typesys.TypesysError,
            *_database_errors(),
        )
        self._closed = True
        self._bits = 16
        _check_signatures(path)
        try:
            store = library.typesys.get_typestore(library.typesys.Stores.ROS2_HUMBLE)
            self._bag = library.highlevel.AnyReader([path], default_typestore=store)
            self._bag.open()
            self._closed = False
            topics = {name: info for name, info in self._bag.topics.items() if info.msgtype in (RAW, COMPRESSED)}
        except StreamReconError:
            raise
        except self._errors as error:
            raise InputError(f"{path.name} is not a readable recording: {_line(error)}") from error
        try:
            self._topic = _choose_topic(topics, topic, path.name)
            self._connections = [c for c in self._bag.connections if c.topic == self._topic]
            stamps, logged = self._first_times()
            # A driver without a clock writes the same stamp into every header.
            self._by_log = len(stamps) > 1 and stamps[-1] == stamps[0]
            times = logged if self._by_log else stamps
            super().__init__(path.name, _rate(times), topics[self._topic].msgcount)
            self.origin_ns = round(times[0] * 1e9) if self._by_log else self._first_ns
            if self._by_log:
                self.warnings.append(
                    f"all stamps of {self._topic} are {stamps[0]:g}: the times at which images were recorded are used"
                )
            if self._bits < 16:
                self.warnings.append(f"{self._topic} has images of 16 bits that use {self._bits}: read as such")
            self.calibration = self._camera()
        except BaseException:
            self.close()
            raise
        self._messages = self._read(self._connections)
        self._index, self._origin, self._time = -1, times[0], -1.0
        self._message: Any = None
        self._first: tuple[str, tuple[int, int]] | None = None

    def grab(self) -> tuple[int, float] | None:
        while True:
            try:
                self._message, logged = next(self._messages, (None, 0.0))
            except self._errors as error:
                self._message = None
                self.damaged += 1
                self.warnings.append(f"{self.name} is cut off after frame {self._index}: {_line(error)}")
            if self._message is None:
                return None
            self._index += 1
            since_ns = stamp_ns(self._message) - self._first_ns
            time = logged - self._origin if self._by_log else since_ns * 1e-9
            # A clock may be set back; timestamps must increase.
            self._time = time if time > self._time else self._time + 1 / self.rate
            return self._index, self._time

    def retrieve(self) -> NDArray[np.uint8] | None:
        try:
            rgb = decoded(self._message, self._bits)
        except self._errors:
            rgb = None
        if rgb is None:
            self.damaged += 1
            self.warnings.append(f"frame {self._index} of {self.name} is not a readable image and was skipped")
            return None
        size = (rgb.shape[1], rgb.shape[0])
        name = f"image {self._index} of {self._topic}"
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

    def _first_times(self) -> tuple[list[float], list[float]]:
        """Times of the headers and of recording, of the first images. Raises InputError: an unknown encoding."""
        times: list[tuple[float, float]] = []
        used = 0
        try:
            for message, logged in self._read(self._connections):
                if not times:
                    self._check_encoding(message)
                    self._first_ns = stamp_ns(message)
                if len(times) < BIT_SAMPLES:
                    used |= _used_bits(message)
                times.append((stamp_ns(message) * 1e-9, logged))
                if len(times) == RATE_FRAMES:
                    break
        except StreamReconError:
            raise
        except self._errors as error:
            if not times:
                raise InputError(f"no image of {self._topic} can be read: {_line(error)}") from error
        if not times:
            raise InputError(f"{self._topic} has no images")
        self._bits = bits_of(used)
        return [stamp for stamp, _ in times], [logged for _, logged in times]

    def _check_encoding(self, message: Any) -> None:
        encoding = getattr(message, "encoding", None)
        known = (*_GREY, *_COLOURS, *_WIDE, *_PLANAR)
        if encoding is not None and encoding not in known:
            raise InputError(
                f"the images of {self._topic} have the encoding {str(encoding)[:40]!r}, which is not supported: "
                f"convert them to one of {', '.join(known)}"
            )

    def _camera(self) -> Calibration | None:
        """First camera of the topic's ``camera_info``; None without one, and for one of zeros."""
        names = info_topics(self._topic)
        connections = [c for c in self._bag.connections if c.msgtype == CAMERA and c.topic in names]
        try:
            for message, _ in self._read(connections) if connections else ():
                return camera_of(message, rectified=is_rectified(self._topic))
        except (*self._errors, StreamReconError) as error:
            self.warnings.append(f"the camera_info of {self._topic} is not used: {_line(error)}")
        return None


def _used_bits(message: Any) -> int:
    """Bits that the values of an image of 16 bits use, as a mask; 0 for others."""
    encoding = getattr(message, "encoding", "")
    if encoding not in _WIDE and _GREY.get(encoding) is not np.uint16:
        return 0
    kind = np.dtype(np.uint16).newbyteorder(">" if message.is_bigendian else "<")
    data = np.frombuffer(message.data, np.uint8)
    return int(np.bitwise_or.reduce(data[: len(data) // 2 * 2].view(kind).astype(np.uint16), initial=0))


def decoded(message: Any, bits: int = 16) -> NDArray[np.uint8] | None:
    """RGB image [H, W, 3] of a raw or compressed message; None for an unknown encoding. May raise `DAMAGE`.

    ``bits``: those that values of 16-bit images use.
    """
    data = np.frombuffer(message.data, np.uint8)
    if not hasattr(message, "encoding"):
        bgr = None if is_truncated_png(data) else cv2.imdecode(data, cv2.IMREAD_COLOR)
        return None if bgr is None else np.asarray(cv2.cvtColor(bgr, cv2.COLOR_BGR2RGB), np.uint8)
    height, width, step = int(message.height), int(message.width), int(message.step)
    if not 0 < height * width <= MAX_PIXELS:
        return None
    if message.encoding in _GREY:
        kind = np.dtype(_GREY[message.encoding]).newbyteorder(">" if message.is_bigendian else "<")
        grey = _rows(data, height, width * kind.itemsize, step).copy().view(kind)
        if kind.itemsize == 2:
            grey = np.minimum(grey >> (bits - 8), 255).astype(np.uint8)
        return np.asarray(cv2.cvtColor(grey.astype(np.uint8, copy=False), cv2.COLOR_GRAY2RGB), np.uint8)
    if message.encoding in _WIDE:
        wide = np.dtype(np.uint16).newbyteorder(">" if message.is_bigendian else "<")
        pixels = _rows(data, height, width * 6, step).copy().view(wide).reshape(height, width, 3)
        narrow, order = np.minimum(pixels >> (bits - 8), 255).astype(np.uint8), _WIDE[message.encoding]
        return narrow if order is None else np.asarray(cv2.cvtColor(narrow, order), np.uint8)
    if message.encoding in _PLANAR:
        planes = np.ascontiguousarray(_rows(data, height + height // 2, width, step))
        return np.asarray(cv2.cvtColor(planes, _PLANAR[message.encoding]), np.uint8)
    if message.encoding not in _COLOURS:
        return None
    channels, conversion = _COLOURS[message.encoding]
    image = np.ascontiguousarray(_rows(data, height, width * channels, step).reshape(height, width, channels))
    return image if conversion is None else np.asarray(cv2.cvtColor(image, conversion), np.uint8)


def _rows(data: NDArray[np.uint8], height: int, used: int, step: int) -> NDArray[np.uint8]:
    """First ``used`` bytes of each row of an image whose rows are ``step`` bytes long."""
    return data[: height * step].reshape(height, step)[:, :used]


def _choose_topic(topics: dict[str, Any], chosen: str | None, name: str) -> str:
    if chosen is not None:
        if chosen not in topics:
            raise ConfigError(f"--topic {chosen}: the image topics of {name} are {_listed(topics)}")
        return chosen
    # A raw topic is preferred to its compressed copy. Depth images are not pictures.
    pictures = {
        topic: info
        for topic, info in topics.items()
        if info.msgcount
        and "depth" not in topic.lower()
        and not (topic.endswith("/compressed") and topic.removesuffix("/compressed") in topics)
    }
    if not pictures:
        raise InputError(f"{name} has no image topic" + (f"; it has {_listed(topics)}" if topics else ""))
    if len(pictures) > 1:
        raise ConfigError(f"{name} has several image topics; choose one with --topic: {_listed(pictures)}")
    return next(iter(pictures))


def _listed(topics: dict[str, Any]) -> str:
    return ", ".join(f"{topic} ({info.msgcount})" for topic, info in topics.items()) or "none"


def info_topics(topic: str) -> tuple[str, ...]:
    """Topics that may hold the camera of an image topic, by ROS's naming convention."""
    base = topic.removesuffix("/compressed")
    return (f"{base.rpartition('/')[0]}/camera_info", f"{base}/camera_info")


def is_rectified(topic: str) -> bool:
    return _RECTIFIED.search(topic.removesuffix("/compressed").rpartition("/")[2]) is not None


def stamp_ns(message: Any) -> int:
    """Time of the message header in nanoseconds."""
    stamp = message.header.stamp
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
    K, P, D = (_numbers(message, name) for name in ("k", "p", "d"))
    size = int(message.width), int(message.height)
    if len(K) != 9 or not K[0] > 0 or min(size) < 1:
        return None
    if rectified:
        if len(P) != 12 or not P[0] > 0:
            raise InputError("the images are rectified, and it has no projection matrix P")
        fx, fy, cx, cy, skew = P[0], P[5], P[2], P[6], P[1]
        kind: Distortion = "perspective"
        used: tuple[float, ...] = ()
    else:
        fx, fy, cx, cy, skew = K[0], K[4], K[2], K[5], K[1]
        kind, used = distortion(str(message.distortion_model), D)
    if abs(skew) > SKEW * fx:
        raise InputError(f"its camera matrix has skew {skew:g}")
    # The matrix is for the whole sensor. Images may be a part of it (roi), of which pixels were joined (binning).
    region, across, down = message.roi, max(1, int(message.binning_x)), max(1, int(message.binning_y))
    left, top = int(region.x_offset), int(region.y_offset)
    width, height = int(region.width) or size[0], int(region.height) or size[1]
    # In ROS (0, 0) is the centre of the first pixel.
    centre = (cx + 0.5 - left) / across, (cy + 0.5 - top) / down
    return Calibration(fx / across, fy / down, *centre, kind, used, (width // across, height // down))


def _numbers(message: Any, name: str) -> list[float]:
    """Numbers of a field, whose name is upper-case in ROS 1."""
    values = getattr(message, name.upper()) if hasattr(message, name.upper()) else getattr(message, name)
    return [float(value) for value in np.asarray(values, np.float64).ravel()]


def _line(error: BaseException) -> str:
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


def _library() -> ModuleType:
    try:
        import rosbags
        import rosbags.highlevel
        import rosbags.rosbag1
        import rosbags.rosbag2
        import rosbags.serde
        import rosbags.typesys
    except ImportError as error:
        raise missing_library("reading of ROS recordings", "rosbags") from error
    return rosbags  # type: ignore[no-any-return,unused-ignore]


def _database_errors() -> tuple[type[Exception], ...]:
    """Errors of the library that reads the databases of ROS 2."""
    try:
        import apsw
    except ImportError:
        return ()
    return (apsw.Error,)
