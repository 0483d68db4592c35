"""Matches with frames further back: where they are looked for, what is compared there, and who is remembered."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.keyframe_matcher import (
    FEATURES,
    HISTORY,
    LEVELS,
    REACH,
    KeyframeMatcher,
    MatchingHistory,
    correlate,
    interpolate,
    predict_pixels,
)
from stream_recon.models.odometry.sampling import CellPoints, cell_centers
from tests.networks import tiny_preset

SIZE = (70, 98)
"""Odd numbers of places at the coarser levels."""


def pyramid(fine: Tensor) -> Tensor:
    """Levels of features [N, 24, H/2, W/2], laid out as `KeyframeMatcher.describe` does."""
    levels = [fine] + [F.avg_pool2d(fine, cell // 2, ceil_mode=True) for cell in LEVELS[1:]]
    return torch.cat([level.flatten(2).transpose(1, 2) for level in levels], dim=1)


def ramp(factor: float) -> Tensor:
    """Features [1, 24, H/2, W/2] of which the first two say their place (x, y) in pixels, times a factor."""
    y, x = torch.meshgrid(torch.arange(SIZE[0] // 2), torch.arange(SIZE[1] // 2), indexing="ij")
    fine = torch.zeros(1, FEATURES, SIZE[0] // 2, SIZE[1] // 2)
    fine[0, 0], fine[0, 1] = (2 * x + 1) * factor, (2 * y + 1) * factor
    return fine


@pytest.mark.parametrize("cell", LEVELS)
def test_features_between_places_are_those_of_the_image_there(cell: int) -> None:
    places = torch.tensor([[[20.3, 31.7], [44.0, 12.9]]])
    read = interpolate(pyramid(ramp(1.0)), places, cell, SIZE)
    torch.testing.assert_close(read[..., :2], places, atol=1e-4, rtol=0)


@pytest.mark.parametrize("cell", LEVELS)
def test_products_are_those_with_features_at_each_place_around(cell: int) -> None:
    generator = torch.Generator().manual_seed(0)
    features = pyramid(torch.randn(1, FEATURES, SIZE[0] // 2, SIZE[1] // 2, generator=generator))
    described = torch.randn(1, 3, FEATURES, generator=generator)
    places = torch.tensor([[[50.3, 31.7], [44.0, 32.9], [1.0, -5.0]]])  # the last one is out of view
    products = correlate(described, features, places, cell, SIZE).unflatten(2, (2 * REACH + 1, 2 * REACH + 1))
    for down in (-REACH, 0, 1):
        for across in (-1, 0, REACH):
            there = places + torch.tensor([across, down]) * cell
            expected = (described * interpolate(features, there, cell, SIZE)).sum(-1)
            torch.testing.assert_close(products[:, :, down + REACH, across + REACH], expected, atol=1e-4, rtol=1e-4)


def test_points_are_expected_where_the_motion_takes_them() -> None:
    lengths = torch.tensor([[60.0, 50.0]])
    points = torch.tensor([[0.2, -0.1, 2.0], [0.0, 0.0, -1.0], [9.0, 0.0, 2.0]]).view(1, 1, 3, 3)
    motion = torch.eye(3, 4).expand(1, 2, 3, 4).clone()
    motion[:, 1, 0, 3] = 0.4
    places, along, in_view = predict_pixels(CellPoints(points, lengths, SIZE), motion)
    torch.testing.assert_close(places[0, 0, 0, 0], torch.tensor([49 + 6.0, 35 - 2.5]))
    torch.testing.assert_close(places[0, 1, 0, 0], torch.tensor([49 + 18.0, 35 - 2.5]))
    assert in_view[0, :, 0].tolist() == [[True, False, False]] * 2
    # Without a shift depth does not tell; with one to the right, what goes farther is seen further left.
    torch.testing.assert_close(along[0, 0, 0, 0], torch.zeros(2))
    assert along[0, 1, 0, 0, 0] < -0.3 and along[0, 1, 0, 0, 1].abs() < 1e-5
    assert places.isfinite().all()


def test_points_of_the_network_lie_in_the_middles_of_cells_and_its_matches_near_where_they_are_expected() -> None:
    torch.manual_seed(0)
    matcher = KeyframeMatcher(tiny_preset().network).eval()
    size, grid = (28, 42), (2, 3)
    with torch.no_grad():
        own, other = (matcher.describe(torch.randn(1, 32, 14, 21)) for _ in range(2))
        context = matcher.read_context([torch.randn(1, 6, 128)] * 4, grid)
        places = cell_centers(size, (4, 6), torch.device("cpu"))
        rays = torch.cat([(places - torch.tensor([21.0, 14.0])) / 30, torch.ones(4, 6, 1)], dim=-1)
        matches = matcher(
            own,
            other[:, None],
            context,
            CellPoints(rays[None], torch.full((1, 2), 30.0), size),
            torch.eye(3, 4)[None, None],
        )
    torch.testing.assert_close(matches.pixels[0, 0, 0], places)
    assert matches.in_view.all() and matches.log_precision.shape == (1, 1, 4, 6)
    assert float((matches.pixels[-1] - matches.pixels[0]).abs().max()) < 16


def test_the_past_keeps_the_last_frames_the_latest_first() -> None:
    past = MatchingHistory.empty(2, (28, 42), torch.device("cpu"))
    assert past.count.tolist() == [0, 0]
    for number in range(HISTORY + 2):
        features = torch.full_like(past.features[:, 0], float(number))
        past = past.followed_by(features, torch.full((2, 9), float(number)))
    assert past.count.tolist() == [HISTORY, HISTORY]
    assert past.poses[0, :, 0].tolist() == past.features[1, :, 3, 5].tolist() == [5.0, 4.0, 3.0, 2.0]
