from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.slam.ba.problem import Observations
from stream_recon.app.slam.ba.triangulation import triangulate
from tests.app.slam.synthetic import LENS, projected, walk


def ragged(noise_px: float, k1: float = 0.0) -> tuple[Observations, np.ndarray, np.ndarray]:
    """Tracks of 2 to 8 views in no order; poses; true points."""
    world = walk(20, 200, 8, noise_px, k1=k1)
    rng = np.random.default_rng(0)
    length = rng.integers(2, 9, 200)
    kept = np.flatnonzero(np.tile(np.arange(8), 200) < length[world.observations.point])
    return world.observations.take(rng.permutation(kept)), world.truth.T_world_camera, world.truth.points


@pytest.mark.parametrize("k1", [0.0, -0.1, 0.1])
def test_without_noise_points_are_exact(k1: float) -> None:
    observations, T, points = ragged(0.0, k1)
    found = triangulate(T, replace(LENS, k1=k1), observations, 200)
    assert np.allclose(found.points, points, atol=1e-5)
    assert found.in_front.all() and (found.rms_px < 1e-3).all()
    assert np.array_equal(found.views, np.bincount(observations.point))


def test_with_noise_no_other_point_fits_better() -> None:
    observations, T, _ = ragged(1.0)
    found = triangulate(T, LENS, observations, 200, iterations=20)

    def squares(points: np.ndarray) -> np.ndarray:
        pixel, _ = projected(T, points, LENS, observations.camera, observations.point)
        return np.bincount(observations.point, ((pixel - observations.pixel) ** 2).sum(axis=1))

    best = squares(found.points)
    assert np.allclose(found.rms_px, np.sqrt(best / found.views))
    sure = found.angle_deg > 3
    for step in 1e-2 * np.vstack([np.eye(3), -np.eye(3)]):
        assert (squares(found.points + step) > best)[sure].all()


def test_angles_are_those_between_rays() -> None:
    observations, T, points = ragged(0.0)
    found = triangulate(T, LENS, observations, 200)
    for track in range(0, 200, 7):
        rays = points[track] - T[observations.camera[observations.point == track], :3, 3]
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        widest = np.degrees(np.arccos(np.clip(rays @ rays.T, -1, 1))).max()
        assert widest / 2 <= found.angle_deg[track] <= widest + 1e-6
    assert found.angle_deg[0] > 0


def test_a_track_that_is_not_seen_twice_has_no_point() -> None:
    observations, T, _ = ragged(0.0)
    alone = observations.take(np.flatnonzero(observations.point == 3)[:1])
    found = triangulate(T, LENS, alone, 5)
    assert np.isnan(found.points).all() and not found.in_front.any()
    assert not found.angle_deg.any() and np.isinf(found.rms_px).all()
    assert found.views.tolist() == [0, 0, 0, 1, 0]
    nothing = triangulate(T, LENS, alone.take(np.zeros(0, np.intp)), 0)
    assert nothing.points.shape == (0, 3)


def test_rays_that_part_meet_behind_the_cameras() -> None:
    T = np.tile(np.eye(4), (2, 1, 1))
    T[1, 0, 3] = 1.0
    # The left camera sees it on the left, the right one on the right.
    pixel = np.array([[250.0, 240.0], [390.0, 240.0]])
    found = triangulate(T, LENS, Observations(np.array([0, 1]), np.array([0, 0]), pixel), 1)
    assert not found.in_front[0] and np.isinf(found.rms_px[0])


def test_parallel_rays_meet_far_ahead() -> None:
    T = np.tile(np.eye(4), (3, 1, 1))
    T[:, 0, 3] = (0, 1, 2)
    pixel = np.tile([300.0, 220.0], (3, 1))
    found = triangulate(T, LENS, Observations(np.arange(3), np.zeros(3, np.intp), pixel), 1)
    assert found.in_front[0] and found.points[0, 2] > 1e3 and found.rms_px[0] < 1
    # No camera moved at all: nothing says how far, and the angle says so.
    T[:, 0, 3] = 0
    still = triangulate(T, LENS, Observations(np.arange(3), np.zeros(3, np.intp), pixel), 1)
    assert np.isfinite(still.points).all() and still.angle_deg[0] == pytest.approx(0, abs=1e-6)


def test_a_wrong_member_shows() -> None:
    observations, T, _ = ragged(0.3)
    pixel = observations.pixel.copy()
    wrong = np.flatnonzero(observations.point == 11)[0]
    pixel[wrong] += (60, -60)
    found = triangulate(T, LENS, replace(observations, pixel=pixel), 200)
    others = np.delete(np.arange(200), 11)
    assert found.rms_px[11] > 10 * found.rms_px[others].max()
