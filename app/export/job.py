"""What every export is given, and what it tells.

Which frames of a result an export is made of.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.view import PinholeView, Up, shared_view
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.depth import depth_path, read_depth
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.tracks import SparseTracks, read_tracks
from stream_recon.configs.errors import ConfigError, InputError

FAR = 2
"""Usual distances between the refinement's keyframes, beyond which the network's fill a gap."""


def select(cameras: Sequence[Camera], frames: str, refined: NDArray[np.integer] | None = None) -> list[Camera]:
    """The frames that ``frames`` names: ``keyframes``, ``all``, or a number N for every N-th.

    ``refined``: indices of the frames, ascending, that a refinement was fitted to. These are then the keyframes, with
    the network's where there are none of them about.

    Raises:
        ConfigError: it is none of these.
        InputError: there are no frames yet.
    """
    if frames == "keyframes":
        chosen = _keyframes(cameras, np.empty(0, np.int64) if refined is None else refined) or list(cameras)
    elif frames == "all":
        chosen = list(cameras)
    elif frames.isascii() and frames.isdecimal() and int(frames) > 0:
        chosen = list(cameras[:: int(frames)])
    else:
        raise ConfigError(f"--frames {frames}: use keyframes, all, or a number N for every N-th frame")
    if not chosen:
        raise InputError("the result has no frames yet: there is nothing to export")
    return chosen


def _keyframes(cameras: Sequence[Camera], refined: NDArray[np.integer]) -> list[Camera]:
    if len(refined) < 2:
        return [camera for camera in cameras if camera.is_keyframe]
    fitted, far = set(refined.tolist()), FAR * float(np.median(np.diff(refined)))
    index = np.array([camera.index for camera in cameras])
    after = np.searchsorted(refined, index).clip(1, len(refined) - 1)
    away = np.minimum(np.abs(refined[after] - index), np.abs(refined[after - 1] - index))
    return [
        camera
        for camera, distance in zip(cameras, away, strict=True)
        if camera.index in fitted or (camera.is_keyframe and distance > far)
    ]


@dataclass(frozen=True)
class ExportOptions:
    """As given on the command line; what a format has no use for it does not look at."""

    frames: str | None = None
    """``keyframes``, ``all`` or a number N for every N-th; None: as the format has it."""
    max_side: int | None = None
    """Of images; None: the source's size."""
    points: int = 1_000_000
    faces: int = 500_000
    up: Up = "auto"
    """Of files whose format says which way is up: found, or the first camera's."""
    dense: int | None = None
    """Points from depth maps; None: none where points with tracks are there, else `DENSE_POINTS` of colmap."""


@dataclass(frozen=True)
class ExportJob:
    """One export of one result as it is now; a run may go on writing to it."""

    result: ResultFolder
    options: ExportOptions = field(default_factory=ExportOptions)
    progress: Callable[[int, int], None] = lambda done, total: None
    """Told how many frames are done, of how many; may raise KeyboardInterrupt."""

    def cameras(self, default: str) -> list[Camera]:
        """The chosen frames. Raises ConfigError or InputError; see `select`."""
        refined = None if self.tracks is None else np.unique(self.tracks.frame)
        return select(self.result.cameras, self.options.frames or default, refined)

    @cached_property
    def tracks(self) -> SparseTracks | None:
        """What a refinement triangulated. Raises OutputError where its file is damaged."""
        return read_tracks(self.result.folder)

    @cached_property
    def view(self) -> PinholeView:
        """The one camera of all frames, at the source's size. Raises StreamReconError."""
        cameras = self.result.cameras
        size = cameras[0].source_size if cameras else None
        if size is None:
            first = select(cameras, "all")[0]
            size = read_depth(depth_path(self.result.folder, first.index)).transform.source_size
        return shared_view(cameras, self.tracks, size)


@dataclass
class ExportReport:
    """What came of an export, for its README.txt and for the user."""

    summary: str
    """One line: what was written."""
    notes: list[str] = field(default_factory=list)
    """Lines on what the files hold, with units, for README.txt."""
    warnings: list[str] = field(default_factory=list)
