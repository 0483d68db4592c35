"""Which way is up in a result: cameras are held level more often than not."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.result.cameras import Camera

Up = Literal["auto", "keep"]
TURNED = 0.02
"""How much the second direction of the cameras' sideways axes has to weigh before they are taken for a plane."""


def world_up(cameras: Sequence[Camera]) -> NDArray[np.float64]:
    """The world's up as a unit vector [3], from one or more cameras.

    A level camera's x axis is horizontal wherever it looks, so up is what all of these are most at right angles to.
    Where the cameras hardly turned about it, any direction at right angles to one axis would do: then it is the mean of
    the cameras' own up.
    """
    axes = np.array([camera.T_world_camera[:3, :3] for camera in cameras])
    mean = -axes[:, :, 1].mean(axis=0)
    mean = mean / max(float(np.linalg.norm(mean)), 1e-9)
    weights, directions = np.linalg.eigh(axes[:, :, 0].T @ axes[:, :, 0] / len(axes))
    normal = directions[:, 0] * (1.0 if directions[:, 0] @ mean >= 0 else -1.0)
    level = weights[1] > TURNED and weights[1] > 4 * weights[0] and normal @ mean > 0.5
    return np.asarray(normal if level else mean)


def gltf_axes(cameras: Sequence[Camera], up: Up) -> NDArray[np.float64]:
    """Rotation [3, 3] from the world to glTF's axes: x right, y up, z backward.

    Seen by the first camera if it is held upright (``auto``), or as it was held (``keep``).
    """
    if up == "keep":
        return np.diag([1.0, -1.0, -1.0])
    return np.diag([1.0, -1.0, -1.0]) @ upright_axes(world_up(cameras), cameras[0].T_world_camera[:3, 2])


def gltf_note(axes: NDArray[np.float64]) -> str:
    """A line for README.txt on what `gltf_axes` gave."""
    rows = "; ".join(" ".join(f"{value:.6f}" for value in row + 0.0) for row in axes)
    return (
        "In the file y is up and z backward, as glTF has it: a point of the world above is multiplied by the rotation "
        f"with the rows ({rows})."
    )


def upright_axes(up: NDArray[np.float64], forward: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotation [3, 3] from the world to axes x right, y down, z forward of someone who stands upright.

    ``forward``: roughly where they look; not along ``up``.
    """
    down = -up / np.linalg.norm(up)
    ahead = forward - (forward @ down) * down
    if np.linalg.norm(ahead) < 1e-6 * max(float(np.linalg.norm(forward)), 1e-12):
        ahead = np.cross(down, np.eye(3)[np.argmin(np.abs(down))])
    ahead = ahead / np.linalg.norm(ahead)
    return np.stack([np.cross(down, ahead), down, ahead])
