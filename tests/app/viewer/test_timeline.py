"""What the viewer remembers of frames: cameras, where their points belong, pictures."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core.depth_points import frame_points
from stream_recon.app.core.rig import VIEW_STRIDE
from stream_recon.app.core.transforms import transform_points
from stream_recon.app.core.types import FrameRevision, Intrinsics, Revision
from stream_recon.app.viewer.timeline import Timeline, make_view
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import room_result, walk_pose


def test_views_are_thinned_evenly_and_poses_kept() -> None:
    timeline = Timeline(max_views=16)
    result = room_result(0)
    for i in range(1000):
        ordinal = timeline.add_frame(3 * i, walk_pose(i / 10), result.intrinsics)
        if timeline.wants_view(ordinal):
            timeline.add_view(make_view(ordinal, result))
    kept = sorted(v.ordinal for v in timeline.views.values())
    assert 8 <= len(kept) <= 16
    assert np.diff(kept).max() <= 128
    assert len(timeline.thinned_views(5)) <= 5
    nearest = timeline.nearest_view(500)
    assert nearest is not None and abs(nearest.ordinal - 500) <= 64
    assert timeline.index(10) == 30
    assert timeline.path(50).shape == (50, 3)
    np.testing.assert_allclose(timeline.path(50)[-1], walk_pose(99.9)[:3, 3], atol=1e-6)
    named = timeline.revise(Revision((FrameRevision(33, walk_pose(0)), FrameRevision(30, np.eye(4)))))
    assert named.tolist() == [11, 10]
    np.testing.assert_array_equal(timeline.poses[10], np.eye(4))


def test_the_path_of_a_rig_is_that_of_its_first_view() -> None:
    timeline, k = Timeline(), room_result(0).intrinsics
    for view in range(3):
        for i in range(5):
            timeline.add_frame(view * VIEW_STRIDE + i, walk_pose(i / 10), k)
    np.testing.assert_allclose(timeline.path(50), [walk_pose(i / 10)[:3, 3] for i in range(5)], atol=1e-6)
    assert timeline.causal_path(50).shape == (5, 3) and len(timeline) == 15


def test_a_view_keeps_the_cameras_shape() -> None:
    result = room_result(0, size=(280, 210))
    view = make_view(0, result)
    assert view.image.shape == (96, 128, 3)
    fov, aspect = view.shape(result.intrinsics)
    assert fov == pytest.approx(2 * np.arctan(105 / (0.8 * 280)))
    assert aspect == pytest.approx(280 / 210)
    k = result.intrinsics
    fov, aspect = view.shape(Intrinsics(k.fx, 2 * k.fy, k.cx, k.cy))
    assert fov == pytest.approx(2 * np.arctan(105 / (1.6 * 280)))
    assert aspect == pytest.approx(2 * 280 / 210)


def test_placements_say_where_points_of_another_depth_and_camera_are() -> None:
    result = room_result(3, size=(56, 42))
    k = result.intrinsics
    better = Intrinsics(1.2 * k.fx, 0.9 * k.fy, k.cx + 3, k.cy - 5)
    timeline = Timeline()
    timeline.add_frame(3, result.T_world_camera, k)
    first = frame_points(result, PointsConfig(confidence=0.0))
    pose = walk_pose(0.9)
    for scale, camera, wanted in ((2.0, better, better), (3.0, None, better), (0.5, k, k)):
        named = timeline.revise(Revision((FrameRevision(3, pose, scale, camera),)))
        now = replace(result, T_world_camera=pose, depth=result.depth * np.float32(scale), intrinsics=wanted)
        again = frame_points(now, PointsConfig(confidence=0.0))
        (placement,) = timeline.point_transforms(named)
        np.testing.assert_allclose(transform_points(placement, first.xyz), transform_points(pose, again.xyz), atol=1e-4)
        assert timeline.intrinsics(0) == wanted
