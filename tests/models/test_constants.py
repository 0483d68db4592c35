"""What is made once for a shape of image stays where it is, whatever shapes come between: captured graphs read it."""

from collections.abc import Callable

import pytest
import torch

from stream_recon.models.dpt_head import _position_grid
from stream_recon.models.encoder import Encoder
from stream_recon.models.odometry.keyframe_matcher import _step_indices
from stream_recon.models.odometry.rotation_search import _offsets
from stream_recon.models.odometry.sampling import cell_centers, width_height, window_offsets
from stream_recon.models.pose import _matrix_terms, _quaternion_terms, _skew_terms, identity
from stream_recon.models.rope import _grid_angles, frame_rotation
from tests.networks import tiny_preset

CPU = torch.device("cpu")
OF_SHAPES: dict[str, Callable[[int, int], object]] = {
    "places": lambda rows, columns: cell_centers((28 * rows, 28 * columns), (4 * rows, 4 * columns), CPU),
    "corner": lambda rows, columns: width_height((rows, columns), CPU),
    "window": lambda rows, columns: window_offsets(rows, columns, CPU),
    "rotation": lambda rows, columns: frame_rotation((rows, columns), 6, 16, CPU),
    "angles": lambda rows, columns: _grid_angles((rows, columns), 6, 8, CPU),
    "positions": lambda rows, columns: _position_grid((rows, columns), 8, columns / rows, CPU, torch.float32, True),
    "cells": lambda rows, columns: _step_indices(rows, 8, (28 * rows, 28 * columns), range(2), CPU),
    "turns": lambda rows, columns: _offsets(8, columns, rows, (0.0, 1.0), CPU),
}
ALWAYS: dict[str, Callable[[], object]] = {
    "one": lambda: identity(3, torch.float32, CPU),
    "cross": lambda: _skew_terms(torch.float32, CPU),
    "quaternion": lambda: _quaternion_terms(torch.float32, CPU),
    "matrix": lambda: _matrix_terms(torch.float32, CPU),
}


@pytest.mark.parametrize("name", OF_SHAPES)
def test_what_is_made_for_a_shape_stays(name: str) -> None:
    made = OF_SHAPES[name]
    first = made(2, 3)
    for rows in range(1, 13):
        for columns in range(1, 13):
            made(rows, columns)
    assert made(2, 3) is first


@pytest.mark.parametrize("name", ALWAYS)
def test_what_is_made_for_all_shapes_is_made_once(name: str) -> None:
    assert ALWAYS[name]() is ALWAYS[name]()


def test_an_encoders_positions_stay_until_its_table_moves() -> None:
    encoder = Encoder(tiny_preset().network).requires_grad_(False)
    torch.nn.init.normal_(encoder.pos_embed)
    first = encoder._positions((2, 3))
    others = [encoder._positions((rows, 4)) for rows in range(1, 100)]
    assert encoder._positions((2, 3)) is first and encoder._positions((1, 4)) is others[0]
    encoder.pos_embed = torch.nn.Parameter(encoder.pos_embed * 2, requires_grad=False)
    torch.testing.assert_close(encoder._positions((2, 3)), first * 2)
