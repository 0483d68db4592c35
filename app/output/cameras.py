"""Camera poses on disk: ``cameras.json`` and ``trajectory.txt``, valid after every frame.

``trajectory.txt`` is in the format of the TUM RGB-D benchmark: timestamp tx ty tz qx qy qz qw, camera-to-world.
``cameras.json`` has one line for each frame within ``frames``.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.output.files import GrowingFile, replace_file
from stream_recon.app.results import FrameResult, Intrinsics
from stream_recon.app.transforms import quaternion_xyzw
from stream_recon.configs.errors import OutputError

CAMERAS_NAME = "cameras.json"
TRAJECTORY_NAME = "trajectory.txt"

_HEAD = b'{"format": 1,\n"frames": [\n'
_TAIL = b"\n]}\n"
_TRAJECTORY_HEAD = b"# timestamp tx ty tz qx qy qz qw\n"


@dataclass(frozen=True)
class Camera:
    """One frame's line in ``cameras.json``."""

    index: int
    timestamp: float
    T_world_camera: NDArray[np.float64]  # [4, 4], as last known
    T_world_camera_first: NDArray[np.float64]  # [4, 4], as first given out
    intrinsics: Intrinsics
    """In pixels of the source image."""
    is_keyframe: bool
    flow: float | None

    @classmethod
    def of(cls, result: FrameResult) -> "Camera":
        pose = np.asarray(result.T_world_camera, np.float64)
        flow = None if result.flow is None else float(result.flow)
        return cls(result.index, float(result.timestamp), pose, pose, result.intrinsics, bool(result.is_keyframe), flow)

    def to_json(self) -> str:
        """One line of JSON."""
        k = self.intrinsics
        record = {
            "index": self.index,
            "timestamp": self.timestamp,
            "T_world_camera": self.T_world_camera.tolist(),
            "T_world_camera_first": self.T_world_camera_first.tolist(),
            "fx": k.fx,
            "fy": k.fy,
            "cx": k.cx,
            "cy": k.cy,
            "keyframe": self.is_keyframe,
            "flow": self.flow,
        }
        return json.dumps(record, allow_nan=False)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Camera":
        """Raises KeyError, TypeError or ValueError where a field is missing or of another kind."""
        last, first = (np.array(record[key], np.float64) for key in ("T_world_camera", "T_world_camera_first"))
        if last.shape != (4, 4) or first.shape != (4, 4):
            raise ValueError("a pose is not 4x4")
        return cls(
            index=int(record["index"]),
            timestamp=float(record["timestamp"]),
            T_world_camera=last,
            T_world_camera_first=first,
            intrinsics=Intrinsics(*(float(record[key]) for key in ("fx", "fy", "cx", "cy"))),
            is_keyframe=bool(record["keyframe"]),
            flow=record["flow"],
        )

    def to_tum(self) -> str:
        """One line of a TUM trajectory."""
        x, y, z = self.T_world_camera[:3, 3]
        qx, qy, qz, qw = quaternion_xyzw(self.T_world_camera[:3, :3])
        return f"{self.timestamp:.6f} {x:.9g} {y:.9g} {z:.9g} {qx:.9g} {qy:.9g} {qz:.9g} {qw:.9g}\n"


class CameraFiles:
    """Both files while they grow."""

    def __init__(self, folder: Path) -> None:
        """Begin both files anew. Raises OutputError."""
        self._folder = folder
        self._count = 0
        self._cameras = GrowingFile(folder / CAMERAS_NAME, _HEAD, _TAIL)
        self._trajectory = GrowingFile(folder / TRAJECTORY_NAME, _TRAJECTORY_HEAD)

    def append(self, camera: Camera) -> None:
        """Add the next frame to both files. Raises OutputError."""
        self._cameras.append((b",\n" if self._count else b"") + camera.to_json().encode())
        self._count += 1
        self._trajectory.append(camera.to_tum().encode())

    def rewrite(self, revised: Mapping[int, NDArray[np.float64]]) -> None:
        """Write both files again with the last known poses ``revised`` of some frames. Raises OutputError."""
        cameras = self._folder / CAMERAS_NAME

        def revised_cameras() -> Iterator[Camera]:
            for camera in iterate_cameras(cameras):
                pose = revised.get(camera.index, camera.T_world_camera)
                yield Camera(**{**vars(camera), "T_world_camera": np.asarray(pose, np.float64)})

        def write_trajectory(file: BinaryIO) -> None:
            file.write(_TRAJECTORY_HEAD)
            for camera in revised_cameras():
                file.write(camera.to_tum().encode())

        def write_cameras(file: BinaryIO) -> None:
            file.write(_HEAD)
            for number, camera in enumerate(revised_cameras()):
                file.write((b",\n" if number else b"") + camera.to_json().encode())
            file.write(_TAIL)

        self.close()
        replace_file(self._folder / TRAJECTORY_NAME, write_trajectory)
        replace_file(cameras, write_cameras)

    def close(self) -> None:
        self._cameras.close()
        self._trajectory.close()


def iterate_cameras(path: Path) -> Iterator[Camera]:
    """The frames of a ``cameras.json`` one by one, in memory that does not grow with their number.

    Raises:
        OutputError: not a file written here, or damaged.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(_HEAD)) != _HEAD:
                raise OutputError(f"{path} is not a cameras.json of stream-recon")
            for line in file:
                if line.startswith(b"{"):
                    yield Camera.from_json(json.loads(line.rstrip().rstrip(b",")))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise OutputError(f"{path} is missing or damaged: {error}") from error
