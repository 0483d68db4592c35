"""The up direction of surfaces: floors lie level and walls stand plumb, whichever way the cameras look."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from stream_recon.app.core.transforms import up_direction
from stream_recon.app.mesh.config import LevelConfig
from stream_recon.app.mesh.level import level_up
from stream_recon.app.mesh.surface import Mesh

UP = np.array([0.0, -1.0, 0.0])


def quad(corner: list[float], a: list[float], b: list[float]) -> NDArray[np.float64]:
    """Triangles [2, 3, 3] of a parallelogram, facing a x b."""
    o, u, v = (np.array(x, np.float64) for x in (corner, a, b))
    return np.array([[o, o + u, o + v], [o + u, o + u + v, o + v]])


def mesh_of(*quads: NDArray[np.float64]) -> Mesh:
    corners = np.concatenate(quads)
    faces = np.arange(3 * len(corners), dtype=np.int32).reshape(-1, 3)
    return Mesh(corners.reshape(-1, 3).astype(np.float32), np.zeros((3 * len(corners), 3), np.uint8), faces)


FLOOR = quad([-2, 1, 0], [4, 0, 0], [0, 0, 4])
WALL = quad([-2, -1, 4], [0, 2, 0], [4, 0, 0])


def looking_down(degrees: float, roll: float = 0.0) -> NDArray[np.float64]:
    """Rotations of cameras that hardly turn, with axes x right, y down, z forward."""
    return np.array(
        [Rotation.from_euler("YXZ", [yaw, -degrees, roll], degrees=True).as_matrix() for yaw in np.linspace(-3, 3, 7)]
    )


def error_deg(mesh: Mesh, R: NDArray[np.float64]) -> float:
    up = level_up(mesh, R, up_direction(R), LevelConfig())
    return float(np.degrees(np.arccos(np.clip(up @ UP, -1, 1))))


@pytest.mark.parametrize("pitch", [0, 15, 35])
@pytest.mark.parametrize("surfaces", [(FLOOR,), (FLOOR, WALL)])
def test_cameras_that_look_down_at_a_floor_do_not_tilt_it(pitch: float, surfaces: tuple[NDArray[np.float64]]) -> None:
    assert error_deg(mesh_of(*surfaces), looking_down(pitch)) < 2


def test_a_wall_alone_stands_plumb() -> None:
    assert error_deg(mesh_of(WALL), looking_down(15)) < 2


def test_a_slope_that_the_cameras_do_not_share_stays_a_slope() -> None:
    across = quad([-2, 1, 0], [4, -1.5, 0], [0, 0, 4])
    assert error_deg(mesh_of(across), looking_down(0)) < 6


def test_cameras_that_turned_level_know_better_than_a_slanted_floor_among_bushes() -> None:
    rng = np.random.default_rng(0)
    floor = FLOOR @ Rotation.from_euler("x", 6, degrees=True).as_matrix().T
    bushes = [quad([0, 0, 3], *(rotation.as_matrix()[:2]).tolist()) for rotation in Rotation.random(48, rng)]
    turned = Rotation.from_euler("Y", np.linspace(-30, 30, 9)[:, None], degrees=True).as_matrix()
    assert error_deg(mesh_of(floor, *bushes), turned) < 3.5
    assert error_deg(mesh_of(floor, *bushes), looking_down(0)) > 4, "cameras that hardly turned do not"


def test_without_a_surface_the_cameras_decide() -> None:
    empty = Mesh(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.uint8), np.zeros((0, 3), np.int32))
    R = looking_down(10)
    assert (level_up(empty, R, up_direction(R), LevelConfig()) == up_direction(R)).all()
