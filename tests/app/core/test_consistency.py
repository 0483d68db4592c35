"""What other views say about a depth map."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.consistency import DepthView, choose_neighbours, compare, consistent_pixels
from stream_recon.app.core.types import Certainty, FrameResult
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import room_result, walk_pose

CONFIG = PointsConfig()


def view(result: FrameResult) -> DepthView:
    return DepthView.from_result(result, CONFIG)


def walk(*indices: int) -> list[FrameResult]:
    return [room_result(index, size=(112, 84)) for index in indices]


def with_patch(result: FrameResult, factor: float) -> tuple[FrameResult, NDArray[np.bool_]]:
    """The result with the depth of a patch multiplied, and the patch without its border."""
    patch, inner = (np.zeros(result.depth.shape, bool) for _ in range(2))
    patch[30:50, 40:60], inner[33:47, 43:57] = True, True
    return replace(result, depth=np.where(patch, result.depth * np.float32(factor), result.depth)), inner


def test_views_of_one_room_agree() -> None:
    first, *others = walk(0, 5, 8)
    votes = compare(first, view(first), [view(other) for other in others])
    seen = votes.observed == 2
    assert seen.mean() > 0.4
    assert (votes.agree[seen] == 2).mean() > 0.99
    assert votes.through.sum() == 0 and votes.hidden.sum() == 0
    assert np.abs(votes.depth / first.depth - 1).max() < 0.006


def test_a_surface_in_free_space_is_seen_through_and_left_out() -> None:
    first, *others = walk(0, 5, 8)
    wrong, patch = with_patch(first, 0.6)
    votes = compare(wrong, view(wrong), [view(other) for other in others])
    seen = patch & (votes.observed > 0)
    assert seen.sum() > 100 and (votes.through[seen] > 0).mean() > 0.95
    keep, _ = consistent_pixels(wrong, view(wrong), [view(other) for other in others], CONFIG)
    assert not keep[seen].any() and keep[~patch].mean() > 0.85


def test_a_surface_behind_others_is_hidden_and_left_out() -> None:
    first, *others = walk(0, 5, 8)
    wrong, patch = with_patch(first, 1.3)
    votes = compare(wrong, view(wrong), [view(other) for other in others])
    seen = patch & (votes.observed > 0)
    assert seen.sum() > 100 and (votes.hidden[seen] > 0).all() and votes.agree[seen].sum() == 0
    keep, _ = consistent_pixels(wrong, view(wrong), [view(other) for other in others], CONFIG)
    assert not keep[seen].any()


def test_what_no_view_sees_is_kept() -> None:
    first = room_result(0, size=(112, 84))
    behind = np.diag([-1.0, 1.0, -1.0, 1.0])
    other = room_result(1, walk_pose(0) @ behind, size=(112, 84))
    keep, depth = consistent_pixels(first, view(first), [view(other)], CONFIG)
    alone, _ = consistent_pixels(first, view(first), [], CONFIG)
    np.testing.assert_array_equal(keep, alone)
    np.testing.assert_array_equal(depth, first.depth)


def test_noise_is_averaged_over_views_that_agree() -> None:
    random = np.random.default_rng(0)
    noisy = [
        replace(r, depth=(r.depth * (1 + 0.005 * random.standard_normal(r.depth.shape))).astype(np.float32))
        for r in walk(0, 3, 5, 8, 10)
    ]
    first, *others = noisy
    votes = compare(first, view(first), [view(other) for other in others])
    truth = room_result(0, size=(112, 84)).depth
    many = votes.agree == 4
    before, after = (np.abs(depth / truth - 1)[many].mean() for depth in (first.depth, votes.depth))
    assert many.sum() > 1000 and after < 0.7 * before


def test_measured_stereo_stays_where_one_view_sees_through_it() -> None:
    first, other = walk(0, 5)
    wrong, patch = with_patch(first, 0.6)
    certainty = np.full(wrong.depth.shape, Certainty.CONFIRMED, np.uint8)
    measured = replace(wrong, certainty=certainty)
    for result, stays in ((measured, True), (wrong, False)):
        votes = compare(result, view(result), [view(other)])
        keep, _ = consistent_pixels(result, view(result), [view(other)], CONFIG)
        assert (keep[patch & (votes.through == 1)] == stays).all()


@pytest.mark.parametrize("step", [1, 2])
def test_blocks_are_judged_nearly_as_pixels(step: int) -> None:
    first, *others = walk(0, 5, 8)
    wrong, patch = with_patch(first, 0.6)
    views = [view(other) for other in others]
    keep, _ = consistent_pixels(wrong, view(wrong), views, CONFIG, step)
    fine, _ = consistent_pixels(wrong, view(wrong), views, CONFIG)
    assert keep.shape == fine.shape and (keep == fine).mean() > 0.97
    assert keep[patch].mean() < 0.05


def test_neighbours_see_the_same_from_other_directions() -> None:
    results = walk(0, 0, 4, 8, 12, 60)
    own, *others = results
    cameras = [(r.T_world_camera, r.intrinsics, r.transform.source_size) for r in others]
    chosen = choose_neighbours(view(own), cameras, 2)
    # The same place again says nothing new, and a view of the other side of the room nothing at all.
    assert len(chosen) == 2 and 0 not in chosen and 4 not in chosen
    assert choose_neighbours(view(own), [], 2) == []
    blind = replace(own, depth=np.zeros_like(own.depth))
    assert choose_neighbours(view(blind), cameras, 2) == []
