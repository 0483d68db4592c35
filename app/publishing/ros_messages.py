"""Messages as ROS 2 ones in CDR, with their types, type hashes and quality of service, by the library rosbags."""

from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import FloatArray, quaternion_xyzw
from stream_recon.app.publishing import messages as msg
from stream_recon.app.sources.rmw_zenoh import RosQos
from stream_recon.configs.errors import missing_library

TYPES = {
    msg.Topic.TF: "tf2_msgs/msg/TFMessage",
    msg.Topic.TF_STATIC: "tf2_msgs/msg/TFMessage",
    msg.Topic.ODOMETRY: "nav_msgs/msg/Odometry",
    msg.Topic.POSE: "geometry_msgs/msg/PoseWithCovarianceStamped",
    msg.Topic.PATH: "nav_msgs/msg/Path",
    msg.Topic.POINTS: "sensor_msgs/msg/PointCloud2",
    msg.Topic.DEPTH: "sensor_msgs/msg/Image",
    msg.Topic.IMAGE: "sensor_msgs/msg/CompressedImage",
    msg.Topic.CAMERA_INFO: "sensor_msgs/msg/CameraInfo",
    msg.Topic.DIAGNOSTICS: "diagnostic_msgs/msg/DiagnosticArray",
}
"""Type of each topic."""
_SENSOR = RosQos(reliable=False, depth=5)
QOS = {
    msg.Topic.TF: RosQos(depth=100),
    msg.Topic.TF_STATIC: RosQos(depth=1, latched=True),
    msg.Topic.ODOMETRY: RosQos(depth=10),
    msg.Topic.POSE: RosQos(depth=10),
    msg.Topic.PATH: RosQos(depth=1, latched=True),
    msg.Topic.POINTS: _SENSOR,
    msg.Topic.DEPTH: _SENSOR,
    msg.Topic.IMAGE: _SENSOR,
    msg.Topic.CAMERA_INFO: _SENSOR,
    msg.Topic.DIAGNOSTICS: RosQos(depth=10),
}
"""Quality of service as such topics usually have it: sensor data best effort, what holds for long latched."""
LEVELS = {msg.State.TRACKING: 0, msg.State.INITIALISING: 1, msg.State.WEAK: 1, msg.State.LOST: 2}
"""Levels of diagnostic_msgs/DiagnosticStatus: OK, WARN, ERROR."""
FLOAT32 = 7
"""Number of the type in sensor_msgs/PointField."""


def rosbags_library() -> ModuleType:
    """The library rosbags. Raises ResourceError where it is not installed."""
    try:
        import rosbags.rosbag2
        import rosbags.typesys
    except ImportError as error:
        raise missing_library("writing of ROS 2 messages", "rosbags") from error
    return rosbags  # type: ignore[no-any-return,unused-ignore]


@cache
def typestore() -> Any:
    """Types of ROS 2 Jazzy; those used here are the same in Humble and later releases. Raises ResourceError."""
    typesys = rosbags_library().typesys
    return typesys.get_typestore(typesys.Stores.ROS2_JAZZY)


@cache
def type_hash(topic: msg.Topic) -> str:
    """Hash ``RIHS01_...`` of a topic's type."""
    return str(typestore().hash_rihs01(TYPES[topic]))


def encode(topic: msg.Topic, message: msg.Message) -> bytes:
    """A message in CDR, with its header of four bytes."""
    return bytes(typestore().serialize_cdr(ros_message(message), TYPES[topic]))


def ros_message(message: msg.Message) -> Any:
    """A message as an object of rosbags."""
    return _MAKERS[type(message)](message)


def _new(name: str, *values: Any, **named: Any) -> Any:
    package, _, kind = name.partition("/")
    return typestore().types[f"{package}/msg/{kind}"](*values, **named)


def _time(stamp_ns: int) -> Any:
    seconds, nanoseconds = divmod(stamp_ns, 10**9)
    return _new("builtin_interfaces/Time", seconds, nanoseconds)


def _header(stamp_ns: int, frame: str) -> Any:
    return _new("std_msgs/Header", _time(stamp_ns), frame)


def _vector(values: Any) -> Any:
    return _new("geometry_msgs/Vector3", *map(float, values))


def _quaternion(T: FloatArray) -> Any:
    return _new("geometry_msgs/Quaternion", *map(float, quaternion_xyzw(T[:3, :3])))


def _pose(T: FloatArray) -> Any:
    return _new("geometry_msgs/Pose", _new("geometry_msgs/Point", *map(float, T[:3, 3])), _quaternion(T))


def _pose_with_covariance(T: FloatArray, covariance: FloatArray) -> Any:
    return _new("geometry_msgs/PoseWithCovariance", _pose(T), np.ascontiguousarray(covariance).ravel())


def _transforms(message: msg.Transforms) -> Any:
    return _new(
        "tf2_msgs/TFMessage",
        [
            _new(
                "geometry_msgs/TransformStamped",
                _header(message.stamp_ns, each.parent),
                each.child,
                _new("geometry_msgs/Transform", _vector(each.T[:3, 3]), _quaternion(each.T)),
            )
            for each in message.transforms
        ],
    )


def _odometry(message: msg.OdometryMessage) -> Any:
    velocity = _new("geometry_msgs/Twist", _vector(message.velocity[:3]), _vector(message.velocity[3:]))
    twist = _new("geometry_msgs/TwistWithCovariance", velocity, message.velocity_covariance.ravel())
    pose = _pose_with_covariance(message.T_odom_base, message.covariance)
    return _new("nav_msgs/Odometry", _header(message.stamp_ns, msg.ODOM), msg.BASE, pose, twist)


def _map_pose(message: msg.MapPose) -> Any:
    pose = _pose_with_covariance(message.T_map_base, message.covariance)
    return _new("geometry_msgs/PoseWithCovarianceStamped", _header(message.stamp_ns, msg.MAP), pose)


def _path(message: msg.PathMessage) -> Any:
    poses = [
        _new("geometry_msgs/PoseStamped", _header(stamp, msg.MAP), _pose(T))
        for stamp, T in zip(message.stamps_ns, message.T_map_base, strict=True)
    ]
    return _new("nav_msgs/Path", _header(message.stamp_ns, msg.MAP), poses)


def _points(message: msg.PointsMessage) -> Any:
    names = ("x", "y", "z", "rgb")
    fields = [_new("sensor_msgs/PointField", name, 4 * at, FLOAT32, 1) for at, name in enumerate(names)]
    data, count = np.frombuffer(message.packed(alpha=0), np.uint8), len(message.xyz)
    header = _header(message.stamp_ns, msg.CAMERA)
    return _new(
        "sensor_msgs/PointCloud2", header, 1, count, fields, False, msg.POINT_BYTES, msg.POINT_BYTES * count, data, True
    )


def _depth(message: msg.Depth) -> Any:
    height, width = message.depth.shape
    data = np.ascontiguousarray(message.depth, "<f4").view(np.uint8).ravel()
    return _new("sensor_msgs/Image", _header(message.stamp_ns, msg.CAMERA), height, width, "32FC1", 0, 4 * width, data)


def _image(message: msg.CompressedImage) -> Any:
    data = np.frombuffer(message.data, np.uint8)
    return _new("sensor_msgs/CompressedImage", _header(message.stamp_ns, msg.CAMERA), "jpeg", data)


def camera_matrices(message: msg.CameraInfo) -> tuple[FloatArray, FloatArray]:
    """Matrices K [3, 3] and P [3, 4]; pixel (0, 0) is the centre of the first pixel, as in ROS."""
    k = message.intrinsics
    K = np.array([[k.fx, 0, k.cx - 0.5], [0, k.fy, k.cy - 0.5], [0, 0, 1]])
    return K, np.hstack([K, np.zeros((3, 1))])


def _camera_info(message: msg.CameraInfo) -> Any:
    K, P = camera_matrices(message)
    region = _new("sensor_msgs/RegionOfInterest", 0, 0, 0, 0, False)
    return _new(
        "sensor_msgs/CameraInfo", header=_header(message.stamp_ns, msg.CAMERA), height=message.height,
        width=message.width, distortion_model="plumb_bob", d=np.zeros(5), k=K.ravel(), r=np.eye(3).ravel(),
        p=P.ravel(), binning_x=0, binning_y=0, roi=region,
    )  # fmt: skip


def _diagnostics(message: msg.Diagnostics) -> Any:
    values = [_new("diagnostic_msgs/KeyValue", key, value) for key, value in message.values.items()]
    text = message.state + (f": {message.reason}" if message.reason else "")
    status = _new(
        "diagnostic_msgs/DiagnosticStatus", LEVELS[message.state], f"{msg.NODE}: tracking", text, msg.NODE, values
    )
    return _new("diagnostic_msgs/DiagnosticArray", _header(message.stamp_ns, ""), [status])


_MAKERS: dict[type, Callable[[Any], Any]] = {
    msg.Transforms: _transforms,
    msg.OdometryMessage: _odometry,
    msg.MapPose: _map_pose,
    msg.PathMessage: _path,
    msg.PointsMessage: _points,
    msg.Depth: _depth,
    msg.CompressedImage: _image,
    msg.CameraInfo: _camera_info,
    msg.Diagnostics: _diagnostics,
}
