"""Metric scale from printed markers: with exact, noisy and wrong poses."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

from stream_recon.app.core.transforms import FloatArray, align, invert_pose
from stream_recon.app.metric_scale.marker import Detector, MarkerDetection, scale_by_markers
from stream_recon.configs.errors import InputError
from tests.app.metric_scale.printed import corners, pasted
from tests.app.slam.room import FOCAL, SIZE, picture, pose, walk

SIDE = 0.5
UNIT = 0.37
"""Metres in a unit of the reconstruction."""
SQUARE = corners(np.array([0.9, 0.0, 2.0]), np.array([1.0, 0, 0]), np.array([0, 1.0, 0]), SIDE)


def detections(
    truth: FloatArray, squares: dict[int, FloatArray], dictionary: int = cv2.aruco.DICT_6X6_250, noise: float = 0.0
) -> list[MarkerDetection]:
    """Detections in a result of scale `UNIT`; ``noise``: of its poses, in metres and radians."""
    found, random = [], np.random.default_rng(5)
    for T in truth:
        rgb = picture(T)[0]
        for number, square in squares.items():
            rgb = pasted(rgb, T, FOCAL, square, number, dictionary)
        seen = T.copy()
        seen[:3, :3] = seen[:3, :3] @ cv2.Rodrigues(random.normal(0, noise, 3))[0]
        seen[:3, 3] = (seen[:3, 3] + random.normal(0, noise, 3)) / UNIT
        for marker, quad in Detector().find(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)):
            found.append(MarkerDetection(marker, seen, FOCAL, (quad - (SIZE[0] / 2, SIZE[1] / 2)) / FOCAL))
    return found


def drifted(truth: FloatArray, seed: int) -> FloatArray:
    """A trajectory with scale drift and rotation errors that add up."""
    random = np.random.default_rng(seed)
    lengths = np.exp(np.cumsum(random.normal(0, 0.01, len(truth))))
    path = [truth[0]]
    for one, other, length in zip(truth, truth[1:], lengths, strict=False):
        step = invert_pose(one) @ other
        step[:3, 3] *= length
        step[:3, :3] = step[:3, :3] @ cv2.Rodrigues(random.normal(0, 0.001, 3))[0]
        path.append(path[-1] @ step)
    return np.array(path)


@pytest.mark.slow
@pytest.mark.parametrize("dictionary", [cv2.aruco.DICT_6X6_250, cv2.aruco.DICT_APRILTAG_36h11, cv2.aruco.DICT_4X4_50])
def test_a_marker_determines_the_scale(dictionary: int) -> None:
    found = scale_by_markers(detections(walk(24), {7: SQUARE}, dictionary), SIDE, "marker:0.5")
    assert found.scale == pytest.approx(UNIT, rel=0.005)
    assert found.error < 0.005 and found.rms_px < 0.3
    assert len(found.markers) == 1 and found.markers[0].endswith("number 7") and found.detections >= 8


def test_the_error_covers_noise_of_the_poses() -> None:
    found = scale_by_markers(detections(walk(24), {7: SQUARE}, noise=0.004), SIDE, "marker:0.5")
    assert found.scale == pytest.approx(UNIT, rel=0.02)
    assert found.error > 0.0005 and abs(np.log(found.scale / UNIT)) < 4 * found.error


@pytest.mark.slow
def test_the_error_covers_scale_drift() -> None:
    truth = walk(24)
    exact = detections(truth, {7: SQUARE})
    for detection in exact:
        detection.T_world_camera[:3, 3] *= UNIT
    rows = [int(np.argmin(np.abs(truth - detection.T_world_camera).max(axis=(1, 2)))) for detection in exact]
    off, stated = [], []
    for seed in range(12):
        path = drifted(truth, seed)
        seen = [replace(detection, T_world_camera=path[n]) for detection, n in zip(exact, rows, strict=True)]
        found = scale_by_markers(seen, SIDE, "marker:0.5")
        off.append(abs(np.log(found.scale / align(path[:, :3, 3], truth[:, :3, 3]).scale)))
        stated.append(found.error)
    # The mean absolute value of a normal error is 0.8 of its standard error.
    assert 0.4 < np.mean(np.array(off) / stated) < 1.6, np.array([off, stated])


def test_one_marker_of_another_size_is_left_out() -> None:
    other = corners(np.array([-0.2, 0.6, 2.2]), np.array([1.0, 0, 0]), np.array([0, 1.0, 0]), SIDE)
    wrong = corners(np.array([0.3, -0.6, 2.3]), np.array([1.0, 0, 0]), np.array([0, 1.0, 0]), 0.4)
    found = scale_by_markers(detections(walk(12), {7: SQUARE, 8: other, 9: wrong}), SIDE, "marker:0.5")
    assert found.scale == pytest.approx(UNIT, rel=0.005)
    assert sorted(found.markers) == ["6X6_250 number 7", "6X6_250 number 8"]


def test_frames_with_wrong_poses_are_outliers() -> None:
    seen = detections(walk(24), {7: SQUARE})
    for detection in seen[::5]:
        detection.T_world_camera[:3, 3] += 1.0
    assert scale_by_markers(seen, SIDE, "marker:0.5").scale == pytest.approx(UNIT, rel=0.01)


def test_without_a_marker_or_baseline_the_error_says_so() -> None:
    with pytest.raises(InputError, match="no ArUco or AprilTag marker is detected"):
        scale_by_markers(detections(walk(6), {}), SIDE, "marker:0.5")
    turns = np.array([pose((0, 0, -1.0), 0.1 * n) for n in range(-3, 6)])
    with pytest.raises(InputError, match="enough distance"):
        scale_by_markers(detections(turns, {7: SQUARE}), SIDE, "marker:0.5")
