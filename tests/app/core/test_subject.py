"""The box of what cameras look at."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.box import Box
from stream_recon.app.core.subject import subject_box
from stream_recon.app.core.types import Intrinsics

CAMERA = Intrinsics(300.0, 300.0, 200.0, 150.0)
GLTF = np.diag([1.0, -1.0, -1.0])
PLACE = np.array([0.5, 0.2, 4.0])


def looking(centres: NDArray[np.float64], targets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cameras [N, 4, 4] at these places that look at these points; y is down."""
    z = targets - centres
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    x = np.cross([0.0, 1.0, 0.0], z)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    T = np.tile(np.eye(4), (len(centres), 1, 1))
    T[:, :3, :3], T[:, :3, 3] = np.stack([x, np.cross(z, x), z], axis=2), centres
    return T


def around(degrees: float, count: int = 60, distance: float = 2.0) -> NDArray[np.float64]:
    """Places [N, 3] on an arc about `PLACE`, above it."""
    angle = np.radians(np.linspace(0, degrees, count))
    circle = np.stack([np.sin(angle), np.full(count, -0.4), -np.cos(angle)], axis=1)
    return np.asarray(PLACE + distance * circle)


def scene() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points of a thing of half a unit, and of walls ten units away."""
    rng = np.random.default_rng(0)
    thing = PLACE + rng.uniform(-0.25, 0.25, (3000, 3))
    walls = rng.normal(size=(3000, 3))
    return thing, PLACE + 10 * walls / np.linalg.norm(walls, axis=1, keepdims=True)


@pytest.mark.parametrize("degrees", [360.0, 180.0, 60.0])
@pytest.mark.parametrize("turn_deg", [0.0, 20.0])
def test_what_is_walked_around_is_in_the_box_and_what_is_behind_it_is_not(degrees: float, turn_deg: float) -> None:
    centres = around(degrees)
    aim = PLACE + np.random.default_rng(1).normal(0, 0.1, centres.shape)  # by hand
    thing, walls = scene()
    box = subject_box(looking(centres, aim), [CAMERA] * len(aim), np.concatenate([thing, walls]), GLTF, turn_deg)
    assert box is not None and box.turn_deg == turn_deg
    assert box.contains(thing, GLTF).mean() > 0.95 and not box.contains(walls, GLTF).any()
    assert max(np.subtract(box.high, box.low)) < 1.0


def test_a_quarter_of_the_cameras_may_look_elsewhere() -> None:
    centres = around(300.0)
    aim = np.tile(PLACE, (len(centres), 1))
    aim[-12:] = centres[-12:] + np.array([3.0, 1.0, 0.5])
    thing, walls = scene()
    box = subject_box(looking(centres, aim), [CAMERA] * len(aim), np.concatenate([thing, walls]), GLTF)
    assert box is not None and box.contains(thing, GLTF).mean() > 0.95


def ways() -> dict[str, NDArray[np.float64]]:
    """Cameras that do not look at one place."""
    step = np.linspace(0, 1, 50)[:, None]
    rng = np.random.default_rng(2)
    drive = step * [0.0, 0.0, 30.0] + rng.normal(0, 0.02, (50, 3))
    flight = np.stack(np.meshgrid(np.arange(8.0), [-20.0], np.arange(8.0)), axis=-1).reshape(-1, 3)
    turn = np.radians(360 * step)
    room = rng.normal(0, 0.5, (50, 3))
    return {
        "drive": looking(drive, drive + np.array([0.0, 0.0, 1.0]) + rng.normal(0, 0.03, (50, 3))),
        "flight that looks down": looking(
            flight, flight + np.array([0.01, 1.0, 0.0]) + rng.normal(0, 0.05, flight.shape)
        ),
        "room": looking(room, room + np.concatenate([np.sin(turn), 0 * turn, np.cos(turn)], axis=1)),
        "one camera": looking(np.zeros((1, 3)), PLACE[None]),
    }


@pytest.mark.parametrize("name", ways())
def test_other_ways_have_no_subject(name: str) -> None:
    T = ways()[name]
    points = np.random.default_rng(3).uniform(-30, 30, (20_000, 3))
    assert subject_box(T, [CAMERA] * len(T), points, GLTF) is None


def test_where_axes_cross_by_chance_is_no_subject() -> None:
    """As of somebody who looks about a room in a few steps: most of what is seen is elsewhere."""
    centres = around(60.0, distance=0.4)
    T = looking(centres, np.tile(PLACE, (len(centres), 1)))
    near = PLACE + np.random.default_rng(4).uniform(-0.1, 0.1, (100, 3))
    assert subject_box(T, [CAMERA] * len(T), np.concatenate([near, scene()[1]]), GLTF) is None
    assert subject_box(T, [CAMERA] * len(T), np.concatenate([near, scene()[1][:300]]), GLTF) is not None


def test_no_subject_without_points_there() -> None:
    centres = around(360.0)
    T = looking(centres, np.tile(PLACE, (len(centres), 1)))
    assert subject_box(T, [CAMERA] * len(T), scene()[1], GLTF) is None
    assert isinstance(subject_box(T, [CAMERA] * len(T), scene()[0], GLTF), Box)
