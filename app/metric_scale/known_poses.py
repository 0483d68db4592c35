"""Poses that the user knows already: how they are given, whose frames they belong to, and whether they fit.

A file's axes are found by trial: of all turns of the camera's axes, a mirrored world and inverted poses, those count
under which it agrees with the reconstruction. Any but the program's own are refused by their name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations, product
from pathlib import Path

import numpy as np

from stream_recon.app.core.transforms import FloatArray, align_poses, invert_pose, mean_rotation, rotation_angle_deg
from stream_recon.app.datasets.known_poses import KnownPoses, read_known_poses, times_in_names
from stream_recon.app.export.source_images import image_files
from stream_recon.app.metric_scale.clock_offset import TimedPath
from stream_recon.app.metric_scale.gps_alignment import clock_shift
from stream_recon.app.metric_scale.gps_tracks import cartesian_positions
from stream_recon.app.metric_scale.scale_source import GpsTrack, PosesChoice
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.configs.errors import InputError

MAX_MISFIT = 0.35
"""Largest misfit of known poses, see `_misfit`: networks that drift, and tracking that drifts, stay below it."""
OTHER_AXES = 0.33
"""Misfit in other axes, as a share of that in the program's, below which a file has those."""
SAME_AXES = 0.03
"""Misfit up to which no other axes are thought of: those of a phone's poses."""
MIN_POSES = 4
"""Fewest frames with a known pose."""


def why_no_unit(choice: PosesChoice) -> str | None:
    """Why a result gets no metres by known poses; None: it does, also where the user takes any lengths for metres."""
    if choice.use == "scale" or read_known_poses(choice.path).metric:
        return None
    return f"{choice.path} has no unit; --poses scale: takes its lengths for metres"


@dataclass(frozen=True)
class FittingPoses:
    """Known poses of a result's frames, which fit its own ones."""

    choice: PosesChoice
    poses: dict[int, FloatArray]
    """By the frame's number, in the file's world."""
    metric: bool
    how: str
    """One line for the user and the record."""

    @property
    def track(self) -> GpsTrack:
        """The poses as a source of scale, by frames."""
        frames = np.array([*self.poses], np.float64)
        positions = cartesian_positions(np.array([T[:3, 3] for T in self.poses.values()]), None, frames)
        return GpsTrack(positions, rotations={frame: T[:3, :3] for frame, T in self.poses.items()})

    def to_json(self) -> dict[str, str]:
        """The object ``poses`` of ``run.json``."""
        state = "given" if self.choice.use == "fixed" else "given, and corrected by the refinement"
        return {"from": self.choice.text, "use": self.choice.use, "state": state, "how": self.how}

    def placed(self, cameras: Sequence[FrameCamera]) -> tuple[list[int], FloatArray]:
        """Positions [M] among ``cameras`` and poses [M, 4, 4] in their world and unit, which may drift."""
        rows = [row for row, camera in enumerate(cameras) if camera.index in self.poses]
        known = np.array([self.poses[cameras[row].index] for row in rows])
        own = np.array([cameras[row].T_world_camera for row in rows])
        # Lengths over a part of the path: over all of it, a path that bends is too short.
        apart = max(len(rows) // 10, 1)
        away, own_away = (np.linalg.norm(T[apart:, :3, 3] - T[:-apart, :3, 3], axis=1) for T in (known, own))
        scale = float(own_away.sum() / max(float(away.sum()), 1e-12))
        return rows, align_poses(known, own, scale).move_pose(known)


def fit_known_poses(result: ResultFolder, choice: PosesChoice) -> FittingPoses:
    """The known poses of a result's frames.

    Raises InputError: they cannot be read, belong to no frames, or do not fit, with what was found.
    """
    given, cameras = f"--poses {choice.text}", result.cameras
    known = read_known_poses(choice.path)
    found, note = _associated(result, known, choice, given)
    if len(found) < MIN_POSES:
        raise InputError(f"{given}: only {len(found)} of {len(cameras)} frames have a pose in it")
    poses = {cameras[row].index: pose for row, pose in found.items()}
    segments = [cameras[row].segment for row in found]
    longest = max(set(segments), key=segments.count)
    rows = [row for row in sorted(found) if cameras[row].segment == longest]
    own = np.array([cameras[row].T_world_camera for row in rows])
    check_fit(own, np.array([found[row] for row in rows]), given)
    return FittingPoses(choice, poses, known.metric, f"{len(found)} of {len(cameras)} frames have a known pose{note}")


def _associated(
    result: ResultFolder, known: KnownPoses, choice: PosesChoice, given: str
) -> tuple[dict[int, FloatArray], str]:
    """Poses by position among the result's frames, by names or else by times, and a note on how."""
    files, cameras = image_files(result) or [], result.cameras
    images = [files[camera.index] for camera in cameras] if len(files) > max(c.index for c in cameras) else []
    if known.names and images and choice.begins is None:
        found = known.of_images(images)
        if found:
            return found, " by its image's name"
        if known.times is None:
            raise InputError(f"{given}: none of its images, such as {known.names[0]}, is one of the source's")
    if known.times is None:
        raise InputError(f"{given}: its poses are of images by name, such as {known.names[0]}, and the source has none")
    return _by_times(cameras, images, known, TimedPath(known.times, known.poses[:, :3, 3]), choice.begins, given)


def _by_times(
    cameras: Sequence[FrameCamera],
    images: Sequence[Path],
    known: KnownPoses,
    track: TimedPath,
    begins: float | None,
    given: str,
) -> tuple[dict[int, FloatArray], str]:
    times, stamps = np.array([camera.timestamp for camera in cameras]), times_in_names(images)
    if stamps is not None and stamps[0] <= track.times[-1] and track.times[0] <= stamps[-1]:
        times = stamps
    order = np.argsort(times, kind="stable")
    own = TimedPath(times[order], np.array([camera.T_world_camera[:3, 3] for camera in cameras])[order])
    shift, note = clock_shift(own, track, begins, given)
    return known.at(times + shift), note


@dataclass(frozen=True)
class _Axes:
    """Another convention of poses than the program's."""

    turn: FloatArray  # [3, 3], from the file's camera axes to right, down, forward
    inverted: bool = False
    mirrored: bool = False

    def converted(self, poses: FloatArray) -> FloatArray:
        """Poses [N, 4, 4] of a file in this convention, as the program's."""
        T = invert_pose(poses) if self.inverted else poses.copy()
        if self.mirrored:
            M = np.diag([1.0, -1.0, 1.0, 1.0])
            T = M @ T @ M
        T[:, :3, :3] = T[:, :3, :3] @ self.turn
        return T

    def __str__(self) -> str:
        found = ["it is mirrored: its world is left-handed, as Unity's and Unreal's"] if self.mirrored else []
        if self.inverted:
            found.append("its poses look inverted: world to camera in place of camera to world")
        for name, turn in (
            ("OpenGL's (right, up, backward)", np.diag([1.0, -1.0, -1.0])),
            ("those of a robot's body (forward, left, up)", np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]])),
        ):
            if np.array_equal(self.turn, turn) and not self.mirrored:
                return "; ".join([*found, f"its camera axes look like {name}"])
        if not np.array_equal(self.turn, np.eye(3)) and not self.mirrored:
            angle = float(rotation_angle_deg(self.turn))
            found.append(f"its camera axes are turned by {angle:.0f} degrees against right, down, forward")
        return "; ".join(found)


def _all_axes() -> list[_Axes]:
    """All conventions, the program's own first."""
    signed = [
        np.diag(signs) @ np.eye(3)[list(order)]
        for order in permutations(range(3))
        for signs in product((1, -1), repeat=3)
    ]
    turns = sorted((turn for turn in signed if np.linalg.det(turn) > 0), key=lambda turn: float(-np.trace(turn)))
    return [_Axes(turn, *kind) for kind in product((False, True), repeat=2) for turn in turns]


def _misfit(own: FloatArray, known: FloatArray) -> float:
    """Median rotation in rad plus median distance as a share of the path's extent, after alignment of poses."""
    rotation = mean_rotation(known[:, :3, :3] @ np.swapaxes(own[:, :3, :3], 1, 2))
    source, target = own[:, :3, 3] @ rotation.T, known[:, :3, 3]
    source, target = source - np.median(source, axis=0), target - np.median(target, axis=0)
    square = float(np.square(source).sum())
    scale = float((source * target).sum()) / square if square > 0 else 0.0
    extent = float(np.sqrt(np.square(target).sum(axis=1).mean()))
    if not (scale > 0 and extent > 0):
        return float("inf")
    turn = np.radians(rotation_angle_deg(np.swapaxes(rotation @ own[:, :3, :3], 1, 2) @ known[:, :3, :3]))
    return float(np.median(turn) + np.median(np.linalg.norm(scale * source - target, axis=1)) / extent)


def check_fit(own: FloatArray, known: FloatArray, given: str) -> None:
    """Raises InputError where known poses do not fit the reconstruction's own ones [N, 4, 4]."""
    if not np.ptp(known[:, :3, 3], axis=0).any() or not np.ptp(own[:, :3, 3], axis=0).any():
        raise InputError(f"{given}: the camera or its poses do not move, so that they cannot be compared")
    misfit = _misfit(own, known)
    best, found = min(((_misfit(own, axes.converted(known)), axes) for axes in _all_axes()), key=lambda each: each[0])
    # A level walk in its mirror image looks nearly the same.
    is_other = best < OTHER_AXES * misfit and misfit > SAME_AXES
    if is_other and best <= MAX_MISFIT:
        raise InputError(f"{given}: {found}; convert it to camera to world, with camera axes right, down, forward")
    if misfit <= MAX_MISFIT:
        return
    raise InputError(
        f"{given}: it does not fit the camera's path: rotations and positions differ by {misfit:.2g} of its extent, in "
        "any axes: check that it is of this source, and its times"
    )
