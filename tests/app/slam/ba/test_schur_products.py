"""Dense products by groups of points equal the product of the full matrix."""

import numpy as np
import pytest

from stream_recon.app.slam.ba.schur import SchurProducts


@pytest.mark.parametrize("loops", [0, 40])
def test_groups_give_the_full_product(loops: int) -> None:
    random = np.random.default_rng(loops)
    cameras, points, size = 60, 500, 7
    seen = np.zeros((cameras, points), bool)
    for point, first in enumerate(random.integers(0, cameras, points)):
        seen[first : first + random.integers(1, 20), point] = True
    # Where a loop closes points are seen from far apart.
    seen[random.integers(0, cameras, loops), random.integers(0, points, loops)] = True
    seen[:, :3] = False
    camera, point = np.nonzero(seen)
    Y = random.normal(size=(size, 3, len(camera)))
    full = np.zeros((cameras, size, points, 3))
    full[camera, :, point] = Y.transpose(2, 0, 1)
    flat = full.reshape(cameras * size, -1)
    np.testing.assert_allclose(SchurProducts(camera, point, cameras, points).product(Y), flat @ flat.T, atol=1e-9)


def test_without_sightings_the_product_is_zero() -> None:
    none = np.zeros(0, np.intp)
    assert not SchurProducts(none, none, 3, 5).product(np.zeros((7, 3, 0))).any()
