"""Stereo on a rendered scene: a slanted wall and a box in front of it, seen by a camera that moves sideways."""

import weakref
from dataclasses import replace
from functools import cache
from itertools import pairwise

import cv2
import numpy as np
import pytest

from stream_recon.app.core.types import Certainty, Intrinsics
from stream_recon.app.slam.dense.arrays import NumpyArrays
from stream_recon.app.slam.dense.config import (
    FillConfig,
    FreeSpaceConfig,
    OtherSurfaceConfig,
    PlaneConfig,
    ReflectionConfig,
    SourceConfig,
    StereoConfig,
    SupportConfig,
    SweepConfig,
    TriangulatedPointConfig,
)
from stream_recon.app.slam.dense.stereo import DenseDepth, DenseStereo
from stream_recon.app.slam.dense.sweep import sides
from stream_recon.app.slam.dense.torch_arrays import TorchArrays
from stream_recon.app.slam.dense.views import StereoView, source_views

SIZE = (96, 72)
CAMERA = Intrinsics(90.0, 90.0, 48.0, 36.0)


@cache
def texture() -> np.ndarray:
    noise = np.random.default_rng(1).uniform(0, 255, (512, 512)).astype(np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 1.5) * 4 - 380


def rendered(position: float) -> tuple[np.ndarray, np.ndarray]:
    """Image and depth of a camera at x = ``position`` that looks along z."""
    x, y = np.meshgrid(
        (np.arange(SIZE[0]) + 0.5 - CAMERA.cx) / CAMERA.fx, (np.arange(SIZE[1]) + 0.5 - CAMERA.cy) / CAMERA.fy
    )
    # Wall z = 2 + .4 X, and a box of depth 1.4 with |X| < .3, |Y| < .25.
    wall = (2 + 0.4 * position) / (1 - 0.4 * x)
    on_box = (np.abs(x * 1.4 + position) < 0.3) & (np.abs(y * 1.4) < 0.25)
    depth = np.where(on_box, 1.4, wall)
    X, Y = x * depth + position, y * depth
    u, v = (X * 80 + 256 + 90 * on_box).astype(np.float32), (Y * 80 + 256).astype(np.float32)
    return cv2.remap(texture(), u, v, cv2.INTER_LINEAR).clip(0, 255), depth.astype(np.float32)


@cache
def scene(count: int = 9) -> tuple[list[StereoView], list[np.ndarray]]:
    """Views with a prior that is too far on the left and too near on the right, and true depths."""
    views, truths = [], []
    error = np.broadcast_to(np.linspace(1.2, 0.85, SIZE[0], dtype=np.float32), SIZE[::-1])
    for number in range(count):
        position = 0.06 * (number - count // 2)
        grey, depth = rendered(position)
        T = np.eye(4)
        T[0, 3] = position
        views.append(StereoView(number, grey.astype(np.float32), CAMERA, T, depth * error))
        truths.append(depth)
    return views, truths


def maps(
    views: list[StereoView], arrays=None, processes: int = 1, config: StereoConfig | None = None
) -> list[DenseDepth]:
    dense = DenseStereo(arrays or NumpyArrays(), max(SIZE), processes, config or StereoConfig())
    try:
        return [found for view in views for found in dense.push(view)] + dense.finish()
    finally:
        dense.close()


def relative(depth: np.ndarray, truth: np.ndarray) -> np.ndarray:
    return np.abs(depth / truth - 1)


@cache
def found() -> list[DenseDepth]:
    return maps(scene()[0])


def test_depth_is_measured_and_confirmed_depth_is_exact():
    views, truths = scene()

    middle, truth, prior = found()[4], truths[4], views[4].prior

    confirmed = middle.certainty == Certainty.CONFIRMED
    assert confirmed.mean() > 0.5
    assert np.median(relative(middle.depth[confirmed], truth[confirmed])) < 0.01
    known = middle.depth > 0
    assert known.mean() > 0.98
    assert np.mean(relative(middle.depth[known], truth[known])) < 0.3 * np.mean(relative(prior, truth))


def test_maps_come_in_order_with_the_frames_numbers():
    assert [dense.index for dense in found()] == list(range(9))


def test_processes_change_nothing():
    for one, other in zip(found(), maps(scene()[0], processes=3), strict=True):
        np.testing.assert_array_equal(one.depth, other.depth)
        np.testing.assert_array_equal(one.certainty, other.certainty)


def test_torch_gives_the_same_maps():
    for one, other in zip(found(), maps(scene()[0], TorchArrays("cpu")), strict=True):
        both = (one.depth > 0) & (other.depth > 0)
        assert (one.certainty == other.certainty).mean() > 0.97
        assert np.median(relative(other.depth[both], one.depth[both])) < 2e-3


@pytest.mark.parametrize("arrays", [NumpyArrays(), TorchArrays("cpu")])
def test_views_may_differ_in_size(arrays):
    views = scene()[0]
    rows = np.s_[6:-6]
    camera = Intrinsics(CAMERA.fx, CAMERA.fy, CAMERA.cx, CAMERA.cy - 6)
    cut = [replace(v, grey=v.grey[rows], prior=v.prior[rows], camera=camera) for v in views[4:]]

    dense = maps([*views[:4], *cut], arrays)

    assert [d.depth.shape for d in dense] == [v.grey.shape for v in [*views[:4], *cut]]
    assert (dense[6].certainty == Certainty.CONFIRMED).mean() > 0.3


@pytest.mark.slow
def test_a_small_window_gives_maps_early_and_forgets_their_views():
    config = StereoConfig(sources=SourceConfig(window=2))
    dense = DenseStereo(NumpyArrays(), max(SIZE), config=config)
    references, complete = [], 0
    for view in scene(16)[0]:
        own = replace(view)
        references.append(weakref.ref(own))
        complete += len(dense.push(own))
        del own
        assert sum(reference() is not None for reference in references) <= 2 * 5 + 2
    assert complete >= 16 - 2 * 4
    assert complete + len(dense.finish()) == 16


def test_a_view_without_overlap_keeps_the_networks_depth():
    views, _ = scene()
    turned = views[0].T_world_camera.copy()
    turned[:3, :3] = np.diag([-1.0, 1.0, -1.0])
    alone = StereoView(99, views[0].grey, CAMERA, turned, views[0].prior)

    last = maps([*views[:3], alone])[-1]

    assert set(np.unique(last.certainty)) == {Certainty.NETWORK}
    np.testing.assert_allclose(last.depth, alone.prior, rtol=1e-3)


def test_pixels_without_prior_depth_stay_empty():
    views, _ = scene()
    prior = views[4].prior.copy()
    prior[:10] = 0
    masked = StereoView(4, views[4].grey, CAMERA, views[4].T_world_camera, prior)

    middle = maps([*views[:4], masked, *views[5:]])[4]

    assert (middle.depth[:10] == 0).all()
    assert (middle.certainty[:10] == Certainty.NONE).all()


def test_triangulated_points_correct_a_prior_that_no_sweep_spans():
    views, truths = scene()
    rng = np.random.default_rng(0)
    column, row = rng.integers(0, SIZE[0], 60), rng.integers(0, SIZE[1], 60)
    far = [
        StereoView(
            v.index,
            v.grey,
            CAMERA,
            v.T_world_camera,
            2.5 * t,
            np.stack([column, row], 1).astype(np.float32) + 0.5,
            t[row, column],
        )
        for v, t in zip(views, truths, strict=True)
    ]

    middle = maps(far)[4]

    assert np.median(relative(middle.depth, truths[4])) < 0.03


def test_source_views_prefer_the_best_angle():
    views, _ = scene(15)

    chosen = source_views(views, 7, SourceConfig(max_count=4))

    # Positions are .06 apart at a depth of about 1.8: 6 degrees are three of them.
    assert {abs(number - 7) for number in chosen} <= {2, 3, 4}


OFF = {
    "points": TriangulatedPointConfig(is_enabled=False),
    "other_surfaces": OtherSurfaceConfig(is_enabled=False),
    "support": SupportConfig(is_enabled=False),
    "reflections": ReflectionConfig(is_enabled=False),
    "fill": FillConfig(is_enabled=False),
    "free_space": FreeSpaceConfig(is_enabled=False),
    "planes": PlaneConfig(is_enabled=False),
}


@pytest.mark.parametrize("name", OFF)
def test_each_mechanism_can_be_switched_off_alone(name):
    views, truths = scene()
    middle = maps(views, config=StereoConfig(**{name: OFF[name]}))[4]
    confirmed = middle.certainty == Certainty.CONFIRMED
    assert confirmed.mean() > 0.5
    assert np.median(relative(middle.depth[confirmed], truths[4][confirmed])) < 0.01


@pytest.mark.parametrize("side", [192, 384, 640, 800])
def test_each_size_is_at_most_twice_the_last(side):
    coarse = SweepConfig().coarse_side
    found = sides(side, coarse)
    assert found[-1] == side
    assert found[0] <= 1.2 * coarse
    assert all(b <= 2 * a + 1 for a, b in pairwise(found))


PATCH = np.random.default_rng(2).uniform(0, 255, (16, 20)).astype(np.float32)
"""Texture of a moving thing."""


def with_moving_thing() -> tuple[list[StereoView], list[tuple[slice, slice]]]:
    """The scene with a thing that falls in front of the wall, and its pixels in each view."""
    views, places = [], []
    for number, view in enumerate(scene()[0]):
        place = np.s_[6 * number : 6 * number + 16, 66:86]
        grey, prior = view.grey.copy(), view.prior.copy()
        grey[place], prior[place] = PATCH[: grey[place].shape[0]], 0.8
        views.append(replace(view, grey=grey, prior=prior))
        places.append(place)
    return views, places


def test_moving_things_are_left_out_and_the_wall_behind_them_stays():
    views, places = with_moving_thing()
    results = maps(views)
    inside = np.concatenate(
        [dense.depth[place].ravel() for dense, place in zip(results[2:7], places[2:7], strict=True)]
    )
    assert (np.abs(inside / 0.8 - 1) < 0.2).mean() < 0.15
    for number in range(2, 7):
        outside = np.ones(SIZE[::-1], bool)
        outside[places[number]] = False
        known = outside & (results[number].certainty == Certainty.CONFIRMED)
        assert known.mean() > 0.4
        assert (relative(results[number].depth, scene()[1][number])[known] < 0.05).mean() > 0.95


def test_depth_in_the_free_space_of_neighbours_is_left_out():
    views, _ = scene()
    prior = views[4].prior.copy()
    prior[8:20, 70:84] = 0.9
    grey = views[4].grey.copy()
    grey[8:20, 70:84] = 128  # nothing to match: a reflection, or a guess of the network

    middle = maps([*views[:4], replace(views[4], grey=grey, prior=prior), *views[5:]])[4]

    assert (middle.certainty[10:18, 72:82] == Certainty.NONE).mean() > 0.9


POLE = 4
"""Width of a pole in pixels."""


def with_pole() -> tuple[list[StereoView], list[np.ndarray]]:
    """The scene with a pole at depth 1.2 before the wall, and the pole's pixels in each view."""
    views, masks = [], []
    for view in scene()[0]:
        centre = CAMERA.fx * (0.42 - view.T_world_camera[0, 3]) / 1.2 + CAMERA.cx
        x, y = np.meshgrid(np.arange(SIZE[0]) + 0.5, np.arange(SIZE[1]) + 0.5)
        mask = np.abs(x - centre) < POLE / 2
        shade = cv2.remap(
            texture(),
            ((x - centre) * 0.9 + 40).astype(np.float32),
            (y * 0.9 + 300).astype(np.float32),
            cv2.INTER_LINEAR,
        ).clip(0, 255)
        prior = np.where(mask, np.float32(1.2 * 1.1), view.prior)
        views.append(replace(view, grey=np.where(mask, shade, view.grey).astype(np.float32), prior=prior))
        masks.append(mask)
    return views, masks


def test_thin_things_that_are_confirmed_stay_in_front_of_the_wall():
    views, masks = with_pole()
    results = maps(views)
    for number in range(3, 6):
        depth = results[number].depth[masks[number]]
        confirmed = results[number].certainty[masks[number]] == Certainty.CONFIRMED
        assert confirmed.mean() > 0.4
        # The pole is at 1.2, the wall at 1.76 and more.
        assert (depth[confirmed] < 1.5).mean() > 0.95


def test_a_guess_becomes_a_surface_only_where_stereo_confirms_it():
    views = []
    for view in scene()[0]:
        grey = view.grey.copy()
        grey[:24] = 230  # sky
        guess = np.zeros(SIZE[::-1], bool)
        guess[:40] = True
        views.append(replace(view, grey=grey, is_guess=guess))

    middle = maps(views)[4]

    assert (middle.depth[:20] == 0).mean() > 0.98
    below = middle.certainty[27:40]
    assert set(np.unique(below)) <= {Certainty.NONE, Certainty.CONFIRMED}
    assert (below == Certainty.CONFIRMED).mean() > 0.4
    assert (middle.depth[42:] > 0).mean() > 0.95
