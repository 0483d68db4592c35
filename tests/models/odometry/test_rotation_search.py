"""A turn that was misjudged is found by how alike images are, and nothing is where the known one is right."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.pnp import rotation_from_vector, vector_from_rotation
from stream_recon.models.odometry.rotation_search import CELL, search_turn
from stream_recon.models.odometry.sampling import far_corner, sample_places
from tests.models.skies import FAR, FOCAL, SIZE, described

LENGTHS = torch.full((1, 2), FOCAL)
PLACES = sample_places(SIZE, (24, 32), torch.device("cpu"))[::2, ::2].flatten(0, 1)
STILL = torch.eye(4)[None, :3]
COARSEST_DEGREES = math.degrees(CELL / FOCAL)
"""From one turn that is tried to the next."""


def searched(true: Tensor, known: Tensor) -> tuple[Tensor, bool]:
    """What is found where a camera turned by ``true`` [3], rotation vectors in degrees, and ``known`` is known."""
    R_true, R_known = (rotation_from_vector(torch.deg2rad(x)[None])[0] for x in (true, known))
    flat = (PLACES - far_corner(SIZE, torch.device("cpu")) / 2) / FOCAL
    points = torch.cat([flat, torch.ones_like(flat[:, :1])], dim=-1)[None] * FAR
    motion = torch.cat([R_known, torch.tensor([[0.1], [0.0], [0.2]])], dim=-1)[None]
    turn, better, _ = search_turn(described(R_true), described(torch.eye(3)), PLACES, points, motion, LENGTHS, SIZE)
    return turn[0] @ R_known, bool(better)


@pytest.mark.parametrize("axes", [(0.0, 11.0, 0.0), (-6.0, 0.0, 0.0), (5.0, -13.0, 1.0), (-3.0, 8.0, 19.0)])
def test_a_turn_that_was_missed_is_found(axes: tuple[float, float, float]) -> None:
    true = torch.tensor(axes)
    R, better = searched(true, torch.zeros(3))
    assert better
    left = R.T @ rotation_from_vector(torch.deg2rad(true)[None])[0]
    assert math.degrees(float(vector_from_rotation(left[None]).norm())) < COARSEST_DEGREES


@pytest.mark.parametrize("axes", [(0.0, 0.0, 0.0), (5.0, -13.0, 1.0)])
def test_a_turn_that_is_known_stays(axes: tuple[float, float, float]) -> None:
    true = torch.tensor(axes)
    assert not searched(true, true + torch.tensor([0.4, 0.6, 0.0]))[1]


def test_blank_images_say_nothing() -> None:
    features = F.normalize(torch.ones_like(described(torch.eye(3))), dim=-1)
    points = torch.ones(1, len(PLACES), 3)
    assert not search_turn(features, features, PLACES, points, STILL, LENGTHS, SIZE)[1].any()


def test_a_motion_that_is_no_number_is_left_as_it_is() -> None:
    features = described(torch.eye(3))
    points, motion = torch.ones(1, len(PLACES), 3), torch.full_like(STILL, torch.nan)
    assert not search_turn(features, features, PLACES, points, motion, LENGTHS, SIZE)[1].any()


def test_each_clip_is_searched_by_itself() -> None:
    generator = torch.Generator().manual_seed(4)
    own = F.normalize(torch.randn(3, *described(torch.eye(3)).shape[1:], generator=generator), dim=-1)
    other = own.roll(1, 0)
    points = torch.rand(3, len(PLACES), 3, generator=generator) + 1
    motion, lengths = STILL.expand(3, -1, -1), LENGTHS.expand(3, -1)
    together = search_turn(own, other, PLACES, points, motion, lengths, SIZE)
    for i in range(3):
        clip = slice(i, i + 1)
        alone = search_turn(own[clip], other[clip], PLACES, points[clip], motion[clip], lengths[clip], SIZE)
        assert bool(alone[1]) == bool(together[1][i])
        torch.testing.assert_close(alone[0][0], together[0][i])
        torch.testing.assert_close(alone[2][0], together[2][i])
