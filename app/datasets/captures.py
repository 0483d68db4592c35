"""Captures of phones whose poses are those of Apple's ARKit: Polycam, Record3D and ARKitScenes.

Polycam, raw export (README of github.com/PolyCam/polyform): matrices ``t_RC`` from the camera to the world, by row and
column; images are called by their microsecond. Cameras and images of ``corrected_`` are those after its optimization.
Record3D, unpacked ``.r3d`` or export of EXR and RGB (its author's answers at github.com/marek-simonik/record3d): poses
qx qy qz qw x y z from the camera to the world, a row for each numbered image; K by columns.
Both have ARKit's camera axes, which are OpenGL's. ARKitScenes (DATA.md and answers at github.com/apple/ARKitScenes):
lines of seconds, axis times angle and translation, from the world to a camera of axes right, down, forward.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import FloatArray, invert_pose
from stream_recon.app.datasets.recording import (
    PinholeCamera,
    Recording,
    common_calibration,
    common_camera,
    has_images,
    images_in,
)
from stream_recon.app.datasets.text import (
    OPENCV_FROM_OPENGL,
    errors_in,
    number_row,
    number_rows,
    pose_from_quaternion,
    read_json,
    rigid,
)
from stream_recon.app.datasets.trajectories import TimedPoses, matched_poses
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.named_values import Names
from stream_recon.configs.errors import ConfigError, InputError

TRAJECTORY = "lowres_wide.traj"
"""Poses of a capture of ARKitScenes."""
_HARMLESS = (
    "blur_score|timestamp|angular_velocity|center_depth|manual_keyframe|neighbors|"
    "dw|dh|fps|initPose|cameraType|poses|frameTimestamps"
)
"""Pattern of names in files of Polycam and Record3D that say nothing of the camera."""
Camera = Calibration | str
"""A camera, or why it cannot be used: the poses beside it can."""


def is_polycam(path: Path) -> bool:
    return any((path / "keyframes" / name).is_dir() for name in ("cameras", "corrected_cameras"))


def polycam_images(path: Path) -> tuple[Path, ...]:
    return images_in(path / "keyframes" / f"{_corrected(path)}images")


def _corrected(path: Path) -> str:
    parts = (path / "keyframes" / f"corrected_{part}" for part in ("images", "cameras"))
    return "corrected_" if all(map(Path.is_dir, parts)) else ""


def load_polycam(path: Path) -> Recording:
    images, poses, cameras = polycam_images(path), dict[int, FloatArray](), list[Camera]()
    for i, image in enumerate(images):
        file = path / "keyframes" / f"{_corrected(path)}cameras" / f"{image.stem}.json"
        if not file.is_file():  # told as an image without a pose
            continue
        with errors_in(file):
            names = Names(read_json(file))
            matrix = [[names.needed(f"t_{row}{column}") for column in range(4)] for row in range(3)]
            poses[i] = rigid(np.array(matrix), "t_00 to t_23") @ OPENCV_FROM_OPENGL
        cameras += _usable(file, _of_names, names)
    stems = [image.stem for image in images]
    times = np.array([float(stem) for stem in stems]) * 1e-6 if all(map(str.isdecimal, stems)) else None
    return _recording(path, images, times, poses, cameras)


def _of_names(names: Names) -> list[Calibration]:
    fx, fy, cx, cy, width, height = map(names.needed, ("fx", "fy", "cx", "cy", "width", "height"))
    names.end(_HARMLESS)
    return [Calibration(fx, fy, cx, cy, size=(int(width), int(height)))]


def is_record3d(path: Path) -> bool:
    return _metadata(path).is_file() and ((path / "rgbd").is_dir() or any(path.glob("depth/*.exr")))


def _metadata(path: Path) -> Path:
    return path / ("metadata" if (path / "rgbd").is_dir() else "metadata.json")


def record3d_images(path: Path) -> tuple[Path, ...]:
    return images_in(path / ("rgbd" if (path / "rgbd").is_dir() else "rgb"))


def load_record3d(path: Path) -> Recording:
    images, file = record3d_images(path), _metadata(path)
    with errors_in(file):
        names = Names(read_json(file))
        numbers = [int(image.stem) if image.stem.isdecimal() else -1 for image in images]
        if min(numbers) < 0:
            raise InputError(f"{images[numbers.index(-1)].name} is no number of a row of poses")
        rows = _rows(names, "poses", 7)
        if max(numbers) >= len(rows):
            raise InputError(f"{len(rows)} poses, and none for image {max(numbers)}")
        poses = {
            i: pose_from_quaternion(rows[n, 4:], rows[n, :4], f"poses, row {n}") @ OPENCV_FROM_OPENGL
            for i, n in enumerate(numbers)
        }
        times = _rows(names, "frameTimestamps", 1, len(rows))[numbers, 0] if "frameTimestamps" in names else None
    return _recording(path, images, times, poses, _usable(file, _of_matrix, names, len(rows)))


def _rows(names: Names, name: str, columns: int, count: int | None = None) -> FloatArray:
    """Numbers [N, columns] of a list, and of lists in it where they are several. Raises InputError."""
    table = dict(names.items()).get(name)
    lists = [row if isinstance(row, list) else [row] for row in table] if isinstance(table, list) else []
    if not lists or any(len(row) != columns for row in lists) or len(lists) != (count or len(lists)):
        raise InputError(f"{name} is no list of {columns} numbers for each {f'of {count} poses' if count else 'image'}")
    return np.array(names.numbers(name)).reshape(-1, columns)


def _of_matrix(names: Names, count: int) -> list[Calibration]:
    """The cameras of K and of each of so many images, which its focus changes a little."""
    size = int(names.needed("w")), int(names.needed("h"))
    K = names.numbers("K", shape=(1, 9)) or []
    if [*K[1:4], *K[5:6], *K[8:]] != [0, 0, 0, 0, 1]:
        raise InputError("K is not fx, 0, 0, 0, fy, 0, cx, cy, 1")
    focus = "perFrameIntrinsicCoeffs"
    rows = [[K[0], K[4], K[6], K[7]], *(_rows(names, focus, 4, count).tolist() if focus in names else ())]
    names.end(_HARMLESS)
    return [Calibration(fx, fy, cx, cy, size=size) for fx, fy, cx, cy in rows]


def is_arkitscenes(path: Path) -> bool:
    return (path / TRAJECTORY).is_file() and has_images(path / "lowres_wide")


def read_axis_angle(path: Path) -> TimedPoses:
    """Poses of a ``.traj`` of ARKitScenes. Raises InputError."""
    rows = number_rows(path, 7, exact=True)
    if not len(rows) or not np.isfinite(rows).all() or not (np.diff(rows[:, 0]) > 0).all():
        raise InputError(f"{path}: its times do not ascend, or a number is inf or nan")
    poses = np.tile(np.eye(4), (len(rows), 1, 1))
    poses[:, :3, :3], poses[:, :3, 3] = so3.exp(rows[:, 1:4]), rows[:, 4:]
    return TimedPoses(rows[:, 0], invert_pose(poses))


def load_arkitscenes(path: Path) -> Recording:
    """The images of ``lowres_wide``, called ``VIDEO_SECONDS.png``."""
    images = images_in(path / "lowres_wide")
    times = np.array([float(image.stem.rpartition("_")[2]) for image in images])
    poses, warnings = matched_poses(path / TRAJECTORY, times, read_axis_angle)
    cameras = list[Camera]()
    for file in sorted(path.glob("lowres_wide_intrinsics/*.pincam")):
        cameras += _usable(file, _of_row, number_row(file, 6).tolist())
    return _recording(path, images, times, poses, cameras, warnings)


def _of_row(row: list[float]) -> list[Calibration]:
    width, height, fx, fy, cx, cy = row
    return [Calibration(fx, fy, cx, cy, size=(int(width), int(height)))]


def _usable(file: Path, read: Callable[..., list[Calibration]], *content: Any) -> Sequence[Camera]:
    try:
        return read(*content)
    except (InputError, ConfigError, ValueError) as error:
        return [f"the camera in {file.name}: {error}"]


def _recording(
    path: Path,
    images: tuple[Path, ...],
    times: FloatArray | None,
    poses: dict[int, FloatArray],
    cameras: Sequence[Camera],
    warnings: Sequence[str] = (),
) -> Recording:
    if times is not None and not (np.diff(times) > 0).all():
        raise InputError(f"{path}: the times of its images do not ascend")
    calibration, unusable = common_calibration(list(dict.fromkeys(cameras)))
    camera = common_camera([PinholeCamera.of(camera) for camera in cameras])
    return Recording(images, times, poses, camera, calibration, unusable, warnings=tuple(warnings))
