"""Known poses of a camera: tables of trajectories, COLMAP models, transforms.json, and the poses of data sets."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.core.input_file import input_errors
from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.datasets import captures, colmap, nerfstudio
from stream_recon.app.datasets.catalogue import READERS
from stream_recon.app.datasets.trajectories import in_seconds, read_trajectory
from stream_recon.app.sources.rosbag import is_recording
from stream_recon.configs.errors import InputError

READ = "a trajectory of TUM's or EuRoC's columns, a COLMAP model, transforms.json, or a data set's or capture's folder"
MAX_GAP = 5.0
"""Largest time between two poses that is interpolated, in medians: beyond it the tracking was lost."""


@dataclass(frozen=True)
class KnownPoses:
    """Camera-to-world poses, axes right, down, forward, by times or names of images."""

    poses: FloatArray  # [N, 4, 4]
    times: FloatArray | None = None  # [N] seconds of any clock, ascending
    names: tuple[str, ...] = ()
    """Of the images, with folders; empty: they are not known."""
    metric: bool = True
    """Whether lengths are metres; else in an arbitrary scale, as from structure from motion."""

    def of_images(self, images: Sequence[Path]) -> dict[int, FloatArray]:
        """Poses by position in ``images``, by their names without the suffix."""
        # Each camera may have a folder of its own with the same names.
        depth = 1 if len({_key(name, 1) for name in self.names}) == len(self.names) else 2
        row = {_key(name, depth): number for number, name in enumerate(self.names)}
        keys = [_key(image.as_posix(), depth) for image in images]
        return {i: self.poses[row[key]] for i, key in enumerate(keys) if key in row}

    def at(self, times: FloatArray) -> dict[int, FloatArray]:
        """Interpolated poses by position in ``times`` [M]; none outside of the poses' times, or in gaps of them."""
        assert self.times is not None
        known, found = self.times, dict[int, FloatArray]()
        gap = MAX_GAP * float(np.median(np.diff(known))) + 1e-9 if len(known) > 1 else 0.0
        for i, time in enumerate(times.tolist()):
            right = min(max(int(np.searchsorted(known, time)), 1), len(known) - 1)
            step = float(known[right] - known[right - 1])
            share = (time - known[right - 1]) / step if step > 0 else 0.0
            if step > gap or not -1e-6 <= share * step <= step + 1e-6:
                continue
            first, second = self.poses[right - 1], self.poses[right]
            pose = first + share * (second - first)
            pose[:3, :3] = first[:3, :3] @ so3.exp(share * so3.log(first[:3, :3].T @ second[:3, :3]))
            found[i] = pose
        return found


def _key(name: str, depth: int) -> tuple[str, ...]:
    *folders, last = name.replace("\\", "/").casefold().split("/")
    return (*folders, last.rpartition(".")[0] or last)[-depth:]


def times_in_names(images: Sequence[Path]) -> FloatArray | None:
    """Seconds [N] that images are called by, as those of TUM, EuRoC and ARKitScenes; None where the names are none."""
    stems = [image.stem for image in images]
    of_film = [match[1] for stem in stems if (match := re.fullmatch(r"[0-9]+_([0-9]+\.[0-9]+)", stem))]  # ARKitScenes
    if stems and len(of_film) == len(stems):
        return np.array(of_film, np.float64)
    if not stems or not all(len(stem) > 9 and stem.replace(".", "", 1).isdecimal() for stem in stems):
        return None
    return in_seconds(np.array(stems, np.float64))


def read_known_poses(path: Path) -> KnownPoses:
    """Poses of a file or folder. Raises InputError: it cannot be read, or is none of `READ`."""
    with input_errors(path):
        if (path / captures.TRAJECTORY).is_file():  # its poses are of other times than the images
            path /= captures.TRAJECTORY
        is_folder, is_bag = path.is_dir(), is_recording(path)
    if path.suffix.lower() in (".r3d", ".zip"):
        raise InputError(f"{path} is an archive (ZIP): unpack it, and give its folder")
    if is_bag:
        raise InputError(f"{path}: poses of {path.suffix or 'recordings'} are not read: use {READ}")
    known = _of_folder(path) if is_folder else _of_file(path)
    if not len(known.poses):
        raise InputError(f"{path} has no poses")
    return known


def _of_folder(path: Path) -> KnownPoses:
    with input_errors(path):
        models = [path] if colmap.is_model(path) else colmap.find_models(path)
        reader = next((each for each in READERS if each.loader is not None and each.recognise(path)), None)
    if models and (reader is None or reader.name in ("colmap", "images")):
        posed = max((colmap.read_images(model) for model in models), key=len)
        poses = np.array([invert_pose(image.T_camera_world) for image in posed]).reshape(-1, 4, 4)
        return KnownPoses(poses, names=tuple(image.name for image in posed), metric=False)
    if reader is None:
        raise InputError(f"{path} has no poses that can be read: use {READ}")
    recording = reader.load(path)
    rows = sorted(recording.poses)
    poses = np.array([recording.poses[row] for row in rows], np.float64).reshape(-1, 4, 4)
    times = None if recording.timestamps is None else recording.timestamps[rows]
    return KnownPoses(poses, times, tuple(recording.images[row].as_posix() for row in rows), recording.metric)


def _of_file(path: Path) -> KnownPoses:
    if path.suffix.lower() == ".json":
        named, metric = nerfstudio.named_poses(path)
        return KnownPoses(np.array([*named.values()]), names=tuple(named), metric=metric)
    timed = captures.read_axis_angle(path) if path.suffix.lower() == ".traj" else read_trajectory(path)
    return KnownPoses(timed.poses, timed.times)
