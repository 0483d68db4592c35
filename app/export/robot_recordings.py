"""Exports for robots' tools: a ROS 2 bag, and an MCAP file with the schemas of Foxglove."""

from pathlib import Path
from typing import Any

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.pose_covariance import frame_covariances
from stream_recon.app.publishing import ros_messages
from stream_recon.app.publishing.frame_tree import Tracked, camera_on_base
from stream_recon.app.publishing.mcap_sink import McapSink
from stream_recon.app.publishing.message_source import MessageSource
from stream_recon.app.publishing.messages import BASE, CAMERA, LATCHED, MAP, ODOM, Message, Topic
from stream_recon.app.publishing.publisher import Clock
from stream_recon.app.publishing.sink import Sink
from stream_recon.app.result.cameras import FrameCamera, of_bodies
from stream_recon.configs.errors import OutputError

FOREVER = (9_223_372_036, 854_775_807)
"""Seconds and nanoseconds by which ROS 2 writes an unlimited duration."""
BAG_NAME = "bag"
"""Folder of the bag within the export."""


def write_ros2_bag(job: ExportJob, folder: Path) -> ExportReport:
    """Write a bag that ``ros2 bag play`` reads. Raises StreamReconError, or OSError for system errors."""
    sink = BagSink(folder / BAG_NAME)
    count = _write(job, sink)
    return ExportReport(f"{count} frames as a ROS 2 bag.", ["Play it with 'ros2 bag play bag'.", *_notes(job)])


def write_mcap(job: ExportJob, path: Path) -> ExportReport:
    """Write an MCAP file for Foxglove. Raises StreamReconError, or OSError for system errors."""
    path.unlink(missing_ok=True)
    sink = McapSink(path)
    try:
        count = _write(job, sink)
    except BaseException:
        sink.discard()
        raise
    return ExportReport(f"{count} frames for Foxglove.", ["Open it with Foxglove.", *_notes(job)])


def _notes(job: ExportJob) -> list[str]:
    unit = job.result.metric_scale
    return [
        f"Frames: {MAP} -> {ODOM} -> {BASE} -> {CAMERA}. {BASE} is the camera with axes x forward, y left, z up, and "
        f"{MAP} is the world with these axes: the first camera, up to its error.",
        "odom is the network's motion; map -> odom is what the final poses differ from it by.",
        f"Lengths: {'metres' if unit else 'the unit of the result, which is arbitrary'}.",
        f"Covariances of {Topic.POSE.value} are those of poses relative to the first frame's, which are exact at it, "
        "without the error of the unit of length. A first element of -1: it is not known.",
        f"Topics: {', '.join(topic.value for topic in Topic)}.",
        "Stamps count from the start of the source.",
    ]


def _write(job: ExportJob, sink: Sink) -> int:
    """Write the chosen frames with their final poses, of a rig those of view 0; returns their number."""
    cameras, failures = list(of_bodies(job.cameras("all"))), list[Exception]()
    clock = Clock(0)
    source = MessageSource([sink], job.points, camera_on_base(), live=False, errors=None)
    known = frame_covariances(job.result.cameras, job.tracks, known_camera=job.result.has_known_camera)
    source.on_failure = lambda _, error: failures.append(error)
    try:
        source.begin()
        for done, camera in enumerate(cameras, start=1):
            try:
                result = job.result.surface_of(camera)
            except OutputError:
                result = None
            stamp = clock.stamp_ns(camera.timestamp)
            source.add(_tracked(camera, stamp, result, known.get(camera.index)), result)
            if failures:
                raise OSError(str(failures[0])) from failures[0]
            job.progress(done, len(cameras))
        source.send_path(now=True)
    finally:
        sink.close()
    return len(cameras)


def _tracked(camera: FrameCamera, stamp_ns: int, result: FrameResult | None, covariance: FloatArray | None) -> Tracked:
    """A frame's final pose and the network's motion, in the result's unit."""
    depth = 1.0 if result is None else Tracked.of(result, 0).depth
    return Tracked(
        camera.index, stamp_ns, camera.T_world_camera, camera.as_network.T_world_camera, camera.map_scale, depth,
        camera.segment, camera.health, covariance, camera.is_keyframe,
    )  # fmt: skip


class BagSink(Sink):
    """Writes a ROS 2 bag with MCAP storage, each message under its stamp."""

    lossless = True

    def __init__(self, path: Path) -> None:
        """Raises ResourceError: the library is missing."""
        library = ros_messages.rosbags_library()
        bag, qos = library.rosbag2, library.interfaces
        self._path = path
        self._writer: Any = bag.Writer(path, version=9, storage_plugin=bag.StoragePlugin.MCAP)
        self._writer.open()
        self._connections = {topic: self._connect(topic, qos) for topic in Topic}
        self._last_ns = 0

    @property
    def address(self) -> str:
        return str(self._path)

    def send(self, topic: Topic, message: Message) -> None:
        self._last_ns = max(self._last_ns, message.stamp_ns)
        self._writer.write(self._connections[topic], self._last_ns, ros_messages.encode(topic, message))

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _connect(self, topic: Topic, interfaces: Any) -> Any:
        """A topic of the bag, with the quality of service that it is to be played with."""
        profile = ros_messages.QOS[topic]
        forever = interfaces.QosTime(*FOREVER)
        qos = interfaces.Qos(
            interfaces.QosHistory.KEEP_LAST, profile.depth,
            interfaces.QosReliability.RELIABLE if profile.reliable else interfaces.QosReliability.BEST_EFFORT,
            interfaces.QosDurability.TRANSIENT_LOCAL if topic in LATCHED else interfaces.QosDurability.VOLATILE,
            forever, forever, interfaces.QosLiveliness.AUTOMATIC, forever, False,
        )  # fmt: skip
        kind, store = ros_messages.TYPES[topic], ros_messages.typestore()
        return self._writer.add_connection(topic.value, kind, typestore=store, offered_qos_profiles=[qos])
