from typing import cast

import torch

from training.synthetic.shading import LIGHT_COLUMNS, Surroundings, _slope


class Terrain:
    """All of `Surroundings` that slopes are made of."""

    slopes = torch.rand(2, 4, 4, 2)


def slopes(cell: float, points: torch.Tensor) -> torch.Tensor:
    count = points.shape[1]
    light = [torch.full((count,), cell if name == "cell" else 0.0) for name in LIGHT_COLUMNS]
    clip = torch.ones(count, dtype=torch.int32)
    return torch.stack(_slope(cast(Surroundings, Terrain()), light, clip, list(points)))


def test_slopes_are_those_of_the_cells_and_stay_inside_the_map() -> None:
    corners = torch.tensor([[0.0, 2.0, -50.0], [0.0, 4.0, -50.0], [0.0, 0.0, 0.0]])
    found = slopes(2.0, corners)
    for column, (row, cell) in enumerate(((0, 0), (2, 1), (0, 0))):
        torch.testing.assert_close(found[:, column], Terrain.slopes[1, row, cell])
    assert slopes(2.0, 1e6 * torch.randn(3, 50)).isfinite().all()


def test_points_of_a_clip_without_terrain_need_no_map() -> None:
    # Its map lies at the origin and its cells have no size; a point there used to have no index.
    assert slopes(0.0, torch.zeros(3, 2)).isfinite().all()
    assert slopes(0.0, torch.tensor([[5.0], [-5.0], [1.0]])).isfinite().all()
