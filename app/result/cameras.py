"""Camera poses on disk: ``cameras.json`` and ``trajectory.txt``, valid after every frame.

``trajectory.txt`` is in the format of the TUM RGB-D benchmark: timestamp tx ty tz qx qy qz qw, camera-to-world.
``cameras.json`` begins with its ``format`` and its number of ``revisions``, and has one line per frame in ``frames``.
``README.md`` in this folder lists the keys. ``depth_field`` has the rows of a log-scale grid, see
`stream_recon.app.core.depth_correction`.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import Field, validated_field
from stream_recon.app.core.input_file import open_regular, parse_json
from stream_recon.app.core.per_frame_arrays import SortedFrameNumbers
from stream_recon.app.core.rig import view_of
from stream_recon.app.core.transforms import Similarity, is_rigid, quaternion_xyzw
from stream_recon.app.core.types import FrameResult, FrameRevision, Intrinsics, NetworkEstimate, Revision
from stream_recon.app.result.commit import FolderChange
from stream_recon.app.result.files import GrowingFile
from stream_recon.configs.errors import ConfigError, InputError, OutputError

MAX_KEYFRAME_GAP = 2
"""Longest gap between the refinement's keyframes, in median gaps: in longer ones the network's keyframes are used."""
CAMERAS_NAME = "cameras.json"
TRAJECTORY_NAME = "trajectory.txt"

FORMAT = 3
MAX_LINE_BYTES = 1 << 20
"""Bytes of a line that are read: one has some kilobytes, and a sparse file is one endless line."""
MAX_LENGTH, MIN_SCALE = 1e6, math.ulp(0.0)
"""Bounds of coordinates and depth scales that are read: above, voxel numbers overflow."""
_INTRINSICS = ("fx", "fy", "cx", "cy")
_TAIL = b"\n]}\n"
_TRAJECTORY_HEAD = b"# timestamp tx ty tz qx qy qz qw\n"


@dataclass(frozen=True)
class FrameCamera:
    """One frame's line in ``cameras.json``."""

    index: int
    timestamp: float
    T_world_camera: NDArray[np.float64]  # [4, 4], final
    T_world_camera_causal: NDArray[np.float64]  # [4, 4], before any revision
    intrinsics: Intrinsics
    """Final, in pixels of the source image."""
    intrinsics_causal: Intrinsics
    """Before any revision."""
    is_keyframe: bool
    flow: float | None
    source_size: tuple[int, int]
    """Width and height of the source image."""
    depth_scale: float = 1.0
    """Final factor of the depth in the frame's file."""
    segment: int = 0
    depth_scale_causal: float = 1.0
    """Factor before any revision: 1, except where chunks of different scales were joined."""
    health: float | None = None
    """See `FrameResult`; of the causal result."""
    network: NetworkEstimate | None = None
    """The network's estimate; None where it is the causal result."""
    depth_field: Field | None = None
    """Final correction of the depth in addition to ``depth_scale``; a causal result has none."""

    @property
    def as_causal(self) -> "FrameCamera":
        """The camera before any revision."""
        return replace(
            self,
            T_world_camera=self.T_world_camera_causal,
            intrinsics=self.intrinsics_causal,
            depth_scale=self.depth_scale_causal,
            depth_field=None,
        )

    @property
    def as_network(self) -> "FrameCamera":
        """The camera by the network's estimate; its depth scale applies to the depth file."""
        network = self.network
        if network is None:
            return self.as_causal
        return replace(
            self,
            T_world_camera=network.T_world_camera,
            intrinsics=network.intrinsics,
            depth_scale=network.depth_scale * self.depth_scale_causal,
            depth_field=None,
        )

    @property
    def map_scale(self) -> float:
        """Length in the final map per length in the network's world."""
        return self.depth_scale / self.as_network.depth_scale

    def moved(self, change: Similarity) -> "FrameCamera":
        """The camera with its final pose and depth in another world and unit; the causal pose stays."""
        pose = change.move_pose(self.T_world_camera)
        return replace(self, T_world_camera=pose, depth_scale=self.depth_scale * change.scale)

    @classmethod
    def from_result(cls, result: FrameResult) -> "FrameCamera":
        """The camera of a causal result."""
        pose = np.asarray(result.T_world_camera, np.float64)
        return cls(
            index=result.index, timestamp=float(result.timestamp), T_world_camera=pose, T_world_camera_causal=pose,
            intrinsics=result.intrinsics, intrinsics_causal=result.intrinsics, is_keyframe=bool(result.is_keyframe),
            flow=None if result.flow is None else float(result.flow), source_size=result.transform.source_size,
            segment=result.segment, health=result.health, network=result.network,
        )  # fmt: skip

    def revised(self, frame: FrameRevision) -> "FrameCamera":
        """The camera after a revision."""
        return replace(
            self,
            T_world_camera=np.asarray(frame.T_world_camera, np.float64),
            depth_scale=float(frame.depth_scale),
            intrinsics=self.intrinsics if frame.intrinsics is None else frame.intrinsics,
            depth_field=frame.depth_field,
        )

    def to_json(self) -> str:
        """One line of JSON."""
        width, height = self.source_size
        record: dict[str, Any] = {
            "index": self.index,
            "timestamp": self.timestamp,
            "T_world_camera": self.T_world_camera.tolist(),
            "T_world_camera_causal": self.T_world_camera_causal.tolist(),
            **_named(self.intrinsics),
            "width": width,
            "height": height,
            "depth_scale": self.depth_scale,
            "keyframe": self.is_keyframe,
            "flow": self.flow,
        }
        if self.intrinsics_causal != self.intrinsics:
            record["intrinsics_causal"] = _named(self.intrinsics_causal)
        if self.depth_scale_causal != 1:
            record["depth_scale_causal"] = self.depth_scale_causal
        if self.segment:
            record["segment"] = self.segment
        if self.health is not None:
            record["health"] = self.health
        if self.network is not None:
            record["network"] = {
                "T_world_camera": self.network.T_world_camera.tolist(),
                **_named(self.network.intrinsics),
                "depth_scale": self.network.depth_scale,
            }
        if self.depth_field is not None:
            # Five digits restore the same half-precision value.
            nodes = self.depth_field.astype(np.float64).tolist()
            record["depth_field"] = [[float(f"{value:.5g}") for value in row] for row in nodes]
        return json.dumps(record, allow_nan=False)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "FrameCamera":
        """The camera in a line.

        Raises KeyError, TypeError, ValueError or OverflowError where a field is missing, has another type or a value
        that no run writes, such as nan.
        """
        final, causal = _poses(record["T_world_camera"], record["T_world_camera_causal"])
        intrinsics = _intrinsics(record)
        causal_intrinsics, flow, health = record.get("intrinsics_causal"), record["flow"], record.get("health")
        return cls(
            index=int(_within(record["index"], 0, 2**53 - 1, "frame's number")),
            timestamp=_within(record["timestamp"], -math.inf, math.inf, "time"),
            T_world_camera=final,
            T_world_camera_causal=causal,
            intrinsics=intrinsics,
            intrinsics_causal=intrinsics if causal_intrinsics is None else _intrinsics(causal_intrinsics),
            is_keyframe=bool(record["keyframe"]),
            flow=None if flow is None else _within(flow, -math.inf, math.inf, "flow"),
            source_size=(int(record["width"]), int(record["height"])),
            depth_scale=_within(record["depth_scale"], MIN_SCALE, MAX_LENGTH, "depth scale"),
            segment=int(record.get("segment", 0)),
            depth_scale_causal=_within(record.get("depth_scale_causal", 1.0), MIN_SCALE, MAX_LENGTH, "depth scale"),
            health=None if health is None else _within(health, 0, 1, "health"),
            network=_network(record["network"]) if "network" in record else None,
            depth_field=validated_field(record["depth_field"]) if "depth_field" in record else None,
        )

    def to_tum(self) -> str:
        """One line of a TUM trajectory."""
        return tum_line(self.timestamp, self.T_world_camera)


def tum_line(timestamp: float, T_world_camera: NDArray[np.float64]) -> str:
    """A pose [4, 4] as one line of a TUM trajectory."""
    x, y, z = T_world_camera[:3, 3]
    qx, qy, qz, qw = quaternion_xyzw(T_world_camera[:3, :3])
    return f"{timestamp:.6f} {x:.9g} {y:.9g} {z:.9g} {qx:.9g} {qy:.9g} {qz:.9g} {qw:.9g}\n"


def _within(value: object, low: float, high: float, name: str) -> float:
    """A finite number between bounds. Raises TypeError, ValueError."""
    number = float(value)  # type: ignore[arg-type]
    if not (low <= number <= high and math.isfinite(number)):
        raise ValueError(f"a {name} is out of range")
    return number


def _poses(*values: object) -> NDArray[np.float64]:
    """Rigid matrices [N, 4, 4] not far from the origin. Raises ValueError, TypeError."""
    T = np.array(values, np.float64)
    if T.shape != (len(values), 4, 4) or not is_rigid(T):
        raise ValueError("a pose is not a rigid 4x4 matrix")
    if np.abs(T[:, :3, 3]).max() > MAX_LENGTH:
        raise ValueError("a camera is too far from the origin")
    return T


def _network(record: Mapping[str, Any]) -> NetworkEstimate:
    (T,) = _poses(record["T_world_camera"])
    return NetworkEstimate(T, _intrinsics(record), _within(record["depth_scale"], MIN_SCALE, MAX_LENGTH, "depth scale"))


def _named(k: Intrinsics) -> dict[str, Any]:
    named: dict[str, Any] = {name: float(getattr(k, name)) for name in _INTRINSICS}
    if not k.camera_model.is_straight:
        named["distortion"] = {"fisheye": k.fisheye, "k1": k.k1, "k2": k.k2}
    return named


def _intrinsics(record: Mapping[str, Any]) -> Intrinsics:
    bent = record.get("distortion", {})
    k = Intrinsics(
        *(float(record[name]) for name in _INTRINSICS),
        k1=float(bent.get("k1", 0.0)),
        k2=float(bent.get("k2", 0.0)),
        fisheye=bool(bent.get("fisheye", False)),
    )
    if not np.isfinite([k.fx, k.fy, k.cx, k.cy, k.k1, k.k2]).all() or min(k.fx, k.fy) <= 0:
        raise ValueError("intrinsics are not finite or not positive")
    return k


class CameraFiles:
    """``cameras.json`` and ``trajectory.txt`` of a run in progress."""

    def __init__(self, folder: Path, known: Sequence[FrameCamera] = (), revisions: int = 0) -> None:
        """Write both files with the frames ``known``. Raises OutputError; each old file then stays."""
        self._indices = SortedFrameNumbers()
        for camera in known:
            self._indices.append(camera.index)
        lines = (_line(row, camera) for row, camera in enumerate(known))
        self._cameras = GrowingFile.replacing(folder / CAMERAS_NAME, _head(revisions), lines, _TAIL)
        self._trajectory = GrowingFile.replacing(
            folder / TRAJECTORY_NAME, _TRAJECTORY_HEAD, (camera.to_tum().encode() for camera in of_bodies(known))
        )

    def append(self, camera: FrameCamera) -> None:
        """Add the next frame to both files. Raises OutputError."""
        self._cameras.append(_line(len(self._indices), camera))
        self._indices.append(camera.index)
        for body in of_bodies([camera]):
            self._trajectory.append(body.to_tum().encode())

    def revise(self, frames: Mapping[int, FrameRevision], revisions: int) -> None:
        """Apply revisions of frames, by index: first to ``cameras.json``, then to the trajectory, each in one step.

        ``revisions``: the number applied so far, these included. Raises OutputError; the file then stays as it was.
        """
        rows = ((self._indices.position(index), new) for index, new in frames.items())
        cameras = {row: self._camera(row).revised(new) for row, new in rows}
        self._cameras.rewrite(_head(revisions), {row: _line(row, camera) for row, camera in cameras.items()})
        # The frames of view 0 come first, so that rows of both files are the same.
        lines = {row: camera.to_tum().encode() for row, camera in cameras.items() if not view_of(camera.index)}
        self._trajectory.rewrite(_TRAJECTORY_HEAD, lines)

    def close(self) -> None:
        self._cameras.close()
        self._trajectory.close()

    def _camera(self, row: int) -> FrameCamera:
        return FrameCamera.from_json(json.loads(self._cameras.entry(row).lstrip(b",\n")))


def change_cameras(change: FolderChange, cameras: Sequence[FrameCamera], revisions: int) -> None:
    """Replace both files of a finished result as part of a change. Raises OutputError."""
    lines = [_line(row, camera) for row, camera in enumerate(cameras)]
    change.replace(CAMERAS_NAME, lambda file: file.writelines([_head(revisions), *lines, _TAIL]))
    trajectory = [camera.to_tum().encode() for camera in of_bodies(cameras)]
    change.replace(TRAJECTORY_NAME, lambda file: file.writelines([_TRAJECTORY_HEAD, *trajectory]))


def of_bodies(cameras: Iterable[FrameCamera]) -> Iterator[FrameCamera]:
    """One camera a frame: of a rig that of view 0, whose pose is the body's."""
    return (camera for camera in cameras if not view_of(camera.index))


def revision_since_causal(cameras: Iterable[FrameCamera], scale: float = 1.0) -> Revision:
    """The revision from causal poses, with depth multiplied by ``scale`` already, to the final ones."""
    scales = ((c, c.depth_scale / c.depth_scale_causal / scale) for c in cameras)
    return Revision(tuple(FrameRevision(c.index, c.T_world_camera, s, c.intrinsics, c.depth_field) for c, s in scales))


def _head(revisions: int) -> bytes:
    return f'{{"format": {FORMAT}, "revisions": {revisions},\n"frames": [\n'.encode()


def _line(row: int, camera: FrameCamera) -> bytes:
    return (b",\n" if row else b"") + camera.to_json().encode()


def iterate_cameras(path: Path) -> Iterator[FrameCamera]:
    """The frames of a ``cameras.json``, read one at a time in constant memory.

    Raises OutputError where it is missing, damaged, of another program, or of a later version of this one.
    """
    try:
        with open_regular(path) as file:
            _check_format(path, file.readline(MAX_LINE_BYTES), file.readline(MAX_LINE_BYTES))
            previous = -1
            while line := file.readline(MAX_LINE_BYTES):
                if line.startswith(b"{"):
                    camera = FrameCamera.from_json(parse_json(line.rstrip().rstrip(b",")))
                    if camera.index <= previous:
                        raise ValueError("its frames are not in order")
                    previous = camera.index
                    yield camera
                elif len(line) == MAX_LINE_BYTES:
                    raise ValueError("a line is too long")
    except (OSError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error


def _check_format(path: Path, first: bytes, second: bytes) -> None:
    """Raises OutputError unless the first two lines are those of a ``cameras.json`` of this format."""
    try:
        version = parse_json(first.rstrip().rstrip(b",") + b"}")["format"]
    except (ValueError, KeyError, TypeError):
        version = None
    if not isinstance(version, int) or second.rstrip() != b'"frames": [':
        raise OutputError(f"{path} is not a cameras.json of stream-recon")
    if version < FORMAT:
        raise OutputError(f"{path} is of version 0.1 of stream-recon, which is no longer read: reconstruct it again")
    if version > FORMAT:
        raise OutputError(f"{path} is of format {version}: this version of stream-recon reads up to {FORMAT}")


def listed_frames(path: Path) -> Iterator[int]:
    """Indices of the frames in a ``cameras.json`` of any version, as far as it is readable."""
    with suppress(OSError, KeyError, TypeError, ValueError, OverflowError), open_regular(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            if line.startswith(b'{"index"'):
                yield int(_within(parse_json(line.rstrip().rstrip(b","))["index"], 0, 2**53 - 1, "frame's number"))


def select_cameras(
    cameras: Sequence[FrameCamera], frames: str, refined: NDArray[np.integer] | None = None
) -> list[FrameCamera]:
    """Frames chosen by ``keyframes``, ``all``, or a number N for every N-th.

    ``refined``: ascending indices of the refinement's keyframes, if any. They are then the keyframes, with the
    network's in gaps. Raises ConfigError: ``frames`` is none of these; InputError: there are no frames yet.
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


def _keyframes(cameras: Sequence[FrameCamera], refined: NDArray[np.integer]) -> list[FrameCamera]:
    if len(refined) < 2:
        return [camera for camera in cameras if camera.is_keyframe]
    keyframes, max_distance = set(refined.tolist()), MAX_KEYFRAME_GAP * float(np.median(np.diff(refined)))
    index = np.array([camera.index for camera in cameras])
    after = np.searchsorted(refined, index).clip(1, len(refined) - 1)
    nearest = np.minimum(np.abs(refined[after] - index), np.abs(refined[after - 1] - index))
    return [
        camera
        for camera, distance in zip(cameras, nearest, strict=True)
        if camera.index in keyframes or (camera.is_keyframe and distance > max_distance)
    ]
