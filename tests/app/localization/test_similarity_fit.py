"""Similarity of two results by pixels: exact where depths are not, and not led away by wrong matches."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity, align, invert_pose, rotation_angle_deg
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION
from stream_recon.app.localization.similarity_fit import SharedPixels, fit_pixels

LENS = CameraModel(400.0, 320.0, 240.0)
TRUE = Similarity(0.6, so3.exp(np.array([0.4, -1.1, 0.3])), np.array([3.0, -1.0, 2.0]))
"""From the second result's world to the first's."""
VIEWS, EACH, DEPTH_SIGMA, PIXEL_SIGMA = 6, 80, 0.05, 0.5
FloatArray = NDArray[np.float64]


def shared(random: np.random.Generator, wrong: float) -> tuple[SharedPixels, SharedPixels]:
    """Matches of two walks past the same points, each with errors of its own; a share of them is wrong."""
    there, back = [], []
    for view in range(VIEWS):
        z = random.uniform(3, 6, EACH)
        local = np.stack([random.uniform(-0.6, 0.6, EACH) * z, random.uniform(-0.5, 0.5, EACH) * z, z], axis=1)
        points = local + np.array([0.4 * view, 0.0, 0.0])
        poses = [_pose(0.4 * view, 0.0, 0.02 * view), TRUE.inverse().move_pose(_pose(0.4 * view + 0.3, 0.2, -0.05))]
        worlds = [points, TRUE.inverse().apply(points)]
        seen = []
        for T, world in zip(poses, worlds, strict=True):
            inverse = np.broadcast_to(invert_pose(T), (EACH, 4, 4))
            uv = _project(inverse, world) + PIXEL_SIGMA * random.normal(size=(EACH, 2))
            # One error of a depth map, and one of each point.
            error = np.exp(DEPTH_SIGMA * (0.7 * random.normal() + 0.7 * random.normal(size=(EACH, 1))))
            ray = (world - T[:3, 3]) * error
            seen.append((T[:3, 3] + ray, DEPTH_SIGMA * ray, inverse, uv))
        bad = random.random(EACH) < wrong
        swapped = np.where(bad, np.roll(np.arange(EACH), 7), np.arange(EACH))
        (first, first_spread, T_first, uv_first), (second, second_spread, T_second, uv_second) = seen
        there.append((first[swapped], first_spread[swapped], T_second, uv_second))
        back.append((second, second_spread, T_first, uv_first[swapped]))
    joined = [[np.concatenate(part) for part in zip(*parts, strict=True)] for parts in (there, back)]
    return SharedPixels(*joined[0], LENS), SharedPixels(*joined[1], LENS)


def _pose(x: float, y: float, turn: float) -> FloatArray:
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = so3.exp(np.array([0.0, turn, 0.0])), (x, y, 0.0)
    return T


def _project(T_camera_world: FloatArray, points: FloatArray) -> FloatArray:
    xyz = np.einsum("nij,nj->ni", T_camera_world[:, :3, :3], points) + T_camera_world[:, :3, 3]
    return np.asarray(LENS.pixels(xyz[:, :2] / xyz[:, 2:]))


def errors(S: Similarity) -> FloatArray:
    """Errors of the rotation in degrees, of the log scale, and of the place of the second walk."""
    away = S.apply(TRUE.inverse().apply(np.zeros((1, 3))))
    return np.array([float(rotation_angle_deg(TRUE.rotation.T @ S.rotation)), abs(np.log(S.scale / TRUE.scale)),
                     float(np.linalg.norm(away))])  # fmt: skip


@pytest.mark.parametrize("wrong", [0.0, 0.2])
def test_a_fit_to_pixels_is_more_exact_than_one_to_points(wrong: float) -> None:
    by_points, by_pixels = [], []
    for draw in range(5):
        there, back = shared(np.random.default_rng(draw), wrong)
        start = align(back.points, there.points)
        by_points.append(errors(start))
        by_pixels.append(errors(fit_pixels(start, there, back, 4.5)))
    before, after = np.mean(by_points, axis=0), np.mean(by_pixels, axis=0)
    assert after[0] < 0.3 and (after[[0, 2]] < 0.4 * before[[0, 2]]).all()
    assert after[1] < max(before[1], 0.02)


def test_the_true_similarity_stays_where_it_is() -> None:
    there, back = shared(np.random.default_rng(9), 0.0)
    moved = errors(fit_pixels(TRUE, there, back, 4.5))
    assert moved[0] < 0.3 and moved[1] < 0.02 and moved[2] < 0.05


def test_of_exact_points_it_is_the_minimum_that_scipy_finds() -> None:
    random = np.random.default_rng(2)
    exact = [
        replace(each, spread=np.zeros_like(each.spread), uv=each.uv + random.normal(0, 3, each.uv.shape))
        for each in shared(random, 0.3)
    ]

    def moved(x: FloatArray) -> Similarity:
        return Similarity(TRUE.scale * np.exp(x[6]), so3.exp(x[None, :3])[0] @ TRUE.rotation, TRUE.translation + x[3:6])

    def cost(x: FloatArray, loss_px: float = DEFAULT_LOCALIZATION.pose.loss_px) -> float:
        total = 0.0
        for each, S in zip(exact, (moved(x).inverse(), moved(x)), strict=True):
            error = _project(each.T_camera_world, S.apply(each.points)) - each.uv
            total += np.log1p((error**2).sum(axis=1) / loss_px**2).sum()
        return total

    # The minimum of a narrower loss is no minimum of this one, however near.
    narrow = moved(minimize(partial(cost, loss_px=0.5), np.zeros(7), method="BFGS").x)
    best = errors(moved(minimize(cost, np.zeros(7), method="BFGS").x))
    assert np.abs(errors(narrow) - best).max() > 0.02
    assert errors(fit_pixels(narrow, *exact, 4.5)) == pytest.approx(best, abs=0.01)
