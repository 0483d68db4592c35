"""What depth maps say of loose parts of a mesh."""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.mesh.config import VisibilityConfig
from stream_recon.app.mesh.surface import Mesh, joined
from stream_recon.app.mesh.tsdf import FusionView
from stream_recon.app.mesh.visibility import confirmed_part

CAMERA = Intrinsics(40.0, 40.0, 40.0, 20.0)
WALL, PIECE = 2.0, 1.0
CONFIG = VisibilityConfig(max_shred=0.2)


def square(centre: tuple[float, float, float], side: float, cells: int) -> Mesh:
    """A square that faces a camera at the origin."""
    steps = np.linspace(-side / 2, side / 2, cells + 1)
    x, y = np.meshgrid(steps, steps)
    xyz = np.stack([x, y, np.zeros_like(x)], axis=-1).reshape(-1, 3) + centre
    corner = (np.arange(cells)[:, None] * (cells + 1) + np.arange(cells)).ravel()
    first = np.stack([corner, corner + cells + 1, corner + 1], axis=1)
    second = np.stack([corner + 1, corner + cells + 1, corner + cells + 2], axis=1)
    faces = np.concatenate([first, second]).astype(np.int32)
    return Mesh(xyz.astype(np.float32), np.zeros((len(xyz), 3), np.uint8), faces)


def view(confirmed: NDArray[np.bool_] | None) -> FusionView:
    """A wall, and before it a piece at the left and one at the right."""
    depth = np.full((40, 80), WALL, np.float32)
    depth[15:25, 10:20] = depth[15:25, 60:70] = PIECE
    return FusionView(depth, np.zeros((0, 0, 3), np.uint8), CAMERA, np.eye(4), confirmed=confirmed)


def pieces() -> Mesh:
    left, right = (square((x, 0.0, PIECE), 0.2, 4) for x in (-0.625, 0.625))
    return joined(joined(square((0.0, 0.0, WALL), 1.8, 10), left), right)


def confirmed_left() -> NDArray[np.bool_]:
    mask = np.zeros((40, 80), bool)
    mask[:, :40] = True
    return mask


def test_a_loose_part_that_stereo_did_not_confirm_is_left_out() -> None:
    mesh = confirmed_part(pieces(), [view(confirmed_left())], 0.05, CONFIG)
    near = mesh.xyz[mesh.xyz[:, 2] == PIECE]
    assert len(near) == 25 and (near[:, 0] < 0).all()
    assert (mesh.xyz[:, 2] == WALL).sum() == 121


def test_a_large_part_stays() -> None:
    mesh = confirmed_part(pieces(), [view(confirmed_left())], 0.05, VisibilityConfig(max_shred=0.1))
    assert len(mesh.faces) == len(pieces().faces)


def test_one_confirming_view_of_several_suffices() -> None:
    views = [view(confirmed_left()), view(~confirmed_left())]
    assert len(confirmed_part(pieces(), views, 0.05, CONFIG).faces) == len(pieces().faces)


def test_without_dense_depth_all_parts_stay() -> None:
    assert len(confirmed_part(pieces(), [view(None)], 0.05, CONFIG).faces) == len(pieces().faces)
