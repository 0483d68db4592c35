import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.viewer.measure import MAX_POINTS, MeasuredDistance, PickedPoint, Unit, distances, pick
from stream_recon.app.viewer.picking import PointingRay, hit_points, hit_triangles

PIXEL = 0.002
NOWHERE = np.zeros((0, 4))


def ray(x: float = 0.0, y: float = 0.0, planes: NDArray[np.float64] = NOWHERE) -> PointingRay:
    """A ray from the origin that looks along z."""
    direction = np.array([x, y, 1.0])
    return PointingRay(np.zeros(3), direction / np.linalg.norm(direction), PIXEL, planes)


def wall(z: float, half: float = 1.0, centre: tuple[float, float] = (0.0, 0.0), n: int = 8) -> NDArray[np.float64]:
    """Triangles [M, 3, 3] of a square at a distance, whose front is toward the origin."""
    x, y = np.meshgrid(np.linspace(-half, half, n + 1) + centre[0], np.linspace(-half, half, n + 1) + centre[1])
    grid = np.stack([x, y, np.full_like(x, z)], axis=-1)
    a, b, c, d = grid[:-1, :-1], grid[1:, :-1], grid[1:, 1:], grid[:-1, 1:]
    return np.concatenate([np.stack([a, b, c], 2).reshape(-1, 3, 3), np.stack([a, c, d], 2).reshape(-1, 3, 3)])


@pytest.mark.parametrize("x, y", [(0.0, 0.0), (0.13, -0.21), (-0.3, 0.3)])
def test_a_surface_is_hit_where_the_ray_meets_it(x: float, y: float) -> None:
    hit = hit_triangles(ray(x, y), [wall(3.0), wall(5.0)])
    assert hit is not None
    np.testing.assert_allclose(hit.point, [3 * x, 3 * y, 3], atol=1e-9)
    assert hit.spread == pytest.approx(0, abs=0.03)
    assert hit_triangles(ray(2.0), [wall(3.0)]) is None


def test_surfaces_are_seen_through_from_behind() -> None:
    turned = wall(3.0)[:, ::-1]
    hit = hit_triangles(ray(), [turned, wall(5.0)])
    assert hit is not None and hit.distance == pytest.approx(5)
    assert hit_triangles(ray(), [turned]) is None


def test_the_edge_of_a_thing_is_meant_not_what_is_behind_it() -> None:
    box = wall(2.0, 0.5)
    beside = hit_triangles(ray((0.5 + 1.0 * PIXEL * 2) / 2), [box, wall(4.0, 4.0)])
    assert beside is not None and beside.distance == pytest.approx(2, rel=0.05)
    far = hit_triangles(ray((0.5 + 4.0 * PIXEL * 2) / 2), [box, wall(4.0, 4.0)])
    assert far is not None and far.distance == pytest.approx(4, rel=0.05)


def test_what_is_cut_away_cannot_be_hit() -> None:
    behind = np.array([[0.0, 0, 1, -3.5]])  # z >= 3.5
    hit = hit_triangles(ray(planes=behind), [wall(3.0), wall(5.0)])
    assert hit is not None and hit.distance == pytest.approx(5)
    cloud = np.concatenate([wall(3.0, n=40), wall(5.0, n=40)]).reshape(-1, 3)
    front, back = hit_points(ray(), cloud, 0.05), hit_points(ray(planes=behind), cloud, 0.05)
    assert front is not None and back is not None
    assert front.distance == pytest.approx(3, abs=0.05) and back.distance == pytest.approx(5, abs=0.05)
    assert hit_points(ray(3.0), cloud, 0.05) is None


def test_a_distance_states_the_error_of_points_and_scale() -> None:
    cameras = np.zeros((1, 3))
    picks = []
    for x in (0.2, -0.3):
        hit = hit_triangles(ray(x), [wall(3.0, 2.0)])
        assert hit is not None
        picks.append(pick(ray(x), hit, cameras))
    plain, metric = MeasuredDistance(*picks, Unit()), MeasuredDistance(*picks, Unit("metre", 0.05))
    assert plain.length == metric.length == pytest.approx(1.5)
    assert plain.error < 0.15 < metric.error == pytest.approx(np.hypot(plain.error, 2 * 0.05 * 1.5))
    assert plain.text.startswith(f"1.50 ± {plain.error:.2f}") and plain.text.endswith(" units")
    assert metric.text == f"1.50 ± {metric.error:.2f} m"


def test_points_are_measured_two_by_two() -> None:
    picks = [PickedPoint(np.array([float(k * k), 0, 0]), 0.01) for k in range(5)]
    assert [each.length for each in distances(picks, Unit())] == [1, 5]
    assert not distances(picks[:1], Unit()) and MAX_POINTS % 2 == 0
