"""Messages of a run: made only where somebody listens."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stream_recon.app.core.depth_points import frame_points, sure_pixels
from stream_recon.app.core.types import FrameResult, FrameRevision
from stream_recon.app.publishing import messages as msg
from stream_recon.app.publishing.frame_tree import NETWORK, UNKNOWN_VARIANCE, FrameTree, PoseSigmas, Tracked
from stream_recon.app.publishing.pose_history import PoseHistory
from stream_recon.app.publishing.sink import Sink
from stream_recon.app.publishing.tracking_state import TrackingState
from stream_recon.app.result.depth import jpeg_of
from stream_recon.configs.schema import PointsConfig

IMAGE_QUALITY = 85
"""Encoder options of images: 85 is visually lossless at this size."""
PATH_SECONDS, PATH_POSES_PER_S = 1.0, 400
"""Least time between two paths, which repeat all poses, and most poses a second."""


class MessageSource:
    """Turns frames and revisions into messages for sinks."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        points: PointsConfig,
        T_base_camera: np.ndarray,
        *,
        live: bool,
        silence_s: float = math.inf,
        errors: PoseSigmas | None = NETWORK,
    ) -> None:
        """
        Args:
            points: selection of points.
            T_base_camera: pose [4, 4] of the optical frame in ``base_link``.
            live: frames arrive in real time, so that a delay can be stated.
            silence_s: time without a frame after which tracking is lost.
            errors: of the poses in the map, see `FrameTree`.
        """
        self.tree = FrameTree(T_base_camera, errors)
        self.tracking = TrackingState(silence_s)
        self._sinks, self._points, self._live = list(sinks), points, live
        self.on_failure: Callable[[Sink, Exception], None] = lambda sink, error: None
        """Called with a sink that failed, which gets no further messages."""
        self._history = PoseHistory()
        self._map_stamp = -1
        """Stamp of the last ``map`` -> ``odom``."""
        self._path_at = -np.inf
        self._path_is_old = False
        self.extra: dict[str, str] = {}
        """Further figures of the diagnostics."""

    def begin(self) -> None:
        """Send what holds from the start."""
        self._send(msg.Topic.TF_STATIC, self._static())

    def add(self, frame: Tracked, result: FrameResult | None) -> None:
        """Send a frame's messages; without ``result`` those of its pose."""
        tree, stamp = self.tree, frame.stamp_ns
        tree.add(frame)
        self.tracking.add(frame)
        self._history.add(frame.index, stamp, frame.T_world_camera)
        self._path_is_old = True
        # A revision may have used this stamp for a transform already.
        self._map_stamp = max(stamp, self._map_stamp + 1)
        if self.wanted(msg.Topic.TF):
            self._send(msg.Topic.TF, self._dynamic(stamp))
        if self.wanted(msg.Topic.ODOMETRY):
            velocity, noise = tree.velocity, tree.velocity_covariance
            self._send(
                msg.Topic.ODOMETRY,
                msg.OdometryMessage(stamp, tree.T_odom_base.copy(), tree.covariance, velocity, noise),
            )
        if self.wanted(msg.Topic.POSE):
            self._send(msg.Topic.POSE, self._pose())
        if result is not None and any(map(self.wanted, msg.FROM_RESULT)):
            self._send_result(stamp, result)
        if self.wanted(msg.Topic.DIAGNOSTICS):
            self._send(msg.Topic.DIAGNOSTICS, self.diagnostics())
        self.send_path()

    def revise(self, frames: Mapping[int, FrameRevision]) -> None:
        """Take a revision; where it moves the last frame, ``map`` -> ``odom`` changes."""
        self._history.revise(frames)
        self._path_is_old = True
        last = self.tree.last
        if last is not None and last.index in frames:
            self.tree.correct(frames[last.index].T_world_camera)
            self._map_stamp += 1
            if self.wanted(msg.Topic.TF):
                self._send(msg.Topic.TF, msg.Transforms(self._map_stamp, (self._map_to_odom(),)))
            if self.wanted(msg.Topic.POSE):
                self._send(msg.Topic.POSE, self._pose())
        self.send_path()

    def welcome(self) -> None:
        """Send new peers the last messages of topics that they joined."""
        for sink in list(self._sinks):
            topics, messages = sink.joined(), list[tuple[msg.Topic, msg.Message]]()
            if msg.Topic.TF_STATIC in topics:
                messages.append((msg.Topic.TF_STATIC, self._static()))
            if self.tree.last is not None and msg.Topic.PATH in topics:
                messages.append((msg.Topic.PATH, self._path()))
            if self.tree.last is not None and msg.Topic.TF in topics:
                self._map_stamp += 1
                messages.append((msg.Topic.TF, msg.Transforms(self._map_stamp, (self._map_to_odom(),))))
            if msg.Topic.DIAGNOSTICS in topics:
                messages.append((msg.Topic.DIAGNOSTICS, self.diagnostics()))
            for topic, message in messages:
                self._send_to(sink, topic, message)

    def send_path(self, *, now: bool = False) -> None:
        """Send the path if it has changed and is due, or at once."""
        rest_s = max(PATH_SECONDS, len(self._history) / PATH_POSES_PER_S)
        due = now or time.monotonic() >= self._path_at + rest_s
        if self._path_is_old and due and self.wanted(msg.Topic.PATH):
            self._send(msg.Topic.PATH, self._path())
            self._path_is_old, self._path_at = False, time.monotonic()

    def heartbeat(self, silent_s: float) -> None:
        """Send the state while no frame arrives."""
        self.tracking.silent(silent_s)
        if self.wanted(msg.Topic.DIAGNOSTICS):
            self._send(msg.Topic.DIAGNOSTICS, self.diagnostics())
        self.send_path()

    def diagnostics(self) -> msg.Diagnostics:
        """The present state."""
        last = self.tree.last
        stamp = 0 if last is None else last.stamp_ns
        values = dict(self.extra)
        if last is not None:
            values |= {"frame": str(last.index), "segment": str(last.segment)}
            if last.health is not None:
                values["health"] = f"{last.health:.3f}"
            if self._live:
                values["delay_s"] = f"{(time.time_ns() - stamp) * 1e-9:.3f}"
        return msg.Diagnostics(stamp, self.tracking.state, self.tracking.reason, values)

    def _send_result(self, stamp: int, result: FrameResult) -> None:
        """Send image, depth map and points of a frame."""
        height, width = result.depth.shape
        sure = sure_pixels(result, self._points)
        if self.wanted(msg.Topic.CAMERA_INFO):
            self._send(msg.Topic.CAMERA_INFO, msg.CameraInfo(stamp, width, height, result.network_intrinsics))
        if self.wanted(msg.Topic.IMAGE):
            self._send(msg.Topic.IMAGE, msg.CompressedImage(stamp, jpeg_of(result.rgb, IMAGE_QUALITY)))
        if self.wanted(msg.Topic.DEPTH):
            depth = np.where(sure, result.depth, np.float32(np.nan)).astype(np.float32, copy=False)
            self._send(msg.Topic.DEPTH, msg.Depth(stamp, depth))
        if self.wanted(msg.Topic.POINTS):
            points = frame_points(result, self._points, sure)
            self._send(msg.Topic.POINTS, msg.PointsMessage(stamp, points.xyz, points.rgb))

    def wanted(self, topic: msg.Topic) -> bool:
        """Whether anybody listens to a topic."""
        return any(sink.wants(topic) for sink in self._sinks)

    def _send(self, topic: msg.Topic, message: msg.Message) -> None:
        for sink in list(self._sinks):
            if sink.wants(topic):
                self._send_to(sink, topic, message)

    def _send_to(self, sink: Sink, topic: msg.Topic, message: msg.Message) -> None:
        try:
            sink.send(topic, message)
        except Exception as error:  # noqa: BLE001  # of any library; other sinks and the run continue
            self._sinks = [each for each in self._sinks if each is not sink]
            self.on_failure(sink, error)

    def _dynamic(self, stamp: int) -> msg.Transforms:
        base = msg.Transform(msg.ODOM, msg.BASE, self.tree.T_odom_base.copy())
        return msg.Transforms(stamp, (self._map_to_odom(), base))

    def _map_to_odom(self) -> msg.Transform:
        return msg.Transform(msg.MAP, msg.ODOM, self.tree.T_map_odom)

    def _static(self) -> msg.Transforms:
        return msg.Transforms(0, (msg.Transform(msg.BASE, msg.CAMERA, self.tree.T_base_camera),), static=True)

    def _pose(self) -> msg.MapPose:
        assert self.tree.last is not None
        lost = self.tracking.state is msg.State.LOST and self.tree.errors is not None
        covariance = np.eye(6) * UNKNOWN_VARIANCE if lost else self.tree.map_covariance
        return msg.MapPose(self.tree.last.stamp_ns, self.tree.T_map_base, covariance)

    def _path(self) -> msg.PathMessage:
        assert self.tree.last is not None
        T = self.tree.base_pose(self._history.poses)
        return msg.PathMessage(self.tree.last.stamp_ns, self._history.stamps_ns, T)
