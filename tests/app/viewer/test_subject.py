from dataclasses import replace

import numpy as np

from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.viewer.overview import ROUND_TILT_DEG, TILT_DEG, opening_direction
from stream_recon.app.viewer.subject import MAX_FRAMES, POINTS_PER_FRAME, Subject
from stream_recon.app.viewer.timeline import Timeline
from tests.app.boxroom import room_result
from tests.app.viewer.clouds import wall_distance

UP = np.array([0.0, -1.0, 0.0])


def filled(count: int) -> tuple[Subject, Timeline]:
    subject, timeline = Subject(), Timeline()
    for index in range(count):
        result = room_result(index, size=(28, 21))
        ordinal = timeline.add_frame(index, result.T_world_camera, result.intrinsics)
        subject.add(ordinal, result)
    return subject, timeline


def test_the_sample_lies_on_what_was_seen_and_follows_a_revision() -> None:
    subject, timeline = filled(5)
    points, rays = subject.world(timeline)
    assert len(points) == len(rays) <= 5 * POINTS_PER_FRAME
    assert wall_distance(points).max() < 1e-4
    np.testing.assert_allclose(np.linalg.norm(rays, axis=1), 1)
    moved = []
    for k in range(5):
        pose = timeline.poses[k].copy()
        pose[:3, 3] *= 2
        moved.append(FrameRevision(k, pose, 2.0))
    timeline.revise(Revision(tuple(moved)))
    np.testing.assert_allclose(subject.world(timeline)[0], 2 * points, atol=1e-6)


def test_its_size_is_bounded_and_it_covers_the_whole_video() -> None:
    subject, timeline = filled(0)
    result = replace(room_result(0, size=(28, 21)), T_world_camera=np.eye(4))
    for index in range(3 * MAX_FRAMES):
        pose = np.eye(4)
        pose[0, 3] = 100 * index  # further than the room is wide
        subject.add(timeline.add_frame(index, pose, result.intrinsics), result)
    frames = np.unique(np.rint(subject.world(timeline)[0][:, 0] / 100))
    assert MAX_FRAMES / 4 < len(frames) == len(subject) <= MAX_FRAMES
    assert frames[0] == 0 and frames[-1] > 3 * MAX_FRAMES - 8 and np.diff(frames).max() <= 8


def test_the_view_is_from_the_side_on_which_the_cameras_were() -> None:
    rays = np.array([[1.0, 0, 0]]) + np.random.default_rng(0).normal(0, 0.2, (200, 3))
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    direction, tilt = opening_direction(rays, np.array([0.0, 0, 1]), UP)
    assert direction @ [1, 0, 0] > 0.95 and tilt == TILT_DEG
    around = np.stack([np.cos(np.arange(24) / 24 * 2 * np.pi), np.zeros(24), np.sin(np.arange(24) / 24 * 2 * np.pi)], 1)
    direction, tilt = opening_direction(around, np.array([0.0, 0, 1]), UP)
    assert direction @ [0, 0, 1] > 0.9 and np.isclose(tilt, ROUND_TILT_DEG), "the first camera decides"
    assert np.isfinite(opening_direction(np.zeros((0, 3)), UP, UP)[0]).all()
