"""A long video in overlapping windows, each a unit of its own.

Windows of one video, each in a world of its own, brought into the first one's.

Two neighbours share the frames of their overlap. The scale between them is the median over these frames of
`geometry.depth_ratio`: the same picture, so no matching is needed. For the rest see `transforms.align_poses`.
"""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from stream_recon.app.batch.jobs import ChunkRange, Job, windows_folder
from stream_recon.app.core.depth_points import depth_ratio, transform_result
from stream_recon.app.core.transforms import Similarity, align_poses, rotation_angle_deg
from stream_recon.app.core.types import FrameResult
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.folder import ResultFolder, result_of
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

MIN_OVERLAP = 12
MAX_OVERLAP = 48
OVERLAP_SHARE = 4
"""The overlap is this part of a window's own frames, within the bounds above."""
MIN_WINDOW = 2 * MIN_OVERLAP
"""A video too short for windows with so many frames of their own gets fewer windows."""


def open_unit(unit: Job, *, resumed: bool = False) -> Source:
    """The frames of a unit. Raises InputError. ``resumed``: `Source.resume` follows and passes over those before."""
    window, limit = unit.window, unit.choice.max_frames
    if window is None:
        return unit.scene.open(unit.choice.stride, limit)
    last = window.last if window.last is not None else limit
    source = unit.scene.open(unit.choice.stride, None if last is None else last - window.first)
    if not resumed:
        source.skip(window.first, read_through=unit.read_through)
    return source


def has_frames(unit: Job) -> bool:
    """Whether a unit has a frame that can be read at all."""
    try:
        with open_unit(unit) as source:
            return next(source, None) is not None
    except InputError:
        return False


def plan_windows(frames: int, count: int) -> list[ChunkRange]:
    """At most ``count`` windows over ``frames`` frames; each but the first begins with the end of the one before.

    The last one has no end, since containers err about their length.
    """
    count = max(1, min(count, frames // MIN_WINDOW))
    overlap = min(max(frames // (OVERLAP_SHARE * count), MIN_OVERLAP), MAX_OVERLAP)
    # All windows have the same number of frames, so that no worker waits for another.
    starts = [number * (frames - overlap) // count for number in range(count)]
    ends = [start + overlap for start in starts[1:]]
    return [ChunkRange(first, last) for first, last in zip(starts, [*ends, None], strict=True)]


def window_units(unit: Job, count: int) -> list[Job]:
    """The windows of a scene as units, in order; a single one if it is too short to be split.

    Raises:
        InputError: nothing says how long the scene is.
    """
    if unit.frames is None:
        raise InputError(f"{unit.scene.path} does not say how many frames it has: it cannot be split")
    return [
        dataclasses.replace(
            unit,
            name=f"{windows_folder(unit.name)}/{number}",
            window=window,
            key={**unit.key, "window": dataclasses.asdict(window)},
        )
        for number, window in enumerate(plan_windows(unit.frames, count))
    ]


THREADS = 8
SAME_TIME_SECONDS = 1e-4


class MisplacedError(InputError):
    """Frames that two windows count the same are not the same: one was entered at the wrong place."""


@dataclass(frozen=True)
class OverlapAlignment:
    """How two neighbouring windows fit. Lengths are in the unit of the stitched result."""

    first: int
    """Index in the source of the overlap's first frame."""
    last: int
    frames: int
    scale: float
    """Scale of the later window against the one before."""
    scale_spread: float
    """Median deviation of the frames' own scales from it, as a share of it."""
    position_error: float
    """RMSE between the positions of the shared frames, after alignment."""
    position_error_of_path: float | None
    """The same as a share of the path's length through the overlap; None where the camera stands still."""
    rotation_error_deg: float
    """Mean angle between the orientations of the shared frames, after alignment."""


@dataclass(frozen=True)
class AlignedChunks:
    """All windows in one world."""

    windows: tuple[ResultFolder, ...]
    transforms: tuple[Similarity, ...]
    """The way from each window's world to the first one's."""
    seams: tuple[OverlapAlignment, ...]

    def with_next(self, window: ResultFolder) -> "AlignedChunks":
        """With one more window, aligned to the last one.

        Raises:
            MisplacedError: they share no frame, or disagree about which is which.
            InputError: a shared frame without depth.
            OutputError: a damaged result.
        """
        if not self.windows:
            return AlignedChunks((window,), (Similarity.identity(),), ())
        similarity, seam = _align(self.windows[-1], window, self.transforms[-1].scale)
        return AlignedChunks(
            (*self.windows, window), (*self.transforms, self.transforms[-1] @ similarity), (*self.seams, seam)
        )

    def frames_of(self, number: int) -> Iterator[Camera]:
        """The frames that are taken from a window, in order; of the last one all to its end.

        A seam is crossed in the middle of the overlap: there both windows have seen as much as they can.
        """
        begin = self._crossing(number - 1) if number else -1
        end = self._crossing(number) if number < len(self.seams) else None
        for camera in self.windows[number].cameras:
            if camera.index >= begin and (end is None or camera.index < end):
                yield camera

    def results_of(self, number: int) -> Iterator[FrameResult]:
        """Their results in the first window's world."""
        for camera in self.frames_of(number):
            yield transform_result(result_of(self.windows[number].folder, camera), self.transforms[number])

    def _crossing(self, seam: int) -> int:
        return (self.seams[seam].first + self.seams[seam].last + 1) // 2


NOTHING_JOINED = AlignedChunks((), (), ())


def _align(before: ResultFolder, after: ResultFolder, unit: float) -> tuple[Similarity, OverlapAlignment]:
    """From the later window's world to the earlier one's; ``unit`` is the stitched result's for one of the earlier."""
    known = {camera.index: camera for camera in before.cameras}
    pairs = [(known[camera.index], camera) for camera in after.cameras if camera.index in known]
    if not pairs:
        raise MisplacedError(f"windows {before.folder.name} and {after.folder.name} share no frame")
    # No two frames of a video have one time.
    if any(abs(a.timestamp - b.timestamp) > SAME_TIME_SECONDS for a, b in pairs):
        raise MisplacedError(f"windows {before.folder.name} and {after.folder.name} count frames differently")

    def ratio(pair: tuple[Camera, Camera]) -> float:
        found = depth_ratio(result_of(before.folder, pair[0]), result_of(after.folder, pair[1]))
        if found is None:
            raise InputError(f"frame {pair[0].index} has no depth to join two windows by")
        return found

    with ThreadPoolExecutor(THREADS, "align") as pool:
        scales = np.array(list(pool.map(ratio, pairs)), np.float64)
    scale = float(np.median(scales))
    earlier = np.array([a.T_world_camera for a, _ in pairs])
    later = np.array([b.T_world_camera for _, b in pairs])
    similarity = align_poses(later, earlier, scale)
    off = np.linalg.norm(similarity.apply(later[:, :3, 3]) - earlier[:, :3, 3], axis=1)
    error = float(np.sqrt(np.mean(off**2)))
    path = float(np.linalg.norm(np.diff(earlier[:, :3, 3], axis=0), axis=1).sum())
    turned = np.swapaxes(earlier[:, :3, :3], 1, 2) @ similarity.rotation @ later[:, :3, :3]
    return similarity, OverlapAlignment(
        first=pairs[0][0].index,
        last=pairs[-1][0].index,
        frames=len(pairs),
        scale=scale,
        scale_spread=float(np.median(np.abs(scales - scale)) / scale),
        position_error=unit * error,
        position_error_of_path=error / path if path > 0 else None,
        rotation_error_deg=float(rotation_angle_deg(turned).mean()),
    )
