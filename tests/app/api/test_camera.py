"""Cameras from numbers and arrays."""

import numpy as np
import pytest

import stream_recon as sr
from stream_recon.app.sources.calibration import parse_camera


def test_numbers_and_a_matrix_are_the_camera_of_the_command_line() -> None:
    K = np.array([[500, 0, 320], [0, 510, 240], [0, 0, 1]])
    camera = sr.Camera.from_matrix(K, np.array([[0.1, -0.2, 0.001, 0.002, 0.3]]))
    assert camera == sr.Camera(500, 510, 320, 240, (0.1, -0.2, 0.001, 0.002, 0.3))
    assert camera.calibration() == parse_camera("500,510,320,240,0.1,-0.2,0.001,0.002,0.3")


@pytest.mark.parametrize(
    "make",
    [
        lambda: sr.Camera(-1, 1, 1, 1),
        lambda: sr.Camera(1, 1, 1, 1, (0.1, 0.2)),
        lambda: sr.Camera(1, 1, 1, 1, model="round"),  # type: ignore[arg-type]
        lambda: sr.Camera("wide", 1, 1, 1),  # type: ignore[arg-type]
        lambda: sr.Camera.from_matrix(np.eye(4)),
        lambda: sr.Camera.from_matrix([[1, 2, 3], [0, 1, 1], [0, 0, 1]]),
    ],
)
def test_what_is_no_camera_is_refused(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(sr.ConfigError):
        make()
