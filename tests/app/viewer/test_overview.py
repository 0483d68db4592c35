import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.viewer.overview import FreeView, inner_view, overview

UP = np.array([0.0, -1.0, 0.0])
FORWARD = np.array([0.0, 0.0, 1.0])
FREE = FreeView(0.8, 0.5, 0.45)


def places(
    points: NDArray[np.float64], position: NDArray[np.float64], target: NDArray[np.float64], free: FreeView = FREE
) -> NDArray[np.float64]:
    """How far points are from the view's axis toward its border, where it is 1 (endless behind the eye); [N, 2]."""
    ahead = (target - position) / np.linalg.norm(target - position)
    right = np.cross(ahead, UP)
    right /= np.linalg.norm(right)
    x, y, z = ((points - position) @ np.stack([right, np.cross(right, ahead), ahead]).T).T
    aside = np.where(x < 0, -x / free.left, x / free.right)
    return np.where(z[:, None] > 0, np.stack([aside, np.abs(y) / free.upright], axis=1) / z[:, None], np.inf)


@pytest.mark.parametrize("size", [(1, 1, 1), (20, 1, 3), (1, 1, 50), (1, 30, 1)])
def test_nearly_everything_and_all_of_the_path_are_in_view_and_fill_it(size: tuple[float, float, float]) -> None:
    noise = np.random.default_rng(0)
    points = noise.uniform(-1, 1, (4000, 3)) * size + [3, -2, 7]
    path = np.linspace([3, -2, 7 - 2 * size[2]], [3 + 2 * size[0], -2, 7], 50)
    stray = np.concatenate([points, [[1e4, 0, 0], [0, -1e4, 1e4]]])
    position, target = overview(stray, path, FORWARD, UP, FREE)
    assert (places(points, position, target) < 1).all(axis=1).mean() > 0.93
    found = places(path, position, target)
    assert found.max() < 1
    assert max(found.max(), np.quantile(places(points, position, target), 0.95)) > 0.7
    assert (target - position) @ UP < 0, "from above"


@pytest.mark.parametrize("forward", [UP, -UP])
def test_a_camera_that_looks_straight_down_has_an_overview_too(forward: NDArray[np.float64]) -> None:
    points = np.random.default_rng(1).normal(size=(500, 3))
    found = places(points, *overview(points, points[:1], forward, UP, FREE))
    assert (found < 1).all(axis=1).mean() > 0.9


def test_a_path_without_points_is_looked_at() -> None:
    position, target = overview(np.empty((0, 3)), np.ones((1, 3)), FORWARD, UP, FREE)
    np.testing.assert_allclose(target, 1, atol=1e-5)
    assert np.isfinite(position).all()


def test_a_panel_takes_from_the_right_half_and_never_all_of_it() -> None:
    free = FreeView.of_window(np.pi / 2, 1340, 670)
    assert (free.left, free.right, free.upright) == pytest.approx((2, 1, 1))
    phone = FreeView.of_window(np.pi / 2, 390, 844)
    assert phone.left == phone.right and 0.8 < phone.upright < 1, "a bar below"
    assert FreeView.of_window(np.pi / 2, 600, 500).right > 0


def test_the_view_from_inside_is_that_of_the_camera_that_sees_most() -> None:
    points = np.random.default_rng(0).uniform((-1, -1, 4), (1, 1, 6), (200, 3))
    ahead, away = np.eye(4), np.diag([-1.0, 1.0, -1.0, 1.0])
    beside = np.eye(4)
    beside[0, 3] = 3.0
    view = inner_view(points, np.array([away, beside, ahead]), UP, FREE)
    assert np.array_equal(view.position, ahead[:3, 3])
    assert np.allclose(view.target, (0, 0, 5), atol=0.3)
