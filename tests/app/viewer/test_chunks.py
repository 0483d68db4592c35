"""Chunks of the viewer's cloud: budget, bounded count, confidence, revisions."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.geometry import frame_points
from stream_recon.app.transforms import transform_points
from stream_recon.app.viewer.chunks import Chunk, ChunkStore, ranked_points
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import HALF, room_result, walk_pose

CONFIG = PointsConfig(confidence_quantile=0.4, voxel=0.05)


def fill(store: ChunkStore, frames: int, size: tuple[int, int] = (28, 21), settle_every: int = 8) -> None:
    for ordinal in range(frames):
        result = room_result(ordinal, size=size)
        store.add_frame(ordinal, result.T_world_camera)
        store.add_points(ordinal, result.T_world_camera, *ranked_points(result, CONFIG))
        if ordinal % settle_every == 0:
            store.settle()
    store.settle()


def world_points(chunk: Chunk) -> NDArray[np.float32]:
    return transform_points(chunk.T_world_anchor, chunk.points.xyz)


def wall_distance(xyz: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.abs(np.abs(xyz) - HALF).min(axis=1)


def test_points_stay_on_the_walls_whatever_happens_to_the_chunks() -> None:
    store = ChunkStore(budget=3000, voxel=0.02, chunk_frames=8, max_chunks=4)
    fill(store, 100)
    assert len(store.chunks) <= 4
    assert 0 < store.total <= 3000
    for chunk in store.chunks:
        assert wall_distance(world_points(chunk)).max() < 1e-4


def test_two_thousand_frames_stay_within_the_budget_and_cover_the_whole_video() -> None:
    store = ChunkStore(budget=20_000, voxel=0.01, chunk_frames=16, max_chunks=24)
    fill(store, 2000, size=(14, 14), settle_every=40)
    assert store.total <= 20_000
    assert store.total > 10_000
    assert len(store.chunks) <= 24
    assert store.chunks[0].first == 0
    assert store.chunks[-1].last == 1999
    assert all(a.last + 1 == b.first for a, b in zip(store.chunks, store.chunks[1:], strict=False))
    assert all(len(c.points) for c in store.chunks)


def test_older_chunks_are_decimated_more() -> None:
    store = ChunkStore(budget=8000, voxel=0.01, chunk_frames=16, max_chunks=64)
    fill(store, 16 * 24)
    sizes = np.array([len(c.points) for c in store.chunks])
    assert sizes[:8].mean() < 0.8 * sizes[-9:-1].mean()
    assert store.chunks[0].voxel > store.chunks[-2].voxel


def test_one_point_a_voxel_and_the_surest_wins() -> None:
    store = ChunkStore(budget=100_000, voxel=0.2, chunk_frames=64)
    fill(store, 20)
    (chunk,) = store.chunks
    cells = np.floor(chunk.points.xyz.astype(np.float64) / chunk.voxel).astype(int)
    assert len(np.unique(cells, axis=0)) == len(cells)
    rank_of = {tuple(c): r for c, r in zip(cells, chunk.points.rank, strict=True)}
    result = room_result(0, size=(28, 21))  # the anchor: its points are in the chunk's axes already
    points, rank = ranked_points(result, CONFIG)
    for cell, sureness in zip(np.floor(points.xyz.astype(np.float64) / 0.2).astype(int), rank, strict=True):
        assert rank_of[tuple(cell)] >= sureness


def test_the_confidence_filter_agrees_with_the_points_config() -> None:
    result = room_result(7, size=(56, 42))
    points, rank = ranked_points(result, CONFIG)
    kept = frame_points(result, CONFIG)
    assert np.count_nonzero(rank >= 40) == pytest.approx(len(kept), rel=0.03)
    store = ChunkStore(budget=10_000, voxel=1e-4)
    store.add_frame(0, result.T_world_camera)
    store.add_points(0, result.T_world_camera, points, rank)
    store.settle()
    everything = store.chunks[0].points
    assert len(everything.shown(0, 0)) == len(points)
    counts = [len(everything.shown(q, 0)) for q in (0, 20, 40, 60, 95)]
    assert counts == [int(np.count_nonzero(rank >= q)) for q in (0, 20, 40, 60, 95)]
    assert (np.diff(counts) < 0).all()


def test_points_can_be_shown_up_to_a_frame() -> None:
    store = ChunkStore(budget=50_000, voxel=0.02)
    fill(store, 10)
    points = store.chunks[0].points
    early = points.shown(0, 3)
    assert 0 < len(early) < len(points)
    assert early.frame.max() == 3
    assert len(points.shown(0, 9)) == len(points)


def test_an_anchors_revision_moves_the_chunk_and_touches_no_points() -> None:
    store = ChunkStore(budget=50_000, voxel=0.02, chunk_frames=8)
    fill(store, 24)
    before = [(c.version, c.points) for c in store.chunks]
    better = walk_pose(0.83)
    store.revise({8: better})
    assert [(c.version, id(c.points)) for c in store.chunks] == [(v, id(p)) for v, p in before]
    np.testing.assert_array_equal(store.chunks[1].T_world_anchor, better)


def test_a_rigid_revision_of_all_frames_touches_no_points_in_any_order() -> None:
    shift = np.eye(4)
    shift[:3, :3] = walk_pose(0.4)[:3, :3]
    shift[:3, 3] = [0.5, -0.2, 1.0]
    revised = {o: shift @ walk_pose(o / 10) for o in range(24)}
    together = ChunkStore(budget=50_000, voxel=0.02, chunk_frames=8)
    fill(together, 24)
    versions = [c.version for c in together.chunks]
    together.revise(revised)
    assert [c.version for c in together.chunks] == versions

    one_by_one = ChunkStore(budget=50_000, voxel=0.02, chunk_frames=8)
    fill(one_by_one, 24)
    for ordinal in reversed(range(24)):
        one_by_one.revise({ordinal: revised[ordinal]})
    for a, b in zip(together.chunks, one_by_one.chunks, strict=True):
        np.testing.assert_allclose(world_points(a), world_points(b), atol=0.02)


def test_another_frames_revision_moves_its_points_alone() -> None:
    store = ChunkStore(budget=50_000, voxel=0.02, chunk_frames=8)
    fill(store, 8)
    (chunk,) = store.chunks
    before, version = world_points(chunk), chunk.version
    mine = chunk.points.frame == 5
    tiny = walk_pose(0.5)
    tiny[0, 3] += 0.001
    store.revise({5: tiny})
    assert chunk.version == version
    moved = walk_pose(0.5)
    moved[:3, 3] += [0.3, 0.0, -0.1]
    store.revise({5: moved})
    assert chunk.version == version + 1
    after = world_points(chunk)
    np.testing.assert_array_equal(after[~mine], before[~mine])
    np.testing.assert_allclose(after[mine] - before[mine], np.tile([0.3, 0, -0.1], (mine.sum(), 1)), atol=1e-4)


def test_points_in_a_cone_are_those_that_are_in_the_world() -> None:
    store = ChunkStore(budget=5000, voxel=0.02, chunk_frames=8, max_chunks=4)
    fill(store, 40)
    xyz = np.concatenate([world_points(chunk) for chunk in store.chunks]).astype(np.float64)
    apex, end, slope = np.array([0.3, 0.1, -0.2]), np.array([1.4 * HALF[0], 0.4, 0.9]), 0.5
    axis = (end - apex) / np.linalg.norm(end - apex)
    along = (xyz - apex) @ axis
    aside = np.linalg.norm(xyz - apex - along[:, None] * axis, axis=1)
    expected = ((along > 0) & (along < np.linalg.norm(end - apex)) & (aside < slope * along)).sum()
    assert expected > 20
    assert store.count_in_cone(apex, end, slope) == pytest.approx(expected, abs=2)
    assert store.count_in_cone(apex, apex, slope) == 0
