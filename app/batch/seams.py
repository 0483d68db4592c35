"""Windows of one video, each in a world of its own, brought into the first one's.

Two neighbours share the frames of their overlap. The scale between them is the median over these frames of the median
ratio of their depths, pixel by pixel: the same picture, so no matching is needed. The rotation is the mean of the
frames' relative rotations (chordal, by SVD), the translation the median of what is then left.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.camera_files import Camera
from stream_recon.app.geometry import rotation_angle_deg
from stream_recon.app.metrics import FloatArray, Similarity
from stream_recon.app.result_folder import ResultFolder, result_of
from stream_recon.app.results import FrameResult
from stream_recon.configs.errors import InputError

THREADS = 8
SAME_TIME_SECONDS = 1e-4


class MisplacedError(InputError):
    """Frames that two windows count the same are not the same: one was entered at the wrong place."""


@dataclass(frozen=True)
class Seam:
    """How two neighbouring windows fit. Lengths are in the unit of the stitched result."""

    first: int
    """Index in the source of the overlap's first frame."""
    last: int
    frames: int
    scale: float
    """Of the later window against the one before."""
    scale_spread: float
    """Median deviation of the frames' own scales from it, as a share of it."""
    position_error: float
    """RMSE between the positions of the shared frames, after alignment."""
    position_error_of_path: float | None
    """The same as a share of the path's length through the overlap; None where the camera stands still."""
    rotation_error_deg: float
    """Mean angle between the orientations of the shared frames, after alignment."""


@dataclass(frozen=True)
class Joined:
    """All windows in one world."""

    windows: tuple[ResultFolder, ...]
    transforms: tuple[Similarity, ...]
    """From each window's world to the first one's."""
    seams: tuple[Seam, ...]

    def frames(self) -> Iterator[tuple[int, Camera]]:
        """Each frame once, in order, with the number of the window that it is taken from.

        A seam is crossed in the middle of the overlap: there both windows have seen as much as they can.
        """
        for number, window in enumerate(self.windows):
            begin = self._crossing(number - 1) if number else -1
            end = self._crossing(number) if number < len(self.seams) else None
            for camera in window.cameras:
                if camera.index >= begin and (end is None or camera.index < end):
                    yield number, camera

    def results(self) -> Iterator[FrameResult]:
        """Their results in the first window's world."""
        for number, camera in self.frames():
            yield moved(result_of(self.windows[number].folder, camera), self.transforms[number])

    def _crossing(self, seam: int) -> int:
        return (self.seams[seam].first + self.seams[seam].last + 1) // 2


def join(windows: Sequence[ResultFolder]) -> Joined:
    """Align each window to the one before.

    Raises:
        MisplacedError: two neighbours share no frame, or disagree about which is which.
        InputError: a shared frame without depth.
        OutputError: a damaged result.
    """
    transforms, seams = [Similarity(1.0, np.eye(3), np.zeros(3))], []
    for before, after in pairwise(windows):
        similarity, seam = _align(before, after, transforms[-1].scale)
        transforms.append(_composed(transforms[-1], similarity))
        seams.append(seam)
    return Joined(tuple(windows), tuple(transforms), tuple(seams))


def moved(result: FrameResult, transform: Similarity) -> FrameResult:
    """A result in another world of another unit."""
    pose = moved_pose(result.T_world_camera, transform)
    return replace(result, T_world_camera=pose, depth=result.depth * np.float32(transform.scale))


def moved_pose(T_world_camera: FloatArray, transform: Similarity) -> FloatArray:
    """A camera [4, 4] in another world of another unit."""
    T = np.eye(4)
    T[:3, :3] = transform.rotation @ T_world_camera[:3, :3]
    T[:3, 3] = transform.apply(T_world_camera[:3, 3])
    return T


def _composed(outer: Similarity, inner: Similarity) -> Similarity:
    return Similarity(
        outer.scale * inner.scale,
        outer.rotation @ inner.rotation,
        outer.apply(inner.translation),
    )


def _align(before: ResultFolder, after: ResultFolder, unit: float) -> tuple[Similarity, Seam]:
    """From the later window's world to the earlier one's; ``unit`` is the stitched result's for one of the earlier."""
    known = {camera.index: camera for camera in before.cameras}
    pairs = [(known[camera.index], camera) for camera in after.cameras if camera.index in known]
    if not pairs:
        raise MisplacedError(f"windows {before.folder.name} and {after.folder.name} share no frame")
    # No two frames of a video have one time.
    if any(abs(a.timestamp - b.timestamp) > SAME_TIME_SECONDS for a, b in pairs):
        raise MisplacedError(f"windows {before.folder.name} and {after.folder.name} count frames differently")

    def ratio(pair: tuple[Camera, Camera]) -> float:
        return _depth_ratio(result_of(before.folder, pair[0]), result_of(after.folder, pair[1]))

    with ThreadPoolExecutor(THREADS, "align") as pool:
        scales = np.array(list(pool.map(ratio, pairs)), np.float64)
    scale = float(np.median(scales))
    earlier = np.array([a.T_world_camera for a, _ in pairs])
    later = np.array([b.T_world_camera for _, b in pairs])
    rotation = _mean_rotation(earlier[:, :3, :3] @ np.swapaxes(later[:, :3, :3], 1, 2))
    translation = np.median(earlier[:, :3, 3] - scale * later[:, :3, 3] @ rotation.T, axis=0)
    similarity = Similarity(scale, rotation, translation)
    off = np.linalg.norm(similarity.apply(later[:, :3, 3]) - earlier[:, :3, 3], axis=1)
    error = float(np.sqrt(np.mean(off**2)))
    path = float(np.linalg.norm(np.diff(earlier[:, :3, 3], axis=0), axis=1).sum())
    turned = np.swapaxes(earlier[:, :3, :3], 1, 2) @ rotation @ later[:, :3, :3]
    return similarity, Seam(
        first=pairs[0][0].index,
        last=pairs[-1][0].index,
        frames=len(pairs),
        scale=scale,
        scale_spread=float(np.median(np.abs(scales - scale)) / scale),
        position_error=unit * error,
        position_error_of_path=error / path if path > 0 else None,
        rotation_error_deg=float(rotation_angle_deg(turned).mean()),
    )


def _depth_ratio(earlier: FrameResult, later: FrameResult) -> float:
    """Median ratio of two depth maps of one picture, over the pixels of which both are surer than of most."""
    valid = (earlier.depth > 0) & (later.depth > 0)
    sure = valid.copy()
    for result in (earlier, later):
        sure &= result.confidence >= np.median(result.confidence)
    chosen = sure if sure.any() else valid
    if not chosen.any():
        raise InputError(f"frame {earlier.index} has no depth to join two windows by")
    return float(np.median(earlier.depth[chosen] / later.depth[chosen]))


def _mean_rotation(rotations: NDArray[np.float64]) -> FloatArray:
    """The rotation nearest to all of [N, 3, 3] in the least-squares sense."""
    u, _, vt = np.linalg.svd(rotations.sum(axis=0))
    mean: FloatArray = (u * np.array([1.0, 1.0, np.linalg.det(u) * np.linalg.det(vt)])) @ vt
    return mean
