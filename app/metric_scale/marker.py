"""The scale by printed square markers of a known size: all frames that see one have to agree on its place and side."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.metric_scale.fitting import jackknife
from stream_recon.configs.errors import InputError

DICTIONARIES = {
    name: getattr(cv2.aruco, f"DICT_{name}")
    for name in (
        "4X4_100", "5X5_250", "6X6_250", "7X7_250", "ARUCO_ORIGINAL", "ARUCO_MIP_36h12", "APRILTAG_36h11",
        "APRILTAG_25h9",
    )
}  # fmt: skip
"""Not those with so few bits, or so many numbers, that a tile is soon taken for one."""
CORNERS = np.array([[-0.5, 0.5, 0], [0.5, 0.5, 0], [0.5, -0.5, 0], [-0.5, -0.5, 0]])
"""Of a marker with side 1, in the detector's order."""
SMALLEST_PX = 12.0
"""Side in the image: of a smaller one corners say too little."""
EDGE_ROUNDS = 2
EDGE_PROFILES = 24
"""Along each edge of a marker."""
LEAST_CONTRAST = 20.0
"""Levels of 255 between a marker's black and its paper."""
LEAST_SIGHTINGS = 3
LEAST_APART = 0.02
"""Of the distance: cameras that are nearer to one another see a marker of any size alike."""
SLACK_PX = 1.0
"""Beyond so many pixels an error counts less."""
WRONG_SHARE = 0.1
"""Of a marker's side in the image: corners that are further off are of something else, or the poses are wrong."""
UNSURE = 0.1
"""Relative error of a scale that is no scale."""
STARTS = 40


@dataclass(frozen=True)
class Sighting:
    """A marker in a frame."""

    marker: tuple[str, int]
    """Its dictionary and number."""
    T_world_camera: FloatArray  # [4, 4]
    focal: float
    corners: FloatArray
    """[4, 2] at distance 1 of a camera without a lens: x / z, y / z."""


@dataclass(frozen=True)
class MarkerScale:
    """Metres for a unit, by one marker or several."""

    scale: float
    error: float
    """Relative standard error, with what the path is off by as far as the sightings tell."""
    markers: tuple[str, ...]
    """Such as ``6X6_250 number 7``."""
    sightings: int
    off_px: float


class Detector:
    """Finds markers of all usual kinds in images."""

    def __init__(self) -> None:
        parameters = cv2.aruco.DetectorParameters()
        # Repaired bits make markers out of windows and tiles; there are many frames to find one in.
        parameters.errorCorrectionRate = 0.0
        dictionaries = [cv2.aruco.getPredefinedDictionary(number) for number in DICTIONARIES.values()]
        self._detector = cv2.aruco.ArucoDetector(dictionaries, parameters)
        self._names = list(DICTIONARIES)

    def find(self, grey: NDArray[np.uint8]) -> Iterator[tuple[tuple[str, int], FloatArray]]:
        """Markers and their corners [4, 2] in pixels, (0, 0) being the first one's corner; each marker once."""
        corners, numbers, _, dictionaries = self._detector.detectMarkersMultiDict(grey)
        if numbers is None:
            return
        found = list(zip(dictionaries.ravel().tolist(), numbers.ravel().tolist(), strict=True))
        for (dictionary, number), corner in zip(found, corners, strict=True):
            quad = np.asarray(corner, np.float64).reshape(4, 2)
            side = np.linalg.norm(quad - np.roll(quad, 1, axis=0), axis=1).min()
            once = found.count((dictionary, number)) == 1
            if once and side >= SMALLEST_PX and (exact := refined_corners(grey, quad)) is not None:
                # OpenCV's (0, 0) is the middle of the first pixel.
                yield (self._names[dictionary], int(number)), exact + 0.5


def refined_corners(grey: NDArray[np.uint8], quad: FloatArray) -> FloatArray | None:
    """The corners [4, 2] where lines along a marker's edges meet; None where its edges are not to be seen.

    The detector's own are half a pixel inside: that would make a marker of 50 pixels 2 % smaller, or 0.6 % by its
    refinement of corners. An edge is where brightness is half-way between the black border and the paper, whatever the
    blur.
    """
    for _ in range(EDGE_ROUNDS):
        lines = [_edge(grey, quad[side], quad[(side + 1) % 4], quad.mean(axis=0)) for side in range(4)]
        if any(line is None for line in lines):
            return None
        # Each line: normal @ x = distance.
        pairs = [(lines[side - 1], lines[side]) for side in range(4)]
        quad = np.array([np.linalg.solve(*map(np.array, zip(a, b, strict=True))) for a, b in pairs if a and b])
    return quad


def _edge(
    grey: NDArray[np.uint8], first: FloatArray, second: FloatArray, middle: FloatArray
) -> tuple[FloatArray, float] | None:
    """The line along an edge of which two points are roughly known."""
    along = second - first
    length = float(np.linalg.norm(along))
    normal = np.array([along[1], -along[0]]) / length
    normal = normal if normal @ (first - middle) > 0 else -normal
    reach = float(np.clip(length / 14, 1.5, 8.0))
    offsets = np.linspace(-reach, reach, 4 * int(np.ceil(reach)) + 1)
    places = first + np.linspace(0.12, 0.88, EDGE_PROFILES)[:, None] * along
    at = (places[:, None] + offsets[:, None] * normal).astype(np.float32)
    seen = cv2.remap(grey, at[..., 0], at[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE).astype(np.float64)
    ends = max(1, len(offsets) // 6)
    black, white = seen[:, :ends].mean(axis=1), seen[:, -ends:].mean(axis=1)
    above = seen > (0.5 * (black + white))[:, None]
    # The first sample outside of which all is bright.
    step = len(offsets) - np.argmin(above[:, ::-1], axis=1)
    good = (white - black > LEAST_CONTRAST) & (step > 0) & (step < len(offsets))
    if good.sum() < EDGE_PROFILES / 2:
        return None
    rows, step = np.flatnonzero(good), step[good]
    low, high = seen[rows, step - 1], seen[rows, step]
    share = (0.5 * (black + white)[rows] - low) / np.maximum(high - low, 1e-6)
    points = places[rows] + (offsets[step - 1] + share * (offsets[1] - offsets[0]))[:, None] * normal
    vx, vy, x, y = cv2.fitLine(points.astype(np.float32), cv2.DIST_HUBER, 0, 0.01, 0.01).ravel().astype(np.float64)
    across = np.array([-vy, vx])
    return across, float(across @ (x, y))


def scale_by_markers(sightings: Sequence[Sighting], side: float, given: str) -> MarkerScale:
    """Metres for a unit of the world that the cameras are in; ``side``: of each marker, in metres.

    Raises:
        InputError: none is seen often enough, or from places far enough apart.
    """
    by_marker: dict[tuple[str, int], list[Sighting]] = {}
    for sighting in sightings:
        by_marker.setdefault(sighting.marker, []).append(sighting)
    often = [seen for seen in by_marker.values() if len(seen) >= LEAST_SIGHTINGS]
    found = [one for seen in often if (one := _scale(seen, side)) is not None]
    if not found:
        if not sightings:
            raise InputError(f"--scale-from {given}: no ArUco or AprilTag marker is seen in any frame")
        raise InputError(
            f"--scale-from {given}: markers are seen {len(sightings)} times, but none clearly from three or more "
            "places far enough apart to tell its size"
        )
    logs, errors = np.log([one.scale for one in found]), np.array([one.error for one in found])
    # One that is not of the stated size, or none at all, stands apart.
    middle = float(np.median(logs))
    near = np.abs(logs - middle) <= np.maximum(4 * errors, 0.05)
    logs, errors = logs[near], np.maximum(errors[near], 1e-6)
    share = errors**-2.0 / (errors**-2.0).sum()
    scale = float(np.exp(share @ logs))
    spread = float(np.sqrt(share @ np.square(logs - share @ logs) / len(logs)))
    used = [one for one, ok in zip(found, near, strict=True) if ok]
    count = sum(one.sightings for one in used)
    off = float(np.sqrt(sum(one.sightings * one.off_px**2 for one in used) / count))
    names = tuple(name for one in used for name in one.markers)
    # Their errors are of one path: several do not average them out.
    return MarkerScale(scale, max(float(share @ errors), spread), names, count, off)


def _scale(seen: Sequence[Sighting], side: float) -> MarkerScale | None:
    """By one marker; None where its sightings do not agree, or tell nothing of its size."""
    start = _start(seen)
    if start is None:
        return None
    fitted = _fit(seen, start)
    off = _off(seen, fitted)
    limit = np.maximum(3 * np.median(off), SLACK_PX)
    seen = [sighting for sighting, px in zip(seen, off, strict=True) if px <= limit]
    if len(seen) < LEAST_SIGHTINGS:
        return None
    fitted = _fit(seen, fitted)
    off = _off(seen, fitted)
    if np.median(off) > WRONG_SHARE * np.median([_side_px(sighting) for sighting in seen]):
        return None

    def scale_of(rows: NDArray[np.intp]) -> float | None:
        return float(np.exp(_fit([seen[row] for row in rows], fitted)[6]))

    centres = np.array([sighting.T_world_camera[:3, 3] for sighting in seen])
    if np.linalg.norm(np.ptp(centres, axis=0)) < LEAST_APART * np.median(np.linalg.norm(centres - fitted[3:6], axis=1)):
        return None
    error = jackknife(len(seen), scale_of)
    if error is None or error > UNSURE:
        return None
    error = max(error, _by_halves(seen, fitted))
    name = "{} number {}".format(*seen[0].marker)
    scale = side / float(np.exp(fitted[6]))
    return MarkerScale(scale, error, (name,), len(seen), float(np.sqrt(np.square(off).mean())))


def _by_halves(seen: Sequence[Sighting], fitted: FloatArray) -> float:
    """How much the size differs, relatively, between the first half of the way, the middle one and the last: a path
    that bends slowly fits a marker well and is still not of one scale.

    It is not divided by the root of their number, as if they were independent: what a path is off by does not average
    out along it. 0 where there are too few sightings for halves.
    """
    half = len(seen) // 2
    if half < LEAST_SIGHTINGS:
        return 0.0
    logs = [_fit(seen[first : first + half], fitted)[6] for first in (0, (len(seen) - half) // 2, len(seen) - half)]
    return min(float(np.std(logs, ddof=1)), UNSURE)


def _side_px(sighting: Sighting) -> float:
    quad = sighting.corners * sighting.focal
    return float(np.linalg.norm(quad - np.roll(quad, 1, axis=0), axis=1).mean())


def _start(seen: Sequence[Sighting]) -> FloatArray | None:
    """Turn (3), place (3) and log of the side in the world, of which sightings alone tell all but the last."""
    poses = [_poses(sighting) for sighting in seen]
    rows, known = [], []
    for sighting, found in zip(seen, poses, strict=True):
        if not found:
            continue
        T = sighting.T_world_camera
        # Place - side * (marker in the camera, turned to the world) = camera.
        rows.append(np.column_stack([np.eye(3), -(T[:3, :3] @ found[0][1])]))
        known.append(T[:3, 3])
    if len(rows) < LEAST_SIGHTINGS:
        return None
    A, b = np.array(rows), np.array(known)
    weights = np.ones(len(A))
    solved = np.zeros(4)
    for _ in range(10):
        root = np.sqrt(weights)[:, None]
        solved = np.linalg.lstsq((root[..., None] * A).reshape(-1, 4), (root * b).ravel(), rcond=None)[0]
        off = np.linalg.norm(A @ solved - b, axis=1)
        weights = 1 / np.maximum(off, max(0.1 * float(np.median(off)), 1e-12))
    if not solved[3] > 0:
        return None
    turns = [
        cv2.Rodrigues(sighting.T_world_camera[:3, :3] @ R)[0].ravel()
        for sighting, found in zip(seen, poses, strict=True)
        for R, _ in found
    ]
    starts = [
        np.concatenate([turn, solved[:3], [np.log(solved[3])]]) for turn in turns[:: max(1, len(turns) // STARTS)]
    ]
    return min(starts, key=lambda start: float(np.median(_off(seen, start))))


def _poses(sighting: Sighting) -> list[tuple[FloatArray, FloatArray]]:
    """Both poses of a marker with side 1 that a camera may see so, the likelier first: turn [3, 3], place [3]."""
    quad = sighting.corners.astype(np.float64)[:, None]
    count, turns, places, _ = cv2.solvePnPGeneric(
        CORNERS[:, None], quad, np.eye(3), None, flags=cv2.SOLVEPNP_IPPE_SQUARE
    )
    return [(cv2.Rodrigues(turns[n])[0], np.asarray(places[n], np.float64).ravel()) for n in range(count)]


def _fit(seen: Sequence[Sighting], start: FloatArray) -> FloatArray:
    T = invert_pose(np.array([sighting.T_world_camera for sighting in seen]))
    corners = np.array([sighting.corners for sighting in seen])
    focal = np.array([sighting.focal for sighting in seen])

    def residuals(state: FloatArray) -> FloatArray:
        return np.asarray(((_shown(T, state) - corners) * focal[:, None, None]).ravel())

    found = least_squares(residuals, start, loss="soft_l1", f_scale=SLACK_PX, x_scale="jac", max_nfev=50)
    return np.asarray(found.x, np.float64)


def _off(seen: Sequence[Sighting], state: FloatArray) -> FloatArray:
    """Root mean square error [N] of a marker's corners in each sighting, in pixels."""
    T = invert_pose(np.array([sighting.T_world_camera for sighting in seen]))
    corners = np.array([sighting.corners for sighting in seen])
    focal = np.array([sighting.focal for sighting in seen])
    return np.asarray(focal * np.sqrt(np.square(_shown(T, state) - corners).sum(axis=2).mean(axis=1)))


def _shown(T_camera_world: FloatArray, state: FloatArray) -> FloatArray:
    """Where cameras [N] show the corners of a marker [N, 4, 2], at distance 1."""
    world = np.exp(np.clip(state[6], -50, 50)) * CORNERS @ cv2.Rodrigues(state[:3])[0].T + state[3:6]
    local = np.einsum("nij,cj->nci", T_camera_world[:, :3, :3], world) + T_camera_world[:, None, :3, 3]
    z = local[..., 2:]
    # Behind the camera: far off, but with a slope.
    return np.asarray(local[..., :2] / np.maximum(z, 1e-3 * np.abs(z) + 1e-6))
