"""Messages for other programs, independent of any wire format, and the table of topics.

Frames follow REP 105: ``map`` -> ``odom`` -> ``base_link`` -> ``camera_optical_frame``. Body axes are x forward, y
left, z up; the optical frame's are x right, y down, z forward. Stamps are those of the images, in nanoseconds.
"""

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import Intrinsics

MAP, ODOM, BASE, CAMERA = "map", "odom", "base_link", "camera_optical_frame"
"""Names of the frames."""
NODE = "stream_recon"
"""Name of the node, and first part of its topics."""


class Topic(StrEnum):
    """A topic, by its name."""

    TF = "/tf"
    TF_STATIC = "/tf_static"
    ODOMETRY = f"/{NODE}/odometry"
    POSE = f"/{NODE}/pose"
    PATH = f"/{NODE}/path"
    POINTS = f"/{NODE}/points"
    DEPTH = f"/{NODE}/depth"
    IMAGE = f"/{NODE}/image/compressed"
    CAMERA_INFO = f"/{NODE}/camera_info"
    DIAGNOSTICS = "/diagnostics"


BULKY = frozenset({Topic.POINTS, Topic.DEPTH, Topic.IMAGE, Topic.PATH})
"""Topics of large messages, of which only the newest matters."""
LATCHED = frozenset({Topic.TF_STATIC, Topic.PATH})
"""Topics whose last message a new subscriber gets at once."""
FROM_RESULT = frozenset({Topic.POINTS, Topic.DEPTH, Topic.IMAGE, Topic.CAMERA_INFO})
"""Topics that need a frame's depth map or image."""
FROM_POSE = frozenset(Topic) - FROM_RESULT - {Topic.TF_STATIC}
"""Topics that need a frame's pose alone."""


class State(StrEnum):
    """State of tracking."""

    INITIALISING = "initialising"
    TRACKING = "tracking"
    WEAK = "weak"
    """Consecutive frames do not agree well."""
    LOST = "lost"
    """The pose relative to earlier frames is a guess, or no frames arrive."""


@dataclass(frozen=True)
class Transform:
    """Pose of a frame in its parent."""

    parent: str
    child: str
    T: FloatArray  # [4, 4], T_parent_child


@dataclass(frozen=True)
class Transforms:
    """Transforms of one moment; ``static`` ones hold for all times."""

    stamp_ns: int
    transforms: tuple[Transform, ...]
    static: bool = False


@dataclass(frozen=True)
class OdometryMessage:
    """Pose and velocity of ``base_link`` in ``odom``."""

    stamp_ns: int
    T_odom_base: FloatArray  # [4, 4]
    covariance: FloatArray  # [6, 6], of x, y, z and rotations about the fixed axes x, y, z
    velocity: FloatArray  # [6], linear and angular, along the axes of base_link
    velocity_covariance: FloatArray  # [6, 6]


@dataclass(frozen=True)
class MapPose:
    """Pose of ``base_link`` in ``map``, with a covariance as in `OdometryMessage`."""

    stamp_ns: int
    T_map_base: FloatArray  # [4, 4]
    covariance: FloatArray  # [6, 6]


@dataclass(frozen=True)
class PathMessage:
    """Poses of ``base_link`` in ``map``, thinned."""

    stamp_ns: int
    stamps_ns: tuple[int, ...]
    T_map_base: FloatArray  # [N, 4, 4]


@dataclass(frozen=True)
class PointsMessage:
    """Points of one frame in the optical frame."""

    stamp_ns: int
    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]

    def packed(self, alpha: int) -> bytes:
        """Points of 16 bytes each: x, y, z as float32, then blue, green, red and ``alpha`` as bytes."""
        kind = np.dtype([("xyz", "<f4", 3), ("bgr", "u1", 3), ("alpha", "u1")])
        data = np.empty(len(self.xyz), kind)
        data["xyz"], data["bgr"], data["alpha"] = self.xyz, self.rgb[:, ::-1], alpha
        return data.tobytes()


POINT_BYTES = 16
"""Bytes of a point of `PointsMessage.packed`."""


@dataclass(frozen=True)
class Depth:
    """Depth map of one frame along the optical axis; NaN where it is not known."""

    stamp_ns: int
    depth: NDArray[np.float32]  # [h, w]


@dataclass(frozen=True)
class CompressedImage:
    """Image of one frame as JPEG, at the size of its depth map."""

    stamp_ns: int
    data: bytes


@dataclass(frozen=True)
class CameraInfo:
    """Pinhole camera of image and depth map."""

    stamp_ns: int
    width: int
    height: int
    intrinsics: Intrinsics


@dataclass(frozen=True)
class Diagnostics:
    """State of tracking, with figures as text."""

    stamp_ns: int
    state: State
    reason: str
    values: dict[str, str] = field(default_factory=dict)


Message = (
    Transforms
    | OdometryMessage
    | MapPose
    | PathMessage
    | PointsMessage
    | Depth
    | CompressedImage
    | CameraInfo
    | Diagnostics
)
