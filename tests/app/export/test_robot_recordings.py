"""Recordings for robots' tools, read by rosbags, by the library mcap, and as a source again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from stream_recon.app.core.transforms import invert_pose, rotation_matrix
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.publishing.frame_tree import camera_on_base
from stream_recon.app.publishing.messages import Topic
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from tests.app.export.rooms import SIZE, room_frames, write_room


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("room") / "out"
    write_room(folder)
    return folder


def _matrix(transform: Any) -> np.ndarray:
    T, q, t = np.eye(4), transform.rotation, transform.translation
    T[:3, :3], T[:3, 3] = rotation_matrix(np.array([q.x, q.y, q.z, q.w])), (t.x, t.y, t.z)
    return T


def test_bag_has_all_topics_and_the_final_poses(room: Path, tmp_path: Path) -> None:
    target, _ = export(room, "ros2bag", tmp_path / "there")
    messages: dict[str, list[Any]] = {}
    with AnyReader([target / "bag"], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as bag:
        for connection, stamp, data in bag.messages():
            messages.setdefault(connection.topic, []).append((stamp, bag.deserialize(data, connection.msgtype)))
        durability = {c.topic: c.ext.offered_qos_profiles[0].durability.name for c in bag.connections}
    assert set(messages) == {topic.value for topic in Topic}
    assert durability[Topic.TF_STATIC] == "TRANSIENT_LOCAL" and durability[Topic.TF] == "VOLATILE"
    truth = room_frames(8)
    B = camera_on_base()
    for (stamp, message), result in zip(messages[Topic.TF], truth, strict=True):
        map_odom, odom_base = map(_matrix, (each.transform for each in message.transforms))
        assert np.allclose(invert_pose(B) @ map_odom @ odom_base @ B, result.T_world_camera, atol=1e-6)
        assert stamp == round(result.timestamp * 1e9)
    _, depth = messages[Topic.DEPTH][3]
    shown = depth.data.view("<f4").reshape(SIZE[1], SIZE[0])
    known = np.isfinite(shown)
    assert known.mean() > 0.5 and np.allclose(shown[known], truth[3].depth[known], atol=0.01)


def test_bag_is_a_source_again(room: Path, tmp_path: Path) -> None:
    target, _ = export(room, "ros2bag", tmp_path / "there", ExportOptions(frames="2"))
    with open_source(str(target / "bag"), FrameChoice()) as source:
        frames = list(source)
        assert source.intrinsics is not None
        assert source.intrinsics.fx == pytest.approx(0.8 * SIZE[0]) and source.intrinsics.cx == SIZE[0] / 2
    assert len(frames) == 4 and frames[0].rgb.shape[:2] == SIZE[::-1]


def test_mcap_has_the_channels_of_foxglove(room: Path, tmp_path: Path) -> None:
    pytest.importorskip("foxglove")
    reader = pytest.importorskip("mcap.reader")
    target, _ = export(room, "mcap", tmp_path / "there.mcap")
    with target.open("rb") as file:
        summary = reader.make_reader(file).get_summary()
        schemas = {c.topic: summary.schemas[c.schema_id].name for c in summary.channels.values()}
        counts = {summary.channels[number].topic: n for number, n in summary.statistics.channel_message_counts.items()}
    assert set(schemas) == {topic.value for topic in Topic} - {Topic.TF_STATIC.value}
    assert schemas[Topic.POINTS] == "foxglove.PointCloud" and schemas[Topic.TF] == "foxglove.FrameTransforms"
    assert counts[Topic.ODOMETRY] == counts[Topic.DEPTH] == counts[Topic.IMAGE] == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there.mcap", "there.mcap.README.txt"]
