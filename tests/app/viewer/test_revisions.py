"""Revisions in the store: every point follows its own frame, and as few points as possible are touched."""

import numpy as np
import pytest

from stream_recon.app.core.transforms import Similarity, rotation_matrix
from stream_recon.app.core.types import FrameRevision, Intrinsics
from tests.app.boxroom import room_result, walk_pose
from tests.app.viewer.clouds import Cloud, PointPositions, similar, wall_distance

AWAY = Similarity(1.7, walk_pose(0.4)[:3, :3], np.array([0.5, -0.2, 1.0]))


def shifted(ordinal: int, *shift: float) -> FrameRevision:
    pose = walk_pose(ordinal / 10)
    pose[:3, 3] += shift
    return FrameRevision(ordinal, pose)


def slightly(random: np.random.Generator, ordinal: int, size: float) -> FrameRevision:
    """A frame turned, shifted and scaled by chance."""
    x, y, z = size * random.standard_normal(3)
    change = Similarity(1 + size * x, rotation_matrix(np.array([x, y, z, 1.0])), size * random.standard_normal(3))
    return similar(ordinal, walk_pose(ordinal / 10), change)


@pytest.mark.parametrize("ordinal", [8, 13], ids=["the first of its chunk", "another"])
def test_a_frame_named_alone_moves_alone(ordinal: int) -> None:
    cloud = Cloud().fill(24)
    places, versions = PointPositions(cloud), cloud.versions()
    mine = places.frame == ordinal
    assert 10 < mine.sum() < len(mine) / 5
    cloud.revise(shifted(ordinal, 0.3, 0.0, -0.1))
    assert places.moved()[~mine].max() == 0, "before their update, too"
    cloud.update_points()
    assert places.errors().max() < 1e-5
    assert places.moved()[~mine].max() < 1e-5
    np.testing.assert_allclose(places.moved()[mine], np.hypot(0.3, 0.1), atol=1e-5)
    assert np.array(cloud.versions()) - versions == pytest.approx([0, 1, 0])


def test_less_than_half_a_voxel_touches_nothing() -> None:
    cloud = Cloud().fill(24)
    places, versions = PointPositions(cloud), cloud.versions()
    cloud.revise(shifted(13, 0.009, 0.0, 0.0))
    assert not cloud.store.update_points(1)
    assert cloud.versions() == versions
    assert places.moved().max() == 0
    for _ in range(3):  # it does not add up: what counts is where the frame belongs
        cloud.revise(shifted(13, -0.009, 0.0, 0.0))
        cloud.revise(shifted(13, 0.009, 0.0, 0.0))
    assert cloud.versions() == versions
    cloud.revise(shifted(13, 0.018, 0.0, 0.0))
    cloud.update_points()
    assert places.errors().max() < 1e-5


def test_a_similarity_of_all_frames_touches_no_points() -> None:
    cloud = Cloud().fill(24)
    places, versions = PointPositions(cloud), cloud.versions()
    cloud.revise(*(similar(o, walk_pose(o / 10), AWAY) for o in range(24)))
    assert not cloud.store.update_points(1)
    assert cloud.versions() == versions
    assert places.errors().max() < 1e-5
    assert places.moved().min() > 0.1
    for chunk in cloud.store.chunks:
        assert chunk.S_world_chunk.scale == pytest.approx(1.7)


def test_a_similarity_of_half_the_frames_touches_the_chunk_that_it_cuts_alone() -> None:
    cloud = Cloud().fill(40)
    places, versions = PointPositions(cloud), cloud.versions()
    cloud.revise(*(similar(o, walk_pose(o / 10), AWAY) for o in range(20, 40)))
    assert places.moved()[places.frame < 20].max() == 0
    cloud.update_points()
    assert places.errors().max() < 1e-5
    assert places.moved()[places.frame < 20].max() < 1e-5
    assert np.array(cloud.versions()) - versions == pytest.approx([0, 0, 1, 0, 0])


def test_a_loop_bends_the_path_within_half_a_voxel_and_touches_no_points() -> None:
    cloud = Cloud().fill(400, size=(14, 14))
    places, versions = PointPositions(cloud), cloud.versions()
    # A drift of 4 degrees, 5 % in scale and half a unit, taken back bit by bit.
    cloud.revise(*drift_correction(400, turn=np.radians(4), grow=0.05, shift=0.5))
    assert not cloud.store.update_points(1)
    assert cloud.versions() == versions
    assert 0 < places.errors().max() < cloud.half_voxel
    assert places.moved().max() > 0.3


def drift_correction(count: int, turn: float, grow: float, shift: float) -> list[FrameRevision]:
    """Frames of the walk, each with its share of a drift."""
    frames = []
    for ordinal in range(count):
        share = ordinal / count
        change = Similarity(
            1 + grow * share,
            rotation_matrix(np.array([0.0, np.sin(share * turn / 2), 0.0, np.cos(share * turn / 2)])),
            np.array([shift * share, 0, 0]),
        )
        frames.append(similar(ordinal, walk_pose(ordinal / 10), change))
    return frames


def test_rough_corrections_are_followed_at_a_bounded_rate() -> None:
    cloud, random = Cloud().fill(80), np.random.default_rng(5)
    places = PointPositions(cloud)
    cloud.revise(*(slightly(random, o, 0.05) for o in range(80)))
    largest = max(len(chunk.points) for chunk in cloud.store.chunks)
    before, turns = cloud.versions(), 0
    while cloud.store.update_points(1000):
        changed = np.flatnonzero(np.array(cloud.versions()) != before)
        assert 0 < sum(len(cloud.store.chunks[c].points) for c in changed) < 1000 + largest
        before, turns = cloud.versions(), turns + 1
    assert turns > 3
    assert places.errors().max() < cloud.half_voxel


@pytest.mark.parametrize("seed", range(4))
def test_whatever_was_revised_in_between_the_truth_puts_all_points_on_the_walls(seed: int) -> None:
    cloud, random = Cloud(max_chunks=6, budget=6000), np.random.default_rng(seed)
    for _ in range(12):
        cloud.fill(random.integers(1, 20), settle_every=int(random.integers(1, 9)))
        named = np.flatnonzero(random.random(len(cloud.timeline)) < random.choice([0.02, 0.5, 1.0]))
        cloud.revise(*(slightly(random, int(o), random.choice([1e-3, 0.1])) for o in named))
        if random.random() < 0.5:
            cloud.store.update_points(500)
    cloud.revise(*(FrameRevision(o, walk_pose(o / 10)) for o in range(len(cloud.timeline))))
    cloud.update_points()
    assert 0 < cloud.store.total <= 6000
    assert wall_distance(cloud.store.world_points().xyz).max() < cloud.half_voxel


def test_a_better_focal_length_moves_the_points() -> None:
    cloud = Cloud().fill(24)
    places = PointPositions(cloud)
    k = room_result(0, size=(28, 21)).intrinsics
    wider = Intrinsics(0.9 * k.fx, 0.9 * k.fy, k.cx, k.cy)
    cloud.revise(*(FrameRevision(o, walk_pose(o / 10), intrinsics=wider) for o in range(24)))
    cloud.update_points()
    assert places.errors().max() < cloud.half_voxel
    assert places.moved().max() > 0.1


def test_an_empty_revision_and_frames_without_points_are_fine() -> None:
    cloud = Cloud().fill(4)
    ordinal = cloud.timeline.add_frame(77, walk_pose(0.4), cloud.timeline.intrinsics(0))
    cloud.store.add_frame(ordinal, walk_pose(0.4))
    places = PointPositions(cloud)
    cloud.revise()
    cloud.revise(FrameRevision(77, np.eye(4)))
    cloud.update_points()
    assert places.moved().max() == 0
    np.testing.assert_array_equal(cloud.timeline.poses[ordinal], np.eye(4))
