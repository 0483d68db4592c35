"""Thin things that the network's depth misses: a pole before a wall, with triangulated points on both."""

from dataclasses import replace
from functools import cache

import cv2
import numpy as np
import pytest

from stream_recon.app.core.types import Certainty, Intrinsics
from stream_recon.app.slam.dense.arrays import NumpyArrays
from stream_recon.app.slam.dense.config import OtherSurfaceConfig, StereoConfig
from stream_recon.app.slam.dense.priors import corrected_priors, other_surfaces
from stream_recon.app.slam.dense.stereo import DenseDepth, DenseStereo
from stream_recon.app.slam.dense.views import StereoView

WIDTH, HEIGHT, POLE = 128, 96, 4
FOCAL, WALL = 120.0, 1.8
COUNT = 9


def texture() -> np.ndarray:
    noise = np.random.default_rng(1).uniform(0, 255, (1024, 1024)).astype(np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 1.5) * 4 - 380


@cache
def scene(distance: float, points: int) -> tuple[list[StereoView], list[np.ndarray]]:
    """Views whose prior is the wall, and the pixels of the pole."""
    rng, colours = np.random.default_rng(0), texture()
    heights = rng.uniform(-0.4, 0.4, points)
    x, y = np.meshgrid(np.arange(WIDTH, dtype=np.float32) + 0.5, np.arange(HEIGHT, dtype=np.float32) + 0.5)
    views, masks = [], []
    for number in range(COUNT):
        position = 0.06 * (number - COUNT // 2)
        centre = FOCAL * (0.1 - position) / distance + WIDTH / 2
        mask = np.abs(x - centre) < POLE / 2
        X, Y = (x - WIDTH / 2) / FOCAL * WALL + position, (y - HEIGHT / 2) / FOCAL * WALL
        wall = cv2.remap(colours, X * 120 + 400, Y * 120 + 400, cv2.INTER_LINEAR)
        pole = cv2.remap(colours, np.float32((x - centre) * 0.9 + 40), y * 0.9 + 300, cv2.INTER_LINEAR)
        grey = np.where(mask, pole, wall).clip(0, 255) + rng.normal(0, 1.5, mask.shape)
        pixels = np.stack([np.full(points, centre), heights * HEIGHT + HEIGHT / 2], axis=1)
        others = rng.uniform(0, (WIDTH, HEIGHT), (60, 2))
        others = others[np.abs(others[:, 0] - centre) > POLE]
        pixels = np.concatenate([pixels, others]).astype(np.float32)
        depths = np.array([distance] * points + [WALL] * len(others))
        depths = (depths * np.exp(rng.normal(0, 0.005, len(depths)))).astype(np.float32)
        T = np.eye(4)
        T[0, 3] = position
        camera = Intrinsics(FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2)
        prior = np.full(mask.shape, WALL, np.float32)
        views.append(StereoView(number, grey.astype(np.float32), camera, T, prior, pixels, depths))
        masks.append(mask)
    return views, masks


def maps(views: list[StereoView], config: StereoConfig) -> list[DenseDepth]:
    stereo = DenseStereo(NumpyArrays(), WIDTH, config=config)
    return [found for view in views for found in stereo.push(view)] + stereo.finish()


@pytest.mark.parametrize("distance", [0.8, 1.3])
def test_a_pole_that_the_prior_misses_is_found_without_floaters(distance):
    views, masks = scene(distance, 12)
    for dense, mask in list(zip(maps(views, StereoConfig()), masks, strict=True))[2:-2]:
        on_pole = np.abs(dense.depth[mask] / distance - 1) < 0.05
        assert on_pole.mean() > 0.5
        beside = dense.depth[~mask]
        assert ((beside > 0) & (np.abs(beside / WALL - 1) > 0.1)).mean() < 0.01


def test_without_the_depths_of_points_the_pole_is_missed():
    views, masks = scene(0.8, 12)
    config = StereoConfig(other_surfaces=OtherSurfaceConfig(is_enabled=False))
    on_pole = [
        np.abs(dense.depth[mask] / 0.8 - 1) < 0.05
        for dense, mask in list(zip(maps(views, config), masks, strict=True))[2:-2]
    ]
    assert np.mean(on_pole) < 0.3


def test_confirmed_depth_of_a_pole_is_not_mixed_with_the_wall():
    views, masks = scene(1.3, 12)
    for dense, mask in list(zip(maps(views, StereoConfig()), masks, strict=True))[2:-2]:
        confirmed = dense.depth[mask & (dense.certainty == Certainty.CONFIRMED)]
        assert (np.abs(confirmed / 1.3 - 1) < 0.05).mean() > 0.85


def others(view: StereoView) -> np.ndarray:
    arrays, config = NumpyArrays(), StereoConfig()
    priors = corrected_priors(arrays, [view], [view.grey], config)
    return arrays.numpy(other_surfaces(arrays, [view], priors, config))[0]


def test_depths_of_points_off_the_prior_are_tried_about_them():
    views, masks = scene(1.3, 12)
    view = views[4]
    on_pole = np.abs(others(view) / 1.3 - 1) < 0.05
    assert on_pole[masks[4]].mean() > 0.9
    assert not on_pole[:, : WIDTH // 4].any()

    on_wall = replace(view, depths=np.full_like(view.depths, WALL))
    assert not others(on_wall).any()


def test_a_wrong_point_alone_is_not_tried():
    view = scene(1.3, 12)[0][4]
    depths = np.full_like(view.depths, WALL)
    depths[0] = 1.0
    assert not (np.abs(others(replace(view, depths=depths)) - 1.0) < 0.1).any()
