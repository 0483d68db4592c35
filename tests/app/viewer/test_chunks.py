"""Chunks of the viewer's cloud: budget, bounded count, confidence."""

import numpy as np
import pytest

from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.points import PointOptions, ranked_points
from tests.app.boxroom import room_result
from tests.app.viewer.clouds import CONFIG, Cloud, wall_distance


def test_points_stay_on_the_walls_whatever_happens_to_the_chunks() -> None:
    store = Cloud(0.02, 3000, 8, 4).fill(100).store
    assert len(store.chunks) <= 4
    assert 0 < store.total <= 3000
    assert wall_distance(store.world_points().xyz).max() < 1e-4


def test_merged_chunks_keep_the_points_of_both() -> None:
    store = Cloud(0.02, 100_000, 2, 2).fill(8).store
    assert len(store.chunks) == 2 and set(store.world_points().frame.tolist()) == set(range(8))


@pytest.mark.slow
def test_two_thousand_frames_stay_within_the_budget_and_cover_the_whole_video() -> None:
    store = Cloud(0.01, 20_000, 16, 24).fill(2000, size=(14, 14), settle_every=40).store
    assert store.total <= 20_000
    assert store.total > 10_000
    assert len(store.chunks) <= 24
    assert store.chunks[0].first == 0
    assert store.chunks[-1].last == 1999
    assert all(a.last + 1 == b.first for a, b in zip(store.chunks, store.chunks[1:], strict=False))
    assert all(len(c.points) for c in store.chunks)


def test_older_chunks_are_decimated_more() -> None:
    store = Cloud(0.01, 8000, 16, 64).fill(16 * 24).store
    sizes = np.array([len(c.points) for c in store.chunks])
    assert sizes[:8].mean() < 0.8 * sizes[-9:-1].mean()
    assert store.chunks[0].voxel > store.chunks[-2].voxel


def test_one_point_a_voxel_and_the_surest_wins() -> None:
    store = Cloud(voxel=0.2, chunk_frames=64).fill(20).store
    (chunk,) = store.chunks
    cells = np.floor(chunk.points.xyz.astype(np.float64) / chunk.voxel).astype(int)
    assert len(np.unique(cells, axis=0)) == len(cells)
    rank_of = {tuple(c): r for c, r in zip(cells, chunk.points.rank, strict=True)}
    result = room_result(0, size=(28, 21))  # the first frame: its points are in the chunk's axes already
    points, rank, _ = ranked_points(result, CONFIG)
    for cell, sureness in zip(np.floor(points.xyz.astype(np.float64) / 0.2).astype(int), rank, strict=True):
        assert rank_of[tuple(cell)] >= sureness


def test_the_confidence_filter_hides_a_share_of_a_frame() -> None:
    result = room_result(7, size=(56, 42))
    points, rank, window = ranked_points(result, CONFIG)
    assert np.count_nonzero(rank >= 40) == pytest.approx(0.6 * len(points), rel=0.05)
    store = ChunkStore(budget=10_000, voxel=1e-4)
    store.add_frame(0, result.T_world_camera)
    store.add_points(0, points, rank, window)
    store.merge_pending()
    everything = store.chunks[0].points
    assert len(everything.filtered(PointOptions(last_frame=0))) == len(points)
    counts = [len(everything.filtered(PointOptions(q))) for q in (0, 20, 40, 60, 95)]
    assert counts == [int(np.count_nonzero(rank >= q)) for q in (0, 20, 40, 60, 95)]
    assert (np.diff(counts) < 0).all()


def test_points_can_be_shown_up_to_a_frame() -> None:
    store = Cloud(chunk_frames=64).fill(10).store
    points = store.chunks[0].points
    early = points.filtered(PointOptions(last_frame=3))
    assert 0 < len(early) < len(points)
    assert early.frame.max() == 3
    assert len(points.filtered(PointOptions(last_frame=9))) == len(points)


def test_pixels_without_depth_do_not_count_in_the_ranks() -> None:
    """Of a quarter of the pixels with depth, the surest is still above nearly all."""
    result = room_result(0)
    result.depth[:, : 3 * result.depth.shape[1] // 4] = 0.0
    result.confidence[result.depth == 0] = 1.0
    result.confidence[result.depth > 0] = np.linspace(0.1, 0.9, int((result.depth > 0).sum()))
    assert ranked_points(result, CONFIG)[1].max() >= 99
