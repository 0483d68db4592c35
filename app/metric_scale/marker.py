"""Metric scale from printed square markers of known size: one marker pose and side is fitted to all its detections."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.metric_scale.config import DEFAULT_SCALE, FitConfig, MarkerConfig
from stream_recon.app.metric_scale.fitting import jackknife
from stream_recon.configs.errors import InputError

DICTIONARIES = {
    name: getattr(cv2.aruco, f"DICT_{name}")
    for name in (
        "4X4_100", "5X5_250", "6X6_250", "7X7_250", "ARUCO_ORIGINAL", "ARUCO_MIP_36h12", "APRILTAG_36h11",
        "APRILTAG_25h9",
    )
}  # fmt: skip
"""OpenCV's dictionaries, without those of few bits or many markers, for which tiles are often mistaken."""
CORNERS = np.array([[-0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, -0.5, 0], [-0.5, -0.5, 0]])
"""Corners of a marker with side 1, in the detector's order."""


@dataclass(frozen=True)
class MarkerDetection:
    """Detection of a marker in a frame."""

    marker: tuple[str, int]
    """Dictionary and id."""
    T_world_camera: FloatArray  # [4, 4]
    focal: float
    """Focal length in pixels."""
    corners: FloatArray  # [4, 2] undistorted and normalised: x / z, y / z


@dataclass(frozen=True)
class MarkerScale:
    """Metric scale by one marker or several."""

    scale: float
    """Metres in a unit of the reconstruction."""
    error: float
    """Relative standard error, with the scale drift along the trajectory."""
    markers: tuple[str, ...]
    """Names, such as ``6X6_250 number 7``."""
    detections: int
    rms_px: float
    """RMS reprojection error."""


class Detector:
    """Detector of ArUco and AprilTag markers of the usual `DICTIONARIES`."""

    def __init__(self, config: MarkerConfig = DEFAULT_SCALE.marker) -> None:
        self._config = config
        parameters = cv2.aruco.DetectorParameters()
        # Error correction makes markers of windows and tiles, and many frames show a marker without errors.
        parameters.errorCorrectionRate = 0.0
        dictionaries = [cv2.aruco.getPredefinedDictionary(number) for number in DICTIONARIES.values()]
        self._detector = cv2.aruco.ArucoDetector(dictionaries, parameters)
        self._names = list(DICTIONARIES)

    def find(self, grey: NDArray[np.uint8]) -> Iterator[tuple[tuple[str, int], FloatArray]]:
        """Markers and their corners [4, 2] in pixels, where pixel (0, 0) covers [0, 1) x [0, 1).

        Markers that are seen twice in the image are left out.
        """
        corners, numbers, _, dictionaries = self._detector.detectMarkersMultiDict(grey)
        if numbers is None:
            return
        markers = list(zip(dictionaries.ravel().tolist(), numbers.ravel().tolist(), strict=True))
        for (dictionary, number), corner in zip(markers, corners, strict=True):
            quad = np.asarray(corner, np.float64).reshape(4, 2)
            side = np.linalg.norm(quad - np.roll(quad, 1, axis=0), axis=1).min()
            once = markers.count((dictionary, number)) == 1
            if not once or side < self._config.min_side_px:
                continue
            if (refined := refined_corners(grey, quad, self._config)) is not None:
                # OpenCV's (0, 0) is the centre of the first pixel.
                yield (self._names[dictionary], int(number)), refined + 0.5


def refined_corners(grey: NDArray[np.uint8], quad: FloatArray, config: MarkerConfig) -> FloatArray | None:
    """Corners [4, 2] as intersections of lines along a marker's edges; None where its edges are not visible.

    The detector's corners are half a pixel inside, which makes a marker of 50 pixels 2 % smaller, or 0.6 % with its
    corner refinement. An edge is where brightness is half-way between the black border and the paper, at any blur.
    """
    for _ in range(config.edge_rounds):
        lines = [_edge(grey, quad[side], quad[(side + 1) % 4], quad.mean(axis=0), config) for side in range(4)]
        if any(line is None for line in lines):
            return None
        # Each line: normal @ x = distance.
        pairs = [(lines[side - 1], lines[side]) for side in range(4)]
        quad = np.array([np.linalg.solve(*map(np.array, zip(a, b, strict=True))) for a, b in pairs if a and b])
    return quad


def _edge(
    grey: NDArray[np.uint8], first: FloatArray, second: FloatArray, middle: FloatArray, config: MarkerConfig
) -> tuple[FloatArray, float] | None:
    """Line (normal, distance) along an edge, of which two points are approximately known; None for low contrast."""
    along = second - first
    length = float(np.linalg.norm(along))
    normal = np.array([along[1], -along[0]]) / length
    normal = normal if normal @ (first - middle) > 0 else -normal
    half_width = float(np.clip(length / 14, 1.5, 8.0))
    offsets = np.linspace(-half_width, half_width, 4 * int(np.ceil(half_width)) + 1)
    starts = first + np.linspace(0.12, 0.88, config.edge_profiles)[:, None] * along
    xy = (starts[:, None] + offsets[:, None] * normal).astype(np.float32)
    profiles = cv2.remap(grey, xy[..., 0], xy[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    profiles = profiles.astype(np.float64)
    ends = max(1, len(offsets) // 6)
    black, white = profiles[:, :ends].mean(axis=1), profiles[:, -ends:].mean(axis=1)
    above = profiles > (0.5 * (black + white))[:, None]
    # The first sample from which all samples outwards are bright.
    step = len(offsets) - np.argmin(above[:, ::-1], axis=1)
    good = (white - black > config.min_contrast) & (step > 0) & (step < len(offsets))
    if good.sum() < config.edge_profiles / 2:
        return None
    rows, step = np.flatnonzero(good), step[good]
    low, high = profiles[rows, step - 1], profiles[rows, step]
    share = (0.5 * (black + white)[rows] - low) / np.maximum(high - low, 1e-6)
    points = starts[rows] + (offsets[step - 1] + share * (offsets[1] - offsets[0]))[:, None] * normal
    vx, vy, x, y = cv2.fitLine(points.astype(np.float32), cv2.DIST_HUBER, 0, 0.01, 0.01).ravel().astype(np.float64)
    across = np.array([-vy, vx])
    return across, float(across @ (x, y))


def scale_by_markers(
    detections: Sequence[MarkerDetection], side: float, text: str, config: MarkerConfig = DEFAULT_SCALE.marker
) -> MarkerScale:
    """Metres in a unit of the cameras' world; ``side`` is that of each marker, in metres.

    Raises InputError: no marker is detected often enough, or with a sufficient baseline.
    """
    by_marker: dict[tuple[str, int], list[MarkerDetection]] = {}
    for detection in detections:
        by_marker.setdefault(detection.marker, []).append(detection)
    often = [group for group in by_marker.values() if len(group) >= config.min_detections]
    scales = [one for group in often if (one := _scale(group, side, config)) is not None]
    if not detections:
        raise InputError(f"--scale-from {text}: no ArUco or AprilTag marker is detected in any frame")
    if not scales:
        raise InputError(
            f"--scale-from {text}: markers are detected {len(detections)} times, but none clearly from three or more "
            "positions with enough distance between them"
        )
    return _common_scale(scales)


def _common_scale(scales: Sequence[MarkerScale]) -> MarkerScale:
    """Weighted mean of the scales by several markers, without outliers."""
    logs, errors = np.log([one.scale for one in scales]), np.array([one.error for one in scales])
    # A marker of another size, or a false detection, is an outlier.
    median = float(np.median(logs))
    near = np.abs(logs - median) <= np.maximum(4 * errors, 0.05)
    logs, errors = logs[near], np.maximum(errors[near], 1e-6)
    share = errors**-2.0 / (errors**-2.0).sum()
    scale = float(np.exp(share @ logs))
    deviation = float(np.sqrt(share @ np.square(logs - share @ logs) / len(logs)))
    used = [one for one, ok in zip(scales, near, strict=True) if ok]
    count = sum(one.detections for one in used)
    rms = float(np.sqrt(sum(one.detections * one.rms_px**2 for one in used) / count))
    names = tuple(name for one in used for name in one.markers)
    # All errors come from one trajectory, so several markers do not average them out.
    return MarkerScale(scale, max(float(share @ errors), deviation), names, count, rms)


def _scale(detections: Sequence[MarkerDetection], side: float, config: MarkerConfig) -> MarkerScale | None:
    """Metric scale by one marker; None where its detections contradict one another, or do not determine its size."""
    start = _start(detections, config)
    if start is None:
        return None
    fitted = _fit(detections, start, config)
    errors = _errors_px(detections, fitted)
    limit = np.maximum(3 * np.median(errors), config.loss_scale_px)
    detections = [detection for detection, px in zip(detections, errors, strict=True) if px <= limit]
    if len(detections) < config.min_detections:
        return None
    fitted = _fit(detections, fitted, config)
    errors = _errors_px(detections, fitted)
    if np.median(errors) > config.max_error_share * np.median([_side_px(detection) for detection in detections]):
        return None

    def scale_of(rows: NDArray[np.intp]) -> float | None:
        return float(np.exp(_fit([detections[row] for row in rows], fitted, config)[6]))

    centres = np.array([detection.T_world_camera[:3, 3] for detection in detections])
    distance = np.median(np.linalg.norm(centres - fitted[3:6], axis=1))
    if np.linalg.norm(np.ptp(centres, axis=0)) < config.min_baseline * distance:
        return None
    error = jackknife(len(detections), scale_of, FitConfig())
    if error is None or error > config.max_error:
        return None
    error = max(error, _scale_drift(detections, fitted, config))
    name = "{} number {}".format(*detections[0].marker)
    scale = side / float(np.exp(fitted[6]))
    return MarkerScale(scale, error, (name,), len(detections), float(np.sqrt(np.square(errors).mean())))


def _scale_drift(detections: Sequence[MarkerDetection], fitted: FloatArray, config: MarkerConfig) -> float:
    """Relative standard deviation of the scale between the first, middle and last half of the detections.

    A trajectory with slow drift fits a marker well, yet its scale is not constant. The deviation is not divided by the
    root of their number, because drift does not average out along a trajectory. 0 where there are too few detections.
    """
    half = len(detections) // 2
    if half < config.min_detections:
        return 0.0
    firsts = (0, (len(detections) - half) // 2, len(detections) - half)
    logs = [_fit(detections[first : first + half], fitted, config)[6] for first in firsts]
    return min(float(np.std(logs, ddof=1)), config.max_error)


def _side_px(detection: MarkerDetection) -> float:
    quad = detection.corners * detection.focal
    return float(np.linalg.norm(quad - np.roll(quad, 1, axis=0), axis=1).mean())


def _start(detections: Sequence[MarkerDetection], config: MarkerConfig) -> FloatArray | None:
    """Initial state [7] of the fit: rotation vector, position and log of the side of the marker in the world.

    Position and side solve a linear system; the rotation is the best of those of single detections.
    """
    poses = [_poses(detection) for detection in detections]
    rows, known = [], []
    for detection, candidates in zip(detections, poses, strict=True):
        if not candidates:
            continue
        T = detection.T_world_camera
        # position - side * (marker in the camera, rotated to the world) = camera
        rows.append(np.column_stack([np.eye(3), -(T[:3, :3] @ candidates[0][1])]))
        known.append(T[:3, 3])
    if len(rows) < config.min_detections:
        return None
    A, b = np.array(rows), np.array(known)
    weights = np.ones(len(A))
    solved = np.zeros(4)
    for _ in range(10):
        root = np.sqrt(weights)[:, None]
        solved = np.linalg.lstsq((root[..., None] * A).reshape(-1, 4), (root * b).ravel(), rcond=None)[0]
        distance = np.linalg.norm(A @ solved - b, axis=1)
        weights = 1 / np.maximum(distance, max(0.1 * float(np.median(distance)), 1e-12))
    if not solved[3] > 0:
        return None
    rotations = [
        cv2.Rodrigues(detection.T_world_camera[:3, :3] @ R)[0].ravel()
        for detection, candidates in zip(detections, poses, strict=True)
        for R, _ in candidates
    ]
    starts = [
        np.concatenate([rotation, solved[:3], [np.log(solved[3])]])
        for rotation in rotations[:: max(1, len(rotations) // config.max_starts)]
    ]
    return min(starts, key=lambda start: float(np.median(_errors_px(detections, start))))


def _poses(detection: MarkerDetection) -> list[tuple[FloatArray, FloatArray]]:
    """Both possible poses of a marker with side 1 in the camera, the likelier first: rotation [3, 3], position [3]."""
    quad = detection.corners.astype(np.float64)[:, None]
    count, rotations, positions, _ = cv2.solvePnPGeneric(
        CORNERS[:, None], quad, np.eye(3), None, flags=cv2.SOLVEPNP_IPPE_SQUARE
    )
    return [(cv2.Rodrigues(rotations[n])[0], np.asarray(positions[n], np.float64).ravel()) for n in range(count)]


def _fit(detections: Sequence[MarkerDetection], start: FloatArray, config: MarkerConfig) -> FloatArray:
    """State [7] of a marker, see `_start`, with the least robust reprojection error."""
    T, corners, focal = _stacked(detections)

    def residuals(state: FloatArray) -> FloatArray:
        return np.asarray(((_projected(T, state) - corners) * focal[:, None, None]).ravel())

    solution = least_squares(residuals, start, loss="soft_l1", f_scale=config.loss_scale_px, x_scale="jac", max_nfev=50)
    return np.asarray(solution.x, np.float64)


def _errors_px(detections: Sequence[MarkerDetection], state: FloatArray) -> FloatArray:
    """RMS reprojection error [N] of the corners in each detection, in pixels."""
    T, corners, focal = _stacked(detections)
    return np.asarray(focal * np.sqrt(np.square(_projected(T, state) - corners).sum(axis=2).mean(axis=1)))


def _stacked(detections: Sequence[MarkerDetection]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """T_camera_world [N, 4, 4], corners [N, 4, 2] and focal lengths [N]."""
    T_camera_world = invert_pose(np.array([detection.T_world_camera for detection in detections]))
    corners = np.array([detection.corners for detection in detections])
    return T_camera_world, corners, np.array([detection.focal for detection in detections])


def _projected(T_camera_world: FloatArray, state: FloatArray) -> FloatArray:
    """Normalised image coordinates [N, 4, 2] of a marker's corners in cameras [N]."""
    world = np.exp(np.clip(state[6], -50, 50)) * CORNERS @ cv2.Rodrigues(state[:3])[0].T + state[3:6]
    local = np.einsum("nij,cj->nci", T_camera_world[:, :3, :3], world) + T_camera_world[:, None, :3, 3]
    z = local[..., 2:]
    # Behind the camera the error is large, with a gradient.
    return np.asarray(local[..., :2] / np.maximum(z, 1e-3 * np.abs(z) + 1e-6))
