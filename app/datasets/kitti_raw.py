"""Reader of KITTI raw drives (Geiger et al., IJRR 2013): image_02 (else image_00) with times, oxts, calibration above.

Positions of oxts become metres by the Mercator projection of the KITTI development kit; poses are of the camera.
"""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.datasets.recording import PinholeCamera, Recording, has_images, images_in, in_time_order
from stream_recon.app.datasets.rgbd import centred
from stream_recon.app.datasets.text import content_lines, number_rows, numbers, rigid
from stream_recon.app.sources.calibration import Calibration
from stream_recon.configs.errors import InputError

CAMERAS = ("image_02", "image_00")
EARTH_RADIUS = 6_378_137.0
"""Radius in metres of the development kit's projection."""
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
    calibration_file = _find(path, CAMERA_FILE)
    entries = {} if calibration_file is None else _entries(calibration_file)
    camera, calibration, T_camera_rectified = _cameras(
        entries, name.removeprefix("image_"), rectified=_is_rectified(path)
    )
    poses = _poses(path, T_camera_rectified, entries) if entries else {}
    return Recording(
        images=timed.images,
        timestamps=timed.times,
        poses={i: poses[rows[k]] for i, k in enumerate(timed.positions) if rows[k] in poses},
        camera=camera,
        calibration=calibration,
        warnings=timed.warnings,
    )


def _camera(path: Path) -> str:
    return next((name for name in CAMERAS if has_images(path / name / "data")), CAMERAS[0])


def _is_rectified(path: Path) -> bool:
    return not path.resolve().name.endswith("_extract")


def _find(path: Path, name: str) -> Path | None:
    """A calibration file of the day, which stands above the drive."""
    folders = (path, path.resolve().parent, path.resolve().parent.parent)
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _seconds(text: str, where: str) -> float:
    """Seconds since 1970 of a date with nanoseconds."""
    seconds, _, fraction = text.partition(".")
    try:
        moment = datetime.strptime(seconds.strip(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp() + float(f"0.{fraction.strip() or 0}")
    except ValueError as error:
        raise InputError(f"{where} must be a date and time ({error})") from error


def _entries(file: Path) -> dict[str, FloatArray]:
    """Numbers by name of a calibration file; entries of words are left out."""
    entries = {}
    for number, line in content_lines(file):
        name, _, values = line.partition(":")
        if name.strip() != "calib_time" and values.strip():
            entries[name.strip()] = np.array(numbers(values, f"{file} line {number}", 1))
    return entries


def _cameras(
    entries: dict[str, FloatArray], number: str, *, rectified: bool
) -> tuple[PinholeCamera | None, Calibration | None, FloatArray]:
    """Pinhole camera, camera with distortion, and the pose of the camera in the rectified reference camera."""
    P, K, D = (entries.get(f"{kind}_{number}") for kind in ("P_rect", "K", "D"))
    S = entries.get(f"{'S_rect' if rectified else 'S'}_{number}")
    size = None if S is None or len(S) != 2 else (int(S[0]), int(S[1]))
    T = np.eye(4)
    if P is not None and len(P) == 12:
        P = P.reshape(3, 4)
        T[:3, 3] = np.linalg.solve(P[:, :3], P[:, 3])
    if rectified:
        if P is None or P.shape != (3, 4):
            return None, None, T
        return PinholeCamera(centred(P[0, 0], P[1, 1], P[0, 2], P[1, 2]), size), None, T
    if K is None or len(K) != 9 or D is None:
        return None, None, T
    pinhole = centred(K[0], K[4], K[2], K[5])
    distorted = Calibration(pinhole.fx, pinhole.fy, pinhole.cx, pinhole.cy, "perspective", tuple(map(float, D)), size)
    return PinholeCamera(pinhole, size), distorted, T


def _transform(entries: dict[str, FloatArray], where: str) -> FloatArray:
    if len(entries.get("R", ())) != 9 or len(entries.get("T", ())) != 3:
        raise InputError(f"{where} must have R with 9 numbers and T with 3")
    return rigid(np.column_stack([entries["R"].reshape(3, 3), entries["T"]]), where)


def _poses(path: Path, T_camera_rectified: FloatArray, entries: dict[str, FloatArray]) -> dict[int, FloatArray]:
    """Camera poses by frame number, from oxts; none where it or a calibration is missing."""
    velo, imu = _find(path, VELO_FILE), _find(path, IMU_FILE)
    files = sorted((path / "oxts" / "data").glob("*.txt")) if (path / "oxts" / "data").is_dir() else []
    files = [file for file in files if file.stem.isdecimal()]
    if not files or velo is None or imu is None:
        return {}
    rectify = np.eye(4)
    if len(entries.get("R_rect_00", ())) == 9:
        rectify[:3, :3] = entries["R_rect_00"].reshape(3, 3)
    T_camera_imu = (
        T_camera_rectified @ rectify @ _transform(_entries(velo), str(velo)) @ _transform(_entries(imu), str(imu))
    )
    T_imu_camera = np.linalg.inv(T_camera_imu)
    values = {int(file.stem): number_rows(file, 6)[0] for file in files}
    scale = float(np.cos(np.radians(values[min(values)][0])))
    first = _imu_pose(values[min(values)], scale)
    origin = np.eye(4)
    origin[:3, 3] = -first[:3, 3]
    return {
        number: rigid(origin @ _imu_pose(row, scale) @ T_imu_camera, f"pose {number} of {path / 'oxts'}")
        for number, row in values.items()
    }


def _imu_pose(row: FloatArray, scale: float) -> FloatArray:
    latitude, longitude, altitude, roll, pitch, yaw = row[:6]
    T = np.eye(4)
    cr, sr, cp, sp, cy, sy = (f(a) for a in (roll, pitch, yaw) for f in (np.cos, np.sin))
    T[:3, :3] = (
        np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
        @ np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
        @ np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    )
    east = scale * EARTH_RADIUS * np.radians(longitude)
    north = scale * EARTH_RADIUS * np.log(np.tan(np.radians(90 + latitude) / 2))
    T[:3, 3] = east, north, altitude
    return T
