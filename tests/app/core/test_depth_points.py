"""Invariants of unprojection, and of depth maps compared."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import (
    depth_edges,
    depth_ratio,
    frame_points,
    project,
    sure_pixels,
    transform_result,
)
from stream_recon.app.core.transforms import Similarity, rotation_matrix, transform_points
from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, Intrinsics
from stream_recon.configs.schema import CONFIDENCE_LEVELS, PointsConfig
from tests.app.boxroom import room_result

EVERYTHING = PointsConfig(confidence=0.0, voxel=0.01, edge_ratio=1e6)


def make_result(depth: NDArray[np.float32], confidence: NDArray[np.float32] | None = None) -> FrameResult:
    h, w = depth.shape
    rng = np.random.default_rng(3)
    return FrameResult(
        index=0,
        timestamp=0.0,
        T_world_camera=np.eye(4),
        intrinsics=Intrinsics(2.1 * w, 1.7 * w, 0.9 * w, 1.1 * h),
        depth=depth,
        confidence=np.full(depth.shape, 2.0, np.float32) if confidence is None else confidence,
        rgb=rng.integers(0, 256, (h, w, 3), dtype=np.uint8),
        transform=ImageTransform((2 * w + 10, 2 * h), (10.0, 0.0, 2.0 * w, 2.0 * h), (w, h)),
        is_keyframe=True,
    )


def test_unprojected_pixels_project_back_onto_their_centres() -> None:
    depth = np.random.default_rng(0).uniform(0.5, 4.0, (21, 28)).astype(np.float32)
    result = make_result(depth)
    points = frame_points(result, EVERYTHING)
    k = result.network_intrinsics
    pixels = project(points.xyz, np.array([[k.fx, 0, k.cx], [0, k.fy, k.cy], [0, 0, 1]]))
    rows, columns = np.mgrid[:21, :28]
    np.testing.assert_allclose(pixels, np.stack([columns.ravel(), rows.ravel()], axis=1) + 0.5, atol=1e-4)
    np.testing.assert_array_equal(points.xyz[:, 2], depth.ravel())
    np.testing.assert_array_equal(points.rgb, result.rgb.reshape(-1, 3))


def test_source_intrinsics_and_crop_lead_to_the_same_rays() -> None:
    # A network pixel unprojected, then projected with the source's camera, is the source pixel it came from.
    result = make_result(np.full((14, 28), 3.0, np.float32))
    points = frame_points(result, EVERYTHING)
    k = result.intrinsics
    source = project(points.xyz, np.array([[k.fx, 0, k.cx], [0, k.fy, k.cy], [0, 0, 1]]))
    rows, columns = np.mgrid[:14, :28]
    expected = np.stack([(columns.ravel() + 0.5) * 2 + 10, (rows.ravel() + 0.5) * 2], axis=1)
    np.testing.assert_allclose(source, expected, atol=1e-3)


def test_pixels_without_depth_give_no_point() -> None:
    depth = np.full((14, 14), 2.0, np.float32)
    depth[0, :4] = [0.0, -1.0, np.nan, np.inf]
    points = frame_points(make_result(depth), EVERYTHING)
    assert len(points) == 14 * 14 - 4
    assert np.isfinite(points.xyz).all()
    assert len(frame_points(make_result(np.zeros((14, 14), np.float32)), EVERYTHING)) == 0


@pytest.mark.parametrize("level", [0.0, 0.05, 0.5, 0.9])
def test_the_confidence_kept_is_absolute(level: float) -> None:
    confidence = np.random.default_rng(1).lognormal(0, 2, (20, 50)).astype(np.float32)
    kept = frame_points(make_result(np.ones((20, 50), np.float32), confidence), PointsConfig(confidence=level))
    assert len(kept) == np.count_nonzero(confidence / (1 + confidence) >= np.float32(level))
    # What else is in the image changes nothing.
    confidence[:10] = 1000
    more = frame_points(make_result(np.ones((20, 50), np.float32), confidence), PointsConfig(confidence=level))
    lower = np.count_nonzero(more.confidence < 1000)
    np.testing.assert_array_equal(more.confidence[-lower:], kept.confidence[-lower:])


def test_dense_depth_is_chosen_by_its_certainty() -> None:
    certainty = np.repeat(np.arange(4, dtype=np.uint8), 25).reshape(10, 10)
    depth = np.where(certainty > 0, 2, 0).astype(np.float32)
    result = replace(make_result(depth, certainty.astype(np.float32)), certainty=certainty)
    counts = [
        np.count_nonzero(sure_pixels(result, PointsConfig(confidence=CONFIDENCE_LEVELS[name])))
        for name in ("low", "medium", "high")
    ]
    assert counts == [75, 50, 25]


def test_confirmed_pixels_stay_at_depth_edges() -> None:
    depth = np.full((10, 12), 1.0, np.float32)
    depth[3:6, 4:8] = 2.0
    certainty = np.full(depth.shape, Certainty.CONFIRMED, np.uint8)
    result = replace(make_result(depth, certainty.astype(np.float32)), certainty=certainty)
    assert sure_pixels(result, PointsConfig()).all()


def test_depth_edges_leave_both_sides_of_a_step_and_nothing_else() -> None:
    depth = np.full((10, 12), 1.0, np.float32)
    depth[:, 6:] = 1.09
    depth[4, 2] = np.nan
    edges = depth_edges(depth, 0.08)
    expected = np.zeros((10, 12), bool)
    expected[:, 5:7] = True
    np.testing.assert_array_equal(edges, expected)
    assert not depth_edges(depth, 0.1).any()
    np.testing.assert_array_equal(depth_edges(depth.T, 0.08), expected.T)


def test_edge_pixels_give_no_points() -> None:
    depth = np.full((10, 12), 1.0, np.float32)
    depth[3:6, 4:8] = 2.0
    points = frame_points(make_result(depth), PointsConfig(confidence=0.0, edge_ratio=0.5))
    # The 3x4 block keeps its 1x2 inside; the ring of its 14 neighbours goes too.
    assert np.count_nonzero(points.xyz[:, 2] == 2.0) == 2
    assert np.count_nonzero(points.xyz[:, 2] == 1.0) == 120 - 12 - 14


def test_the_ratio_of_two_depth_maps_leaves_sky_out() -> None:
    room = room_result(0)
    rows = np.arange(room.depth.shape[0])[:, None]
    sky = np.broadcast_to(rows < 0.3 * len(rows), room.depth.shape)
    confidence = np.where(sky, 0.0, 1.0).astype(np.float32)
    # As far as it comes, and otherwise in every run.
    earlier = replace(room, depth=np.where(sky, 300, 2.5 * room.depth), confidence=confidence)
    later = replace(room, depth=np.where(sky, 50, room.depth), confidence=confidence)
    assert depth_ratio(earlier, later) == pytest.approx(2.5)


def test_no_ratio_without_depth() -> None:
    room = room_result(0)
    assert depth_ratio(room, replace(room, depth=np.zeros_like(room.depth))) is None


def test_a_moved_result_has_its_points_where_the_similarity_puts_them() -> None:
    room = room_result(7)
    to_other = Similarity(1.7, rotation_matrix(np.array([0.1, -0.4, 0.2, 0.8])), np.array([3.0, -1.0, 0.5]))
    here, there = (frame_points(result, EVERYTHING) for result in (room, transform_result(room, to_other)))
    expected = to_other.apply(transform_points(room.T_world_camera, here.xyz).astype(np.float64))
    other = transform_points(transform_result(room, to_other).T_world_camera, there.xyz)
    np.testing.assert_allclose(other, expected, atol=1e-5)
