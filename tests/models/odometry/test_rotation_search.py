"""A turn that was misjudged is found by how alike images are, and nothing is where the known one is right."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.rotation_search import CELL, search_rotation
from stream_recon.models.odometry.sampling import CellPoints, cell_centers, width_height
from stream_recon.models.pose import so3_exp, so3_log
from tests.models.skies import FAR, FOCAL, SIZE, described

LENGTHS = torch.full((1, 2), FOCAL)
CELLS = (24, 32)
CENTERS = cell_centers(SIZE, CELLS, torch.device("cpu"))
STILL = torch.eye(4)[None, :3]
COARSEST_DEGREES = math.degrees(CELL / FOCAL)
"""From one turn that is tried to the next."""


def searched(true: Tensor, known: Tensor) -> tuple[Tensor, bool]:
    """What is found where a camera turned by ``true`` [3], rotation vectors in degrees, and ``known`` is known."""
    R_true, R_known = (so3_exp(torch.deg2rad(x)[None])[0] for x in (true, known))
    flat = (CENTERS - width_height(SIZE, torch.device("cpu")) / 2) / FOCAL
    points = torch.cat([flat, torch.ones_like(flat[..., :1])], dim=-1)[None] * FAR
    motion = torch.cat([R_known, torch.tensor([[0.1], [0.0], [0.2]])], dim=-1)[None]
    turn, better, _ = search_rotation(
        described(R_true), described(torch.eye(3)), CellPoints(points, LENGTHS, SIZE), motion
    )
    return turn[0] @ R_known, bool(better)


@pytest.mark.parametrize("axes", [(0.0, 11.0, 0.0), (-6.0, 0.0, 0.0), (5.0, -13.0, 1.0), (-3.0, 8.0, 19.0)])
def test_a_turn_that_was_missed_is_found(axes: tuple[float, float, float]) -> None:
    true = torch.tensor(axes)
    R, better = searched(true, torch.zeros(3))
    assert better
    left = R.T @ so3_exp(torch.deg2rad(true)[None])[0]
    assert math.degrees(float(so3_log(left[None]).norm())) < COARSEST_DEGREES


@pytest.mark.parametrize("axes", [(0.0, 0.0, 0.0), (5.0, -13.0, 1.0)])
def test_a_turn_that_is_known_stays(axes: tuple[float, float, float]) -> None:
    true = torch.tensor(axes)
    assert not searched(true, true + torch.tensor([0.4, 0.6, 0.0]))[1]


def test_blank_images_say_nothing() -> None:
    features = F.normalize(torch.ones_like(described(torch.eye(3))), dim=-1)
    points = CellPoints(torch.ones(1, *CELLS, 3), LENGTHS, SIZE)
    assert not search_rotation(features, features, points, STILL)[1].any()


def test_a_motion_that_is_no_number_is_left_as_it_is() -> None:
    features = described(torch.eye(3))
    points = CellPoints(torch.ones(1, *CELLS, 3), LENGTHS, SIZE)
    motion = torch.full_like(STILL, torch.nan)
    assert not search_rotation(features, features, points, motion)[1].any()


def test_each_clip_is_searched_by_itself() -> None:
    generator = torch.Generator().manual_seed(4)
    own = F.normalize(torch.randn(3, *described(torch.eye(3)).shape[1:], generator=generator), dim=-1)
    other = own.roll(1, 0)
    points = torch.rand(3, *CELLS, 3, generator=generator) + 1
    motion, lengths = STILL.expand(3, -1, -1), LENGTHS.expand(3, -1)
    together = search_rotation(own, other, CellPoints(points, lengths, SIZE), motion)
    for i in range(3):
        clip = slice(i, i + 1)
        alone = search_rotation(own[clip], other[clip], CellPoints(points[clip], lengths[clip], SIZE), motion[clip])
        assert bool(alone[1]) == bool(together[1][i])
        torch.testing.assert_close(alone[0][0], together[0][i])
        torch.testing.assert_close(alone[2][0], together[2][i])
