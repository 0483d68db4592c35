"""Covariances of exported poses: what tracks tie, and that recordings state it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.export.formats import export
from stream_recon.app.export.pose_covariance import frame_covariances
from stream_recon.app.publishing.frame_tree import R_BODY_OPTICAL
from stream_recon.app.publishing.messages import Topic
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.tracks import SparseTracks
from tests.app.export.rooms import SIZE, room_frames, write_room
from tests.app.result_files import write_tracks

KEYFRAMES = [0, 2, 4, 6]
FOCAL, SOURCE = 1.6 * SIZE[0], 2 * np.array(SIZE)


def noisy_tracks(noise_px: float = 0.5) -> SparseTracks:
    """Points of the first frame's walls where keyframes see them."""
    results = room_frames(8)
    world = results[0].camera_points.reshape(-1, 3)[::11].astype(np.float64)
    random, frame, point, pixel = np.random.default_rng(0), [], [], []
    for index in KEYFRAMES:
        T = invert_pose(results[index].T_world_camera)
        local = world @ T[:3, :3].T + T[:3, 3]
        at = local[:, :2] / local[:, 2:] * FOCAL + SOURCE / 2
        shown = np.flatnonzero((local[:, 2] > 0.1) & (at > 0).all(axis=1) & (at < SOURCE).all(axis=1))
        frame.append(np.full(len(shown), index))
        point.append(shown)
        pixel.append(at[shown] + noise_px * random.normal(size=(len(shown), 2)))
    order = np.argsort(np.concatenate(point), kind="stable")
    frames, points = (np.concatenate(each)[order].astype(np.int32) for each in (frame, point))
    lens, pixels = np.array([FOCAL, *SOURCE / 2, 0.0]), np.concatenate(pixel)[order].astype(np.float32)
    no_loops, errors = np.empty((0, 2), np.int32), np.zeros(len(world), np.float32)
    return SparseTracks(world, errors, frames, points, pixels, lens, SOURCE.astype(np.int32), no_loops)


def covariances(tracks: SparseTracks) -> dict[int, np.ndarray]:
    return frame_covariances([FrameCamera.from_result(each) for each in room_frames(8)], tracks, known_camera=True)


def test_poses_are_as_uncertain_as_tracks_are_and_frames_between_more() -> None:
    fine, coarse = covariances(noisy_tracks(0.25)), covariances(noisy_tracks(0.5))
    assert sorted(fine) == [0, 1, 2, 3, 4, 5, 6] and not fine[0].any(), "frame 7 is beyond the last keyframe"
    for index in KEYFRAMES[1:]:
        assert np.trace(coarse[index]) == pytest.approx(4 * np.trace(fine[index]), rel=0.3)
        assert np.linalg.eigvalsh(fine[index] / np.trace(fine[index])).min() > 0
    for first, between, last in ((0, 1, 2), (2, 3, 4)):
        assert np.trace(fine[between]) > 0.5 * (np.trace(fine[first]) + np.trace(fine[last]))


def test_what_tracks_do_not_tie_to_the_first_frame_is_not_known() -> None:
    tracks = noisy_tracks()
    apart = tracks.frame >= 4
    points = np.concatenate([tracks.points, tracks.points])
    split = replace(tracks, points=points, point=tracks.point + len(tracks.points) * apart.astype(np.int32))
    assert sorted(covariances(split)) == [0, 1, 2]
    wrong = replace(tracks, pixel=np.where((tracks.frame == 4)[:, None], 3.0, tracks.pixel).astype(np.float32))
    assert sorted(covariances(wrong)) == [0, 1, 2, 6], "keyframe 4 is not where its tracks are"
    later = replace(tracks, frame=np.where(tracks.frame == 0, 1, tracks.frame).astype(np.int32))
    assert covariances(later) == {}, "the first frame has no tracks"


def test_recordings_state_the_covariance_of_each_pose_or_that_it_is_not_known(tmp_path: Path) -> None:
    write_room(tmp_path / "out")
    refined, unknown = tmp_path / "refined", tmp_path / "unrefined"
    export(tmp_path / "out", "ros2bag", unknown)
    write_tracks(tmp_path / "out", noisy_tracks())
    _, report = export(tmp_path / "out", "ros2bag", refined)
    assert any("-1: it is not known" in note for note in report.notes)
    result = read_result(tmp_path / "out")
    known = frame_covariances(result.cameras, noisy_tracks(), known_camera=result.has_known_camera)
    for folder, expected in ((refined, known), (unknown, {})):
        with AnyReader([folder / "bag"], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as bag:
            poses = [c for c in bag.connections if c.topic == Topic.POSE.value]
            told = [bag.deserialize(data, c.msgtype).pose.covariance for c, _, data in bag.messages(poses)]
        assert len(told) == 8
        for camera, stated in zip(result.cameras, told, strict=True):
            C = expected.get(camera.index)
            if C is None:
                assert stated[0] == -1
                continue
            # Of the position first, along the axes of the map; rotations there are those of the camera, turned.
            R = R_BODY_OPTICAL @ camera.T_world_camera[:3, :3]
            J = np.zeros((6, 6))
            J[:3, 3:], J[3:, :3] = R_BODY_OPTICAL, R
            assert stated.reshape(6, 6) == pytest.approx(J @ C @ J.T, abs=1e-12)
