"""Reader of KITTI raw drives (Geiger et al., IJRR 2013): image_02 (else image_00) with times, oxts, calibration above.

Positions of oxts become metres by the Mercator projection of the KITTI development kit; poses are of the camera.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.datasets.recording import PinholeCamera, Recording, has_images, images_in, in_time_order
from stream_recon.app.datasets.rgbd import centred
from stream_recon.app.datasets.text import content_lines, named_numbers, number_row, rigid
from stream_recon.app.sources.calibration import Calibration
from stream_recon.configs.errors import InputError

CAMERAS = ("image_02", "image_00")
EARTH_RADIUS = 6_378_137.0
"""Radius in metres of the development kit's projection."""
OXTS = 30
"""Numbers of a row: latitude, longitude, altitude, roll, pitch, yaw, and others that are not used."""
CAMERA_FILE, VELO_FILE, IMU_FILE = "calib_cam_to_cam.txt", "calib_velo_to_cam.txt", "calib_imu_to_velo.txt"


def is_kitti_raw(path: Path) -> bool:
    return any((path / name / "timestamps.txt").is_file() and has_images(path / name / "data") for name in CAMERAS)


def kitti_raw_images(path: Path) -> tuple[Path, ...]:
    return images_in(path / _camera(path) / "data")


def load_kitti_raw(path: Path) -> Recording:
    """A drive. Images of ``_sync`` drives are rectified; those of others have the distortion of the calibration."""
    name = _camera(path)
    images = images_in(path / name / "data")
    table = path / name / "timestamps.txt"
    times = np.array([_seconds(line, f"{table} line {number}") for number, line in content_lines(table)])
    rows = [int(image.stem) if image.stem.isdecimal() else -1 for image in images]
    if min(rows) < 0 or max(rows) >= len(times):
        raise InputError(f"{table} has {len(times)} lines, and there is an image {images[int(np.argmax(rows))].name}")
    timed = in_time_order(images, times[rows], table)
    camera, calibration, poses, missing = None, None, dict[int, FloatArray](), [f"there is no {CAMERA_FILE}"]
    if (file := _find(path, CAMERA_FILE)) is not None:
        number, rectified = name.removeprefix("image_"), not path.resolve().name.endswith("_extract")
        camera, calibration, T_camera_first = _cameras(file, number, rectified=rectified)
        poses, missing = _poses(path, T_camera_first)
    return Recording(
        images=timed.images,
        timestamps=timed.times,
        poses={i: poses[rows[k]] for i, k in enumerate(timed.positions) if rows[k] in poses},
        camera=camera,
        calibration=calibration,
        warnings=(*timed.warnings, *missing),
    )


def _camera(path: Path) -> str:
    return next((name for name in CAMERAS if has_images(path / name / "data")), CAMERAS[0])


def _find(path: Path, name: str) -> Path | None:
    """A calibration file of the day, which stands above the drive."""
    return next((each / name for each in (path, *path.resolve().parents[:2]) if (each / name).is_file()), None)


def _seconds(text: str, where: str) -> float:
    """Seconds since 1970 of a date with nanoseconds."""
    seconds, _, fraction = text.partition(".")
    try:
        moment = datetime.strptime(seconds.strip(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp() + float(f"0.{fraction.strip() or 0}")
    except ValueError as error:
        raise InputError(f"{where} must be a date and time ({error})") from error


def _cameras(file: Path, number: str, *, rectified: bool) -> tuple[PinholeCamera, Calibration | None, FloatArray]:
    """Pinhole camera, camera with distortion, and the transform of points of the first camera as it was mounted to this
    one in the rectified axes."""
    size_name, K, D, P = f"S{'_rect' * rectified}_{number}", f"K_{number}", f"D_{number}", f"P_rect_{number}"
    needed = {size_name: 2, P: 12, "R_rect_00": 9} | ({} if rectified else {K: 9, D: 5})
    entries = named_numbers(file, needed, r"[SKDRT](_rect)?_\d\d|P_rect_\d\d|calib_time|corner_dist")
    projection, T, rectify = entries[P].reshape(3, 4), np.eye(4), np.eye(4)
    T[:3, 3] = np.linalg.solve(projection[:, :3], projection[:, 3])
    rectify[:3, :3] = entries["R_rect_00"].reshape(3, 3)
    size = (int(entries[size_name][0]), int(entries[size_name][1]))
    K_used = projection if rectified else entries[K].reshape(3, 3)
    k = centred(K_used[0, 0], K_used[1, 1], K_used[0, 2], K_used[1, 2])
    if rectified:
        return PinholeCamera(k, size), None, T @ rectify
    distorted = Calibration(k.fx, k.fy, k.cx, k.cy, "perspective", tuple(map(float, entries[D])), size)
    return PinholeCamera(k, size), distorted, T @ rectify


def _transform(file: Path) -> FloatArray:
    entries = named_numbers(file, {"R": 9, "T": 3}, "calib_time|delta_[fc]")
    return rigid(np.column_stack([entries["R"].reshape(3, 3), entries["T"]]), str(file))


def _poses(path: Path, T_camera_first: FloatArray) -> tuple[dict[int, FloatArray], list[str]]:
    """Camera poses by frame number, from oxts, and a warning where a calibration for them is missing."""
    files = [file for file in sorted((path / "oxts" / "data").glob("*.txt")) if file.stem.isdecimal()]
    velo, imu = _find(path, VELO_FILE), _find(path, IMU_FILE)
    if not files:
        return {}, []
    if velo is None or imu is None:
        return {}, [f"oxts gives no poses without {VELO_FILE if velo is None else IMU_FILE}"]
    T_imu_camera = np.linalg.inv(T_camera_first @ _transform(velo) @ _transform(imu))
    values = {int(file.stem): number_row(file, OXTS) for file in files}
    scale = float(np.cos(np.radians(values[min(values)][0])))
    first = _imu_pose(values[min(values)], scale)
    origin = np.eye(4)
    origin[:3, 3] = -first[:3, 3]
    return {
        number: rigid(origin @ _imu_pose(row, scale) @ T_imu_camera, f"pose {number} of {path / 'oxts'}")
        for number, row in values.items()
    }, []


def _imu_pose(row: FloatArray, scale: float) -> FloatArray:
    latitude, longitude, altitude, roll, pitch, yaw = row[:6]
    T = np.eye(4)
    about_x, about_y, about_z = so3.exp(np.diag([roll, pitch, yaw]))
    T[:3, :3] = about_z @ about_y @ about_x
    east = scale * EARTH_RADIUS * np.radians(longitude)
    north = scale * EARTH_RADIUS * np.log(np.tan(np.radians(90 + latitude) / 2))
    T[:3, 3] = east, north, altitude
    return T
