"""Rigs of the cameras in a ROS recording: their poses by tf, or by the projection matrices of a stereo pair."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import FloatArray, invert_pose, is_rigid, rotation_angle_deg, rotation_matrix
from stream_recon.app.sources.mcap_file import alike
from stream_recon.app.sources.rig_files import RIGID, RigCamera
from stream_recon.app.sources.rosbag import (
    DAMAGE,
    RecordingReader,
    first_line,
    frame_of,
    is_rectified,
    numbers_of,
    open_recording,
    pictures,
)
from stream_recon.configs.errors import InputError

TRANSFORMS = ("tf2_msgs/msg/TFMessage", "tf/msg/tfMessage")
"""Message types of tf."""
STILL = 1e-6
"""Difference up to which two transforms are the same one."""
SAME_PLACE, SAME_TURN_DEG = 0.1, 5.0
"""Largest differences of tf, which may be that of a drawing, from a calibration: a share of the distance, a turn."""
Edges = dict[str, tuple[str, FloatArray, str]]
"""By frame of tf: its parent, its pose there, and why that is not one fixed pose, if so."""


def recorded_rig(path: Path, topics: str | None) -> list[RigCamera]:
    """Cameras of image topics, with poses in any axes. The projection matrices of a stereo pair come before tf: they
    are measured, and rectified images fit them.

    ``topics``: names with commas between; None: all topics of pictures, by name.

    Raises InputError: there are no two, one has no ``camera_info``, or their poses are not stated without doubt.
    """
    readers, edges = _read(path, topics)
    known = {*edges, *(parent for parent, *_ in edges.values())}
    stated = [(reader.frame_id, frame_of(reader.info)) for reader in readers.values()]
    frames = [next((frame for frame in both if frame in known), both[0] or both[1]) for both in stated]
    pair = _of_pair(readers)
    try:
        turns = [_turn(*each) if is_rectified(each[0]) else np.eye(4) for each in readers.items()]
        poses = _of_tf(frames, edges) @ invert_pose(np.array(turns))
    except InputError as error:
        if pair is None:
            raise InputError(f"{error}; and no projection matrices are those of a stereo pair") from error
        poses = pair
    if pair is not None:
        _compare(pair, poses, [*readers])
        poses = pair
    cameras = []
    for (name, reader), frame, T in zip(readers.items(), frames, poses, strict=True):
        assert reader.calibration is not None
        said = f"frame {frame} is no optical one by its name: its axes are taken as right, down, forward"
        notes = (*reader.calibration.notes, *([said] if pair is None and "optical" not in frame else []))
        cameras.append(RigCamera(name, replace(reader.calibration, notes=notes), T, name))
    return cameras


def _read(path: Path, topics: str | None) -> tuple[dict[str, RecordingReader], Edges]:
    """Topics of the cameras with what they state, and tf. Raises InputError."""
    bag, infos = open_recording(path)
    with closing(bag):
        names = topics.split(",") if topics else sorted(pictures(infos))
        if len({*names}) < max(2, len(names)):
            raise InputError(f"a rig has two or more image topics, and {path.name} has {', '.join(names) or 'none'}")
        try:
            edges = _edges(bag)
        except DAMAGE as error:
            raise InputError(f"tf of {path.name} cannot be read: {first_line(error)}") from error
    readers = dict[str, RecordingReader]()
    for name in names:
        readers[name] = RecordingReader(path, name)
        readers[name].close()
        if readers[name].calibration is None:
            raise InputError(f"{name} has no camera_info that can be used")
    return readers, edges


def _of_pair(readers: Mapping[str, RecordingReader]) -> FloatArray | None:
    """Poses [2, 4, 4] by the projection matrices; None: these are not of two cameras of one rectified image plane."""
    P = [numbers_of(reader.info, "p") for reader in readers.values()]
    if [len(each) for each in P] != [12, 12]:
        return None
    first, second = np.reshape(P, (2, 3, 4))
    if not np.allclose(first[:, :3], second[:, :3], rtol=1e-3) or first[:, 3].any() == second[:, 3].any():
        return None
    T = np.tile(np.eye(4), (2, 1, 1))
    T[:, :3, 3] = [-np.linalg.solve(each[:, :3], each[:, 3]) for each in (first, second)]
    return T @ [np.eye(4) if is_rectified(each[0]) else _turn(*each) for each in readers.items()]


def _compare(pair: FloatArray, by_tf: FloatArray, names: Sequence[str]) -> None:
    """Raises InputError: a pair's poses are others by tf."""
    one, other = (invert_pose(T[0]) @ T[1] for T in (pair, by_tf))
    apart, turn = np.linalg.norm(one[:3, 3] - other[:3, 3]), rotation_angle_deg(one[:3, :3].T @ other[:3, :3])
    if apart > SAME_PLACE * np.linalg.norm(one[:3, 3]) or turn > SAME_TURN_DEG:
        at = f"{one[:3, 3].round(4).tolist()} m by the projection matrix, {other[:3, 3].round(4).tolist()} m by tf"
        raise InputError(f"{names[1]} is from {names[0]} at {at}, {turn:.1f} degrees apart: give a file of the rig")


def _turn(name: str, reader: RecordingReader) -> FloatArray:
    """Rectified axes from those of the camera [4, 4], by the ``camera_info``. Raises InputError."""
    T, R = np.eye(4), numbers_of(reader.info, "r")
    if any(R):
        T[:3, :3] = np.reshape(R, (3, 3))
    if not is_rigid(T, RIGID):
        raise InputError(f"the rectification R of {name} is no rotation")
    return T


def _edges(bag: Any) -> Edges:
    """The transforms of tf, static and other ones. May raise `DAMAGE`."""
    edges: Edges = {}
    connections = [c for c in bag.connections if alike(str(c.msgtype)) in TRANSFORMS]
    for connection, _, data in bag.messages(connections) if connections else ():
        for each in bag.deserialize(data, connection.msgtype).transforms:
            parent, frame, T = frame_of(each), str(each.child_frame_id).strip("/"), np.eye(4)
            at, q = each.transform.translation, each.transform.rotation
            xyzw, T[:3, 3] = np.array([q.x, q.y, q.z, q.w]), (at.x, at.y, at.z)
            is_pose = abs(np.linalg.norm(xyzw) - 1) < RIGID and np.isfinite(T).all()
            T[:3, :3] = rotation_matrix(xyzw) if is_pose else 0
            before, T_before, fault = edges.get(frame, (parent, T, "" if is_pose else "is no rigid transform"))
            if parent != before:
                fault = f"is one of two: its parent is {parent}, too"
            elif not np.abs(T - T_before).max() <= STILL:
                fault = fault or "moves"
            edges[frame] = before, T_before, fault
    return edges


def _of_tf(frames: Sequence[str], edges: Edges) -> FloatArray:
    """Poses [N, 4, 4] of frames in the nearest one that is above all of them. Raises InputError."""
    if len({*frames}) < len(frames):
        raise InputError(f"the frames of the topics are {', '.join(frames)}: each camera has its own")
    lines = [[frame] for frame in frames]
    for line in lines:
        while line[-1] in edges:
            line.append(edges[line[-1]][0])
            if line[-1] in line[:-1]:
                raise InputError(f"tf has a loop: {', '.join(line)}")
    common = next((frame for frame in lines[0] if all(frame in line for line in lines)), None)
    if common is None:
        listed = "; ".join(" below ".join([line[0] or "no frame", *line[1:]]) for line in lines)
        raise InputError(f"tf does not join the cameras: it has {listed}")
    poses = np.tile(np.eye(4), (len(frames), 1, 1))
    for number, line in enumerate(lines):
        for frame in line[: line.index(common)]:
            parent, T, fault = edges[frame]
            if fault:
                raise InputError(f"the transform of tf from {parent} to {frame} {fault}")
            poses[number] = T @ poses[number]
    return poses
