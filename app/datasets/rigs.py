"""Readers of data sets from vehicles and sensor rigs, whose true poses are of another sensor than the camera.

KITTI odometry (Geiger et al., CVPR 2012), KITTI raw (Geiger et al., IJRR 2013), EuRoC (Burri et al., IJRR 2016).
"""

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.datasets.recording import (
    PinholeCamera,
    Recording,
    TimedImages,
    frame_numbers,
    has_images,
    image_size,
    images_in,
    in_time_order,
)
from stream_recon.app.datasets.rgbd import centred
from stream_recon.app.datasets.tables import TIMES
from stream_recon.app.datasets.text import (
    content_lines,
    errors_in,
    listed_file,
    named_numbers,
    number_rows,
    read_pose_lines,
    read_text,
)
from stream_recon.app.datasets.trajectories import matched_poses, read_euroc_trajectory
from stream_recon.app.sources.calibration import Calibration, same_aspect
from stream_recon.app.sources.camera_files import kalibr_camera
from stream_recon.app.sources.camera_models import UnsupportedError
from stream_recon.app.sources.named_values import Names, parse_trees
from stream_recon.app.sources.rig_files import body_pose
from stream_recon.configs.errors import ConfigError, InputError

KITTI_FPS = 10.0
"""Frame rate without times.txt, that of the recordings."""
NANOSECONDS = 1e-9
DRIVE_CAMERAS = ("image_02", "image_00")
DRIVE_CAMERA_FILE = "calib_cam_to_cam.txt"


def is_kitti(path: Path) -> bool:
    """Whether a folder is a sequence of KITTI odometry, or a drive of KITTI raw."""
    tables = any((path / name).is_file() for name in ("calib.txt", "times.txt"))
    return _is_drive(path) or (tables and any(has_images(path / name) for name in ("image_2", "image_0")))


def is_euroc(path: Path) -> bool:
    return (_euroc_base(path) / "cam0" / "data.csv").is_file()


def kitti_images(path: Path) -> tuple[Path, ...]:
    return images_in(path / _drive_camera(path) / "data" if _is_drive(path) else path / _kitti_camera(path))


def count_euroc(path: Path) -> int:
    return len(content_lines(_euroc_base(path) / "cam0" / "data.csv"))


def load_kitti(path: Path) -> Recording:
    """KITTI: sequences/NN with image_2 (else image_0), times.txt, calib.txt; poses/NN.txt of the left grey camera. Of
    drives of KITTI raw the navigation unit's poses (oxts) are not read: KITTI odometry has the true ones."""
    if _is_drive(path):
        return _load_drive(path)
    folder = _kitti_camera(path)
    images = images_in(path / folder)
    frames = frame_numbers(images)
    timed, warnings = _kitti_times(path / "times.txt", images, frames)
    poses, camera, T_grey_camera = _kitti_poses(path), None, np.eye(4)
    if (path / "calib.txt").is_file():
        name = folder.replace("image_", "P")
        P = named_numbers(path / "calib.txt", {name: 12}, r"P\d|Tr\w*|R\w*")[name].reshape(3, 4)
        camera = PinholeCamera(centred(float(P[0, 0]), float(P[1, 1]), float(P[0, 2]), float(P[1, 2])))
        # P = K [I | t] projects points of the grey camera's frame; -t is the colour camera's position in it.
        T_grey_camera[:3, 3] = -np.linalg.solve(P[:, :3], P[:, 3])
    if poses and max(frames) > max(poses):
        warnings += (f"the poses end at frame {max(poses)}: frames up to {max(frames)} have no true pose",)
    numbered = {i: frames[position] for i, position in enumerate(timed.positions)}
    return Recording(
        images=timed.images,
        timestamps=timed.times,
        poses={i: poses[number] @ T_grey_camera for i, number in numbered.items() if number in poses},
        camera=camera,
        warnings=warnings,
    )


def load_euroc(path: Path) -> Recording:
    """EuRoC: mav0/cam0 (data.csv, data/, sensor.yaml); true poses are of the body, and T_BS leads to the camera."""
    base = _euroc_base(path)
    table = base / "cam0" / "data.csv"
    timed = _euroc_images(table)
    truth, T_tracked_body, warnings = _euroc_truth(base)
    sensor = table.with_name("sensor.yaml")
    camera: Calibration | str | None = None
    T_body_camera: FloatArray = np.eye(4)
    if sensor.is_file():
        names = _sensor(sensor)
        T_body_camera, camera = _extrinsics(names, sensor), _euroc_camera(names, timed.images)
    elif truth is not None:
        raise InputError(f"{sensor} is missing: its T_BS is needed for camera poses from body poses")
    poses, unmatched = matched_poses(truth, timed.times, read_euroc_trajectory)
    return Recording(
        images=timed.images,
        timestamps=timed.times,
        poses={i: pose @ T_tracked_body @ T_body_camera for i, pose in poses.items()},
        camera=PinholeCamera.of(camera),
        calibration=camera if isinstance(camera, Calibration) else None,
        unusable=camera if isinstance(camera, str) else None,
        warnings=(*timed.warnings, *warnings, *unmatched),
    )


def _kitti_camera(path: Path) -> str:
    return "image_2" if has_images(path / "image_2") else "image_0"


def _kitti_times(table: Path, images: tuple[Path, ...], frames: list[int]) -> tuple[TimedImages, tuple[str, ...]]:
    """Images with the timestamp in the line of times.txt of their number, and warnings."""
    if not table.is_file():
        return in_time_order(images, np.array(frames) / KITTI_FPS, table.parent), ()
    times = number_rows(table, 1, exact=True)[:, 0]
    if len(times) <= max(frames):
        raise InputError(f"{table} has {len(times)} lines, but there is an image {max(frames)} (counted from 0)")
    timed = in_time_order(images, times[frames], table)
    return timed, timed.warnings


def _kitti_poses(path: Path) -> dict[int, FloatArray]:
    real = path.resolve()
    for folder in (real.parent.parent, real.parent):
        file = folder / "poses" / f"{real.name}.txt"
        if file.is_file():
            return read_pose_lines(file, 12)
    return {}


def _euroc_base(path: Path) -> Path:
    return path / "mav0" if (path / "mav0").is_dir() else path


def _euroc_images(table: Path) -> TimedImages:
    """Images of cam0/data.csv in the order of their times."""
    rows = [(number, [word.strip() for word in line.split(",")]) for number, line in content_lines(table)]
    for number, row in rows:
        if len(row) < 2 or not row[0].isdecimal() or row[1].isdecimal():
            raise InputError(f"{table} line {number} must be 'nanoseconds,file'")
    stated = re.match(r"#\s*timestamp\s*\[(\w+)\]", read_text(table))
    unit = NANOSECONDS if stated is None else TIMES.get(stated[1].lower(), 0.0)
    if not unit:
        raise InputError(f"{table}: the unit {stated and stated[1]!r} of its timestamps is not known")
    times = np.array([int(row[0]) * unit for _, row in rows])
    return in_time_order([listed_file(table.parent / "data", row[1]) for _, row in rows], times, table)


def _euroc_truth(base: Path) -> tuple[Path | None, FloatArray, list[str]]:
    """Table of poses (the estimate's, else of motion capture or any other sensor), the body in the axes of the sensor
    that was tracked, and a warning where there are several."""
    found = []
    for table in sorted(base.glob("*/data.csv")):
        header = next(iter(read_text(table).splitlines()), "").lower()
        if table.parent.name.startswith("state_groundtruth") or re.search(r"(^|[\s,#_.])q(_\w*)?_?w\b", header):
            found.append(table)
    found.sort(key=lambda table: not table.parent.name.startswith("state_groundtruth"))
    names = [table.parent.name for table in found]
    T_tracked_body: FloatArray = np.eye(4)
    sensor = found[0].with_name("sensor.yaml") if found else base
    if sensor.is_file() and "T_BS" in (stated := _sensor(sensor)):
        T_tracked_body = np.asarray(np.linalg.inv(_extrinsics(stated, sensor)), np.float64)
    several = [f"true poses are those of {names[0]}, not of {', '.join(names[1:])}"] if names[1:] else []
    return (found[0] if found else None), T_tracked_body, several


def _sensor(path: Path) -> Names:
    """Elements of a sensor.yaml. Raises InputError."""
    text = read_text(path)
    with errors_in(path):
        (tree,) = parse_trees(text)
        return Names(tree, path.name)


def _extrinsics(names: Names, sensor: Path) -> FloatArray:
    with errors_in(sensor):
        return body_pose(names)


def _euroc_camera(names: Names, images: tuple[Path, ...]) -> Calibration | str:
    """The camera, or why it cannot be used."""
    try:
        camera = kalibr_camera(names)
    except (InputError, ConfigError, UnsupportedError) as error:
        return f"{names.name}: {error}"
    if camera.size is None or same_aspect(size := image_size(images), camera.size):
        return camera
    return f"{names.name} is of {camera.size[0]}x{camera.size[1]} pixels, the images of {size[0]}x{size[1]}: not used"


def _is_drive(path: Path) -> bool:
    return (path / _drive_camera(path) / "timestamps.txt").is_file()


def _load_drive(path: Path) -> Recording:
    """A drive. Images of ``_sync`` drives are rectified; those of others have the distortion of the calibration."""
    name = _drive_camera(path)
    images = images_in(path / name / "data")
    table = path / name / "timestamps.txt"
    times = np.array([_date_seconds(line, f"{table} line {number}") for number, line in content_lines(table)])
    rows = [int(image.stem) if image.stem.isdecimal() else -1 for image in images]
    if min(rows) < 0 or max(rows) >= len(times):
        raise InputError(f"{table} has {len(times)} lines, and there is an image {images[int(np.argmax(rows))].name}")
    timed = in_time_order(images, times[rows], table)
    camera, calibration, missing = None, None, [f"there is no {DRIVE_CAMERA_FILE}"]
    above = (each / DRIVE_CAMERA_FILE for each in (path, *path.resolve().parents[:2]))
    if (file := next(filter(Path.is_file, above), None)) is not None:
        number, rectified = name.removeprefix("image_"), not path.resolve().name.endswith("_extract")
        (camera, calibration), missing = _drive_cameras(file, number, rectified=rectified), []
    return Recording(
        images=timed.images,
        timestamps=timed.times,
        camera=camera,
        calibration=calibration,
        warnings=(*timed.warnings, *missing),
    )


def _drive_camera(path: Path) -> str:
    return next((name for name in DRIVE_CAMERAS if has_images(path / name / "data")), DRIVE_CAMERAS[0])


def _date_seconds(text: str, where: str) -> float:
    """Seconds since 1970 of a date with nanoseconds."""
    seconds, _, fraction = text.partition(".")
    try:
        moment = datetime.strptime(seconds.strip(), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp() + float(f"0.{fraction.strip() or 0}")
    except ValueError as error:
        raise InputError(f"{where} must be a date and time ({error})") from error


def _drive_cameras(file: Path, number: str, *, rectified: bool) -> tuple[PinholeCamera, Calibration | None]:
    """Pinhole camera, and camera with distortion."""
    size_name, K, D, P = f"S{'_rect' * rectified}_{number}", f"K_{number}", f"D_{number}", f"P_rect_{number}"
    needed = {size_name: 2} | ({P: 12} if rectified else {K: 9, D: 5})
    entries = named_numbers(file, needed, r"[SKDRT](_rect)?_\d\d|P_rect_\d\d|calib_time|corner_dist")
    size = (int(entries[size_name][0]), int(entries[size_name][1]))
    matrix = entries[P].reshape(3, 4) if rectified else entries[K].reshape(3, 3)
    k = centred(matrix[0, 0], matrix[1, 1], matrix[0, 2], matrix[1, 2])
    if rectified:
        return PinholeCamera(k, size), None
    distorted = Calibration(k.fx, k.fy, k.cx, k.cy, "perspective", tuple(map(float, entries[D])), size)
    return PinholeCamera(k, size), distorted
