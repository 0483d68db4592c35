import numpy as np
import pytest

from stream_recon.app.core import so3


@pytest.mark.parametrize("angle", [0.0, 1e-9, 1e-5, 0.9e-4, 1.1e-4, 0.3, 2.0, np.pi - 1e-7])
def test_logarithm_undoes_exponential(angle: float) -> None:
    axis = np.array([[0.6, -0.48, 0.64], [0, 0, 1.0]])
    v = angle * axis
    R = so3.exp(v)
    assert np.allclose(R @ np.swapaxes(R, 1, 2), np.eye(3), atol=1e-14)
    assert np.allclose(so3.log(R), v, atol=1e-9, rtol=0)


@pytest.mark.parametrize("angle", [0.0, 0.9e-4, 1.1e-4, 0.3, 2.5])
def test_jacobian_of_the_logarithm(angle: float) -> None:
    v = angle * np.array([0.6, -0.48, 0.64])
    h = 1e-6
    differences = [
        (so3.log(so3.exp(v) @ so3.exp(h * d)) - so3.log(so3.exp(v) @ so3.exp(-h * d))) / (2 * h) for d in np.eye(3)
    ]
    assert np.allclose(np.stack(differences, axis=1), so3.inverse_right_jacobian(v), atol=1e-7)


def test_skew_is_the_cross_product() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 5, 3))
    assert np.allclose(np.einsum("nij,nj->ni", so3.skew(a), b), np.cross(a, b))


def test_nearest_is_a_rotation_close_by() -> None:
    R = so3.exp(np.array([[0.3, -0.2, 0.5], [0.0, 1.0, 0.0]]))
    found = so3.nearest(R + 1e-3 * np.random.default_rng(0).normal(size=R.shape))
    assert np.allclose(found @ found.transpose(0, 2, 1), np.eye(3), atol=1e-12) and np.allclose(found, R, atol=5e-3)
