"""The camera with radial distortion against OpenCV, and its inverse."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from stream_recon.app.core.camera_model import CameraModel

SIZE = (640, 480)
LENSES = [
    CameraModel(600.0, 320.0, 240.0),
    CameraModel(400.0, 320.0, 240.0, -0.2, 0.03),
    CameraModel(400.0, 320.0, 240.0, 0.1),
    CameraModel(290.0, 320.0, 240.0, 0.02, -0.004, fisheye=True),
    CameraModel(290.0, 320.0, 240.0, fisheye=True),
]


@pytest.mark.parametrize("lens", LENSES)
def test_pixels_agree_with_opencv(lens: CameraModel) -> None:
    xyz = np.random.default_rng(0).uniform((-0.8, -0.6, 1), (0.8, 0.6, 1.2), (50, 3))
    K, nothing = np.diag([lens.focal, lens.focal, 1.0]), np.zeros(3)
    K[:2, 2] = lens.cx, lens.cy
    k = np.array([lens.k1, lens.k2, 0.0, 0.0])
    project = cv2.fisheye.projectPoints if lens.fisheye else cv2.projectPoints
    seen = project(xyz.reshape(-1, 1, 3), nothing, nothing, K, k)[0].reshape(-1, 2)
    assert np.allclose(lens.pixels(xyz[:, :2] / xyz[:, 2:]), seen, atol=1e-6)


@pytest.mark.parametrize("lens", LENSES)
def test_rays_are_the_inverse_of_pixels(lens: CameraModel) -> None:
    pixels = np.random.default_rng(1).uniform((0, 0), SIZE, (200, 2))
    assert lens.is_invertible(SIZE)
    assert np.allclose(lens.pixels(lens.rays(pixels)), pixels, atol=1e-3)
    assert np.isfinite(lens.rays(np.array([[320.0, 240.0], [-5000.0, 9000.0]]))).all()


@pytest.mark.parametrize("fisheye", [False, True])
def test_derivatives_agree_with_finite_differences(fisheye: bool) -> None:
    r, h, camera = np.linspace(0.05, 2, 20), 1e-6, CameraModel(300.0, 320.0, 240.0, 0.05, -0.01, fisheye)
    g, bend, by_k1, by_k2 = camera.radial_derivatives(r**2)
    assert np.allclose(g, camera.radial_factor(r**2))
    by_r = (camera.radial_factor((r + h) ** 2) - camera.radial_factor((r - h) ** 2)) / (2 * h)
    assert np.allclose(bend * r, by_r, atol=1e-7)
    for measured, (a, b) in ((by_k1, (h, 0.0)), (by_k2, (0.0, h))):
        more, less = (replace(camera, k1=camera.k1 + sign * a, k2=camera.k2 + sign * b) for sign in (1, -1))
        change = more.radial_factor(r**2) - less.radial_factor(r**2)
        assert np.allclose(measured, change / (2 * h), atol=1e-7)


def test_field_of_view() -> None:
    assert CameraModel(320.0, 320.0, 240.0).field_of_view_deg(640) == pytest.approx(90)
    wide = CameraModel(320.0 / np.radians(65), 320.0, 240.0, fisheye=True)
    assert wide.field_of_view_deg(640) == pytest.approx(130)
    assert CameraModel(320.0, 320.0, 240.0, -0.1).field_of_view_deg(640) > 90


def test_a_lens_that_folds_back_is_not_invertible() -> None:
    assert not CameraModel(300.0, 320.0, 240.0, -0.5).is_invertible(SIZE)


def test_distortion_below_a_tenth_of_a_pixel_is_none() -> None:
    assert CameraModel(600.0, 320.0, 240.0, 1e-5).straightened(SIZE).is_straight
    assert not CameraModel(600.0, 320.0, 240.0, 0.01).straightened(SIZE).is_straight


@pytest.mark.parametrize("fisheye", [False, True])
def test_the_jacobian_agrees_with_finite_differences(fisheye: bool) -> None:
    camera, h = CameraModel(300.0, 320.0, 240.0, -0.08, 0.01, fisheye), 1e-6
    xyz = np.random.default_rng(0).normal(0, 1, (20, 3)) + np.array([0.0, 0.0, 5.0])
    for axis, by_axis in zip(h * np.eye(3), np.moveaxis(camera.jacobian(xyz), 2, 0), strict=True):
        assert np.allclose(by_axis, (camera.project(xyz + axis) - camera.project(xyz - axis)) / (2 * h), atol=1e-5)
