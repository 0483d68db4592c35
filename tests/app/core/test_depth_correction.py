"""Fields of zeros change nothing; a map's factors and those at its pixels are the same."""

import numpy as np
import pytest

from stream_recon.app.core.depth_correction import GRID, correct_depth, depth_factors, depth_factors_at, validated_field

RANDOM = np.random.default_rng(3)
BUMPY = validated_field(RANDOM.uniform(-0.4, 0.4, (GRID, GRID)))


@pytest.mark.parametrize("scale", [1.0, 0.7])
def test_a_field_of_zeros_changes_no_bit(scale: float) -> None:
    depth = RANDOM.uniform(0.1, 9, (21, 30)).astype(np.float32)
    depth[3, 4], depth[5, 6] = np.nan, 0.0
    plain = correct_depth(depth, scale, None)
    np.testing.assert_array_equal(correct_depth(depth, scale, np.zeros((GRID, GRID))), plain)
    assert plain.dtype == np.float32


def test_nodes_lie_on_the_border() -> None:
    corners = np.array([[0, 0], [1, 0], [0, 1], [1, 1], [-5, 2]], float)
    nodes = np.exp(BUMPY.astype(float))
    expected = [nodes[0, 0], nodes[0, -1], nodes[-1, 0], nodes[-1, -1], nodes[-1, 0]]
    np.testing.assert_allclose(depth_factors_at(BUMPY[None], corners), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(21, 30), (40, 24), (3, 2), (1, 1)])
def test_a_map_has_what_its_pixels_have(shape: tuple[int, int]) -> None:
    rows, columns = np.indices(shape).reshape(2, -1)
    places = np.stack([(columns + 0.5) / shape[1], (rows + 0.5) / shape[0]], axis=1)
    which = np.arange(len(places)) % 2
    both = depth_factors_at(np.stack([BUMPY, 2 * BUMPY]), places, which)
    whole = depth_factors(BUMPY, shape).reshape(-1)
    np.testing.assert_allclose(both, whole ** (1 + which), rtol=1e-5)


@pytest.mark.parametrize("wrong", [[[0.0] * GRID] * (GRID - 1), [[np.nan] * GRID] * GRID, [[3.0] * GRID] * GRID, 1.0])
def test_what_is_no_field_is_refused(wrong: list[list[float]]) -> None:
    with pytest.raises((ValueError, TypeError)):
        validated_field(wrong)
