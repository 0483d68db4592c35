"""Messages in the schemas of Foxglove, by the library foxglove-sdk."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from stream_recon.app.core.transforms import FloatArray, quaternion_xyzw
from stream_recon.app.publishing import messages as msg
from stream_recon.app.publishing.ros_messages import camera_matrices
from stream_recon.configs.errors import missing_library

SCHEMAS = {
    msg.Topic.TF: "FrameTransforms",
    msg.Topic.ODOMETRY: "Odometry",
    msg.Topic.POSE: "PoseInFrame",
    msg.Topic.PATH: "PosesInFrame",
    msg.Topic.POINTS: "PointCloud",
    msg.Topic.DEPTH: "RawImage",
    msg.Topic.IMAGE: "CompressedImage",
    msg.Topic.CAMERA_INFO: "CameraCalibration",
    msg.Topic.DIAGNOSTICS: None,
}
"""Schema of each topic; None: JSON by `DIAGNOSTICS_SCHEMA`. Static transforms are repeated with the others."""
DIAGNOSTICS_SCHEMA = {
    "title": "stream_recon.Tracking",
    "type": "object",
    "properties": {
        "state": {"type": "string", "enum": [state.value for state in msg.State]},
        "reason": {"type": "string"},
        "stamp_ns": {"type": "integer"},
        "values": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""JSON schema of the state of tracking."""


@dataclass(frozen=True)
class FoxgloveChannel:
    """A topic as Foxglove describes it."""

    topic: msg.Topic
    encoding: str
    schema_name: str
    schema_encoding: str
    schema: bytes


def foxglove_library() -> ModuleType:
    """The library foxglove-sdk. Raises ResourceError where it is not installed."""
    try:
        import foxglove
        import foxglove.messages
    except ImportError as error:
        raise missing_library("publishing for Foxglove", "foxglove-sdk") from error
    return foxglove  # type: ignore[no-any-return,unused-ignore]


def channels() -> list[FoxgloveChannel]:
    """All channels. Raises ResourceError."""
    library, described = foxglove_library().messages, []
    for topic, name in SCHEMAS.items():
        if name is None:
            schema = json.dumps(DIAGNOSTICS_SCHEMA).encode()
            described.append(FoxgloveChannel(topic, "json", str(DIAGNOSTICS_SCHEMA["title"]), "jsonschema", schema))
        else:
            kind = getattr(library, name).get_schema()
            described.append(FoxgloveChannel(topic, "protobuf", kind.name, kind.encoding, kind.data))
    return described


class FoxgloveEncoder:
    """Encodes messages; keeps the static transforms, which Foxglove has with the others."""

    def __init__(self) -> None:
        self._library = foxglove_library().messages
        self._static: tuple[Any, ...] = ()
        self._makers: dict[type, Callable[[Any], Any]] = {
            msg.OdometryMessage: self._odometry,
            msg.MapPose: self._map_pose,
            msg.PathMessage: self._path,
            msg.PointsMessage: self._points,
            msg.Depth: self._depth,
            msg.CompressedImage: self._image,
            msg.CameraInfo: self._camera,
        }

    def __call__(self, message: msg.Message) -> bytes:
        """A message's bytes; none for static transforms, which come with the next others."""
        if isinstance(message, msg.Diagnostics):
            record = {"state": message.state, "reason": message.reason, "stamp_ns": message.stamp_ns}
            return json.dumps({**record, "values": message.values}).encode()
        if isinstance(message, msg.Transforms):
            if message.static:
                self._static = message.transforms
                return b""
            return bytes(self._transforms(message).encode())
        return bytes(self._makers[type(message)](message).encode())

    def _time(self, stamp_ns: int) -> Any:
        seconds, nanoseconds = divmod(stamp_ns, 10**9)
        return self._library.Timestamp(seconds, nanoseconds)

    def _vector(self, values: Any) -> Any:
        x, y, z = map(float, values)
        return self._library.Vector3(x=x, y=y, z=z)

    def _quaternion(self, T: FloatArray) -> Any:
        x, y, z, w = map(float, quaternion_xyzw(T[:3, :3]))
        return self._library.Quaternion(x=x, y=y, z=z, w=w)

    def _pose(self, T: FloatArray) -> Any:
        return self._library.Pose(position=self._vector(T[:3, 3]), orientation=self._quaternion(T))

    def _transforms(self, message: msg.Transforms) -> Any:
        stamp = self._time(message.stamp_ns)
        transforms = [
            self._library.FrameTransform(
                timestamp=stamp,
                parent_frame_id=each.parent,
                child_frame_id=each.child,
                translation=self._vector(each.T[:3, 3]),
                rotation=self._quaternion(each.T),
            )
            for each in (*message.transforms, *self._static)
        ]
        return self._library.FrameTransforms(transforms=transforms)

    def _odometry(self, message: msg.OdometryMessage) -> Any:
        return self._library.Odometry(
            timestamp=self._time(message.stamp_ns),
            frame_id=msg.ODOM,
            body_frame_id=msg.BASE,
            pose=self._pose(message.T_odom_base),
            linear_velocity=self._vector(message.velocity[:3]),
            angular_velocity=self._vector(message.velocity[3:]),
            pose_covariance=message.covariance.ravel().tolist(),
            velocity_covariance=message.velocity_covariance.ravel().tolist(),
        )

    def _map_pose(self, message: msg.MapPose) -> Any:
        return self._library.PoseInFrame(
            timestamp=self._time(message.stamp_ns), frame_id=msg.MAP, pose=self._pose(message.T_map_base)
        )

    def _path(self, message: msg.PathMessage) -> Any:
        poses = [self._pose(T) for T in message.T_map_base]
        return self._library.PosesInFrame(timestamp=self._time(message.stamp_ns), frame_id=msg.MAP, poses=poses)

    def _points(self, message: msg.PointsMessage) -> Any:
        numeric = self._library.PackedElementFieldNumericType
        kinds = [(name, 4 * at, numeric.Float32) for at, name in enumerate(("x", "y", "z"))]
        kinds += [(name, 12 + at, numeric.Uint8) for at, name in enumerate(("blue", "green", "red", "alpha"))]
        return self._library.PointCloud(
            timestamp=self._time(message.stamp_ns),
            frame_id=msg.CAMERA,
            point_stride=msg.POINT_BYTES,
            fields=[self._library.PackedElementField(name=name, offset=at, type=kind) for name, at, kind in kinds],
            data=message.packed(alpha=255),
        )

    def _depth(self, message: msg.Depth) -> Any:
        height, width = message.depth.shape
        return self._library.RawImage(
            timestamp=self._time(message.stamp_ns), frame_id=msg.CAMERA, width=width, height=height, encoding="32FC1",
            step=4 * width, data=message.depth.astype("<f4", copy=False).tobytes(),
        )  # fmt: skip

    def _image(self, message: msg.CompressedImage) -> Any:
        stamp = self._time(message.stamp_ns)
        return self._library.CompressedImage(timestamp=stamp, frame_id=msg.CAMERA, data=message.data, format="jpeg")

    def _camera(self, message: msg.CameraInfo) -> Any:
        K, P = camera_matrices(message)
        return self._library.CameraCalibration(
            timestamp=self._time(message.stamp_ns), frame_id=msg.CAMERA, width=message.width, height=message.height,
            distortion_model="plumb_bob", D=[0.0] * 5, K=K.ravel().tolist(),
            R=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0], P=P.ravel().tolist(),
        )  # fmt: skip
