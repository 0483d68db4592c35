"""Readers of RGB-D benchmarks: with lists of files with timestamps and a trajectory, or a pose for each frame.

TUM RGB-D (Sturm et al., IROS 2012), Bonn RGB-D Dynamic (Palazzolo et al., IROS 2019), ETH3D SLAM (Schöps et al.,
CVPR 2019), ICL-NUIM (Handa et al., ICRA 2014); 7-Scenes (Shotton et al., CVPR 2013) and ScanNet as its reader exports
it (Dai et al., CVPR 2017), which have no timestamps. Calibrations have the centre of pixel (0, 0) at (0, 0).
"""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.datasets.recording import (
    DepthImages,
    PinholeCamera,
    Recording,
    TimedImages,
    has_images,
    images_in,
    in_time_order,
)
from stream_recon.app.datasets.text import (
    content_lines,
    listed_file,
    number_row,
    number_rows,
    numbers,
    read_pose_files,
    rigid,
    timed_files,
)
from stream_recon.app.datasets.trajectories import associate, in_seconds, matched_poses
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.image_decoding import read_depth_image
from stream_recon.app.sources.readers import IMAGE_FOLDER_FPS
from stream_recon.configs.errors import InputError

DEPTH_UNITS_PER_METRE = 5000.0
"""Steps of depth images in a metre, in all of these benchmarks."""
APART_S = 0.1
"""Time between a colour image and its depth image from which they show other places."""
MAX_PROBED = 20
"""Lines whose files are looked at: the first ones may be missing."""
VGA = (640, 480)
"""Image size of the Kinect and of ICL-NUIM."""


def centred(fx: float, fy: float, cx: float, cy: float) -> Intrinsics:
    """Intrinsics of a calibration with the centre of pixel (0, 0) at (0, 0)."""
    return Intrinsics(fx, fy, cx + 0.5, cy + 0.5)


TUM_CAMERAS = {
    "1": centred(517.3, 516.5, 318.6, 255.3),
    "2": centred(520.9, 521.0, 325.1, 249.7),
    "3": centred(535.4, 539.2, 320.1, 247.6),
}
"""Colour cameras of freiburg1 to freiburg3, as published."""
TUM_DISTORTION = {
    "1": (0.2624, -0.9531, -0.0054, 0.0026, 1.1633),
    "2": (0.2312, -0.7849, -0.0033, -0.0001, 0.9172),
    "3": (0.0, 0.0, 0.0, 0.0, 0.0),
}
"""Distortion of these cameras: k1 k2 p1 p2 k3. The images of freiburg3 are undistorted."""
BONN_CAMERA = centred(542.822841, 542.576870, 315.593520, 237.756098)
"""Colour camera, as published."""
BONN_MARKER_AXES = np.array([[-1.0, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 1]])
"""Change of the axes of groundtruth.txt to those of the published calibration."""
BONN_SENSOR_IN_MARKERS = np.array(
    [[1.0157, 0.1828, -0.2389, 0.0113], [0.0009, -0.8431, -0.6413, -0.0098], [-0.3009, 0.6147, -0.8085, 0.0111]]
)
"""Pose of the sensor in the frame of the markers, as published; its rotation has a scale of 1.06, which is removed."""
ICL_CAMERA = centred(481.20, 480.00, 319.50, 239.50)
"""Virtual camera, as published, with a positive fy."""
ICL_MIRROR = np.diag([1.0, -1.0, 1.0, 1.0])
"""Reflection in y from the left-handed axes of the trajectory."""
MILLIMETRES = 1000.0
"""Steps of depth images in a metre."""
SEVEN_SCENES_CAMERA = PinholeCamera(Intrinsics(585.0, 585.0, 320.0, 240.0), (640, 480))
"""Camera that the data set recommends; it has no calibration."""
SEVEN_SCENES_NO_DEPTH = 65535
"""Value of unknown depth."""


def is_tum(path: Path) -> bool:
    return (path / "rgb.txt").is_file()


def is_bonn(path: Path) -> bool:
    real = path.resolve()
    return is_tum(path) and (real.name.startswith("rgbd_bonn_") or real.parent.name == "rgbd_bonn_dataset")


def is_eth3d(path: Path) -> bool:
    return is_tum(path) and (path / "calibration.txt").is_file()


def is_icl(path: Path) -> bool:
    return (path / "associations.txt").is_file() and (path / "rgb").is_dir() and not is_tum(path)


def count_listed(name: str, path: Path) -> int:
    """Number of images in a list."""
    return len(content_lines(path / name))


def load_tum(path: Path) -> Recording:
    """TUM RGB-D: rgb.txt, groundtruth.txt, depth.txt; the camera follows from the name of the sequence."""
    number = _freiburg(path)
    if number is None:
        return _load_timed(path, None)
    k = TUM_CAMERAS[number]
    calibration = Calibration(k.fx, k.fy, k.cx, k.cy, "perspective", TUM_DISTORTION[number], VGA)
    return dataclasses.replace(_load_timed(path, k), calibration=calibration)


def load_bonn(path: Path) -> Recording:
    """Bonn RGB-D Dynamic: as TUM, but groundtruth.txt has poses of markers on the sensor."""
    u, _, vt = np.linalg.svd(BONN_SENSOR_IN_MARKERS[:, :3])
    sensor = np.eye(4)
    sensor[:3, :3], sensor[:3, 3] = u @ vt, BONN_SENSOR_IN_MARKERS[:, 3]
    recording = _load_timed(path, BONN_CAMERA)
    axes = BONN_MARKER_AXES
    poses = {i: rigid(axes.T @ pose @ axes @ sensor, "Bonn's pose") for i, pose in recording.poses.items()}
    return dataclasses.replace(recording, poses=poses)


def load_eth3d(path: Path) -> Recording:
    """ETH3D SLAM: as TUM, with ``fx fy cx cy`` in calibration.txt."""
    return _load_timed(path, centred(*number_row(path / "calibration.txt", 4).tolist()), size=None)


def load_icl(path: Path) -> Recording:
    """ICL-NUIM, or any pairs of colour and depth: associations.txt, and NAME.gt.freiburg or groundtruth.txt.

    Lines are ``stamp file stamp file``, in either order of colour and depth. Whole numbers are frame numbers, as in
    ICL-NUIM, other stamps are seconds. ICL-NUIM's published trajectory and camera, with a negative fy, have left-handed
    axes right, up, forward. The images are upright, so with a positive fy both world and camera are reflected in y.
    """
    timed, depth, numbered = _associated(path)
    rendered, measured = next(iter(sorted(path.glob("*.gt.freiburg"))), None), path / "groundtruth.txt"
    poses, warnings = matched_poses(rendered or measured, timed.times)
    if rendered is not None:
        poses = {i: ICL_MIRROR @ pose @ ICL_MIRROR for i, pose in poses.items()}
    camera = ICL_CAMERA if numbered or rendered is not None else TUM_CAMERAS.get(_freiburg(path) or "")
    return Recording(
        images=timed.images,
        timestamps=timed.times / IMAGE_FOLDER_FPS if numbered else timed.times,
        poses=poses,
        camera=None if camera is None else PinholeCamera(camera, VGA),
        read_depth=depth,
        warnings=(*timed.warnings, *warnings),
    )


def _associated(path: Path) -> tuple[TimedImages, DepthImages, bool]:
    """Images and depth of associations.txt, and whether its stamps are frame numbers."""
    table = path / "associations.txt"
    rows = [(number, line.split()) for number, line in content_lines(table)]
    for number, row in rows:
        if len(row) != 4:
            raise InputError(f"{table} line {number}: the line must be 'stamp file stamp file', of colour and depth")
    if not rows:
        raise InputError(f"{table} lists no images")
    colour = _colour_column(path, [row for _, row in rows], table)
    times = np.array([numbers(row[colour - 1], f"{table} line {number}", 1)[0] for number, row in rows])
    timed = in_time_order([listed_file(path, row[colour]) for _, row in rows], times, table)
    depth = {i: listed_file(path, rows[row][1][4 - colour]) for i, row in enumerate(timed.positions)}
    numbered = all(row[colour - 1].isdecimal() for _, row in rows)
    stamps = np.array([numbers(row[3 - colour], f"{table} line {number}", 1)[0] for number, row in rows])
    if (apart := float(abs(times - stamps).max())) > APART_S and not numbered:
        timed = dataclasses.replace(timed, warnings=(*timed.warnings, f"depth is up to {apart:.2f} s from its image"))
    return timed, DepthImages(depth, DEPTH_UNITS_PER_METRE), numbered


def _colour_column(path: Path, rows: list[list[str]], table: Path) -> int:
    """Column, 1 or 3, of the colour images: by the names of folders, else by the content of the first files.

    Raises InputError: both are colour, or both are depth.
    """
    by_name = [["depth" in row[column].lower() for row in rows] for column in (1, 3)]
    if all(by_name[0]) != all(by_name[1]) and any(by_name[0]) != any(by_name[1]):
        return 3 if all(by_name[0]) else 1
    for row in rows[:MAX_PROBED]:
        first, second = (read_depth_image(listed_file(path, row[column])) is not None for column in (1, 3))
        if first != second:
            return 3 if first else 1
    raise InputError(f"{table}: it cannot be told which of its two columns of files is depth (16-bit images)")


def _freiburg(path: Path) -> str | None:
    """Number of the camera of TUM RGB-D, by the name of the sequence."""
    match = re.search(r"(?:freiburg|fr)([123])(?!\d)", path.resolve().name.lower())
    return match.group(1) if match else None


def _load_timed(path: Path, camera: Intrinsics | None, size: tuple[int, int] | None = VGA) -> Recording:
    times, files = timed_files(path / "rgb.txt")
    times = in_seconds(times)
    timed = in_time_order(files, times, path / "rgb.txt")
    if read_depth_image(timed.images[0]) is not None:
        raise InputError(f"{path / 'rgb.txt'} lists depth images (16 bits), such as {timed.images[0].name}")
    poses, warnings = matched_poses(path / "groundtruth.txt", timed.times)
    return Recording(
        images=timed.images,
        timestamps=timed.times,
        poses=poses,
        camera=None if camera is None else PinholeCamera(camera, size),
        read_depth=_timed_depth(path / "depth.txt", timed.times),
        warnings=(*timed.warnings, *warnings),
    )


def _timed_depth(table: Path, times: FloatArray) -> DepthImages | None:
    if not table.is_file():
        return None
    depth_times, files = timed_files(table)
    matches = associate(times, in_seconds(depth_times))
    return DepthImages({i: files[m] for i, m in enumerate(matches) if m >= 0}, DEPTH_UNITS_PER_METRE)


def is_seven_scenes(path: Path) -> bool:
    return next(path.glob("frame-*.color.*"), None) is not None


def is_scannet(path: Path) -> bool:
    return has_images(path / "color") and any((path / part).is_dir() for part in ("pose", "intrinsic"))


def seven_scenes_images(path: Path) -> tuple[Path, ...]:
    return tuple(image for image in images_in(path) if image.name.startswith("frame-") and ".color." in image.name)


def load_seven_scenes(path: Path) -> Recording:
    """7-Scenes: frame-000000.color.png, .pose.txt and .depth.png, in millimetres, 65535 unknown."""
    images = seven_scenes_images(path)
    names = {i: image.name.split(".color.")[0] for i, image in enumerate(images)}
    depth = {i: path / f"{name}.depth.png" for i, name in names.items()}
    return Recording(
        images=images,
        poses=read_pose_files({i: path / f"{name}.pose.txt" for i, name in names.items()}),
        camera=SEVEN_SCENES_CAMERA,
        read_depth=_existing(depth, MILLIMETRES, SEVEN_SCENES_NO_DEPTH),
    )


def load_scannet(path: Path) -> Recording:
    """ScanNet: color/N.jpg, pose/N.txt, depth/N.png in millimetres, intrinsic/intrinsic_color.txt."""
    images = images_in(path / "color")
    calibration = path / "intrinsic" / "intrinsic_color.txt"
    camera, unusable = None, None
    if calibration.is_file():
        K = number_rows(calibration, 3)
        if K.shape[0] < 3 or min(K[0, 0], K[1, 1]) <= 0:
            raise InputError(f"{calibration} must have a 4x4 camera matrix")
        camera = PinholeCamera(centred(float(K[0, 0]), float(K[1, 1]), float(K[0, 2]), float(K[1, 2])))
    elif calibration.parent.is_dir():
        unusable = f"there is no {calibration.name} in {calibration.parent.name}, whose other cameras are not used"
    poses = read_pose_files(_numbered_alike(path / "pose", images, ".txt"))
    return Recording(
        images=images,
        poses=poses,
        camera=camera,
        unusable=unusable,
        read_depth=_existing(_numbered_alike(path / "depth", images, ".png"), MILLIMETRES),
        warnings=("no image has a pose in pose/",) if (path / "pose").is_dir() and not poses else (),
    )


def _numbered_alike(folder: Path, images: Sequence[Path], suffix: str) -> dict[int, Path]:
    """Files of the images' names, or numbers without their zeros, by position; they may not exist."""
    by_number = {int(file.stem): file for file in folder.glob(f"*{suffix}") if file.stem.isdecimal()}
    own = ((folder / f"{image.stem}{suffix}", image.stem) for image in images)
    return {i: by_number.get(int(stem), file) if stem.isdecimal() else file for i, (file, stem) in enumerate(own)}


def _existing(files: dict[int, Path], units_per_metre: float, invalid: int = 0) -> DepthImages | None:
    """Reader of depth images; None where there are none."""
    return DepthImages(files, units_per_metre, invalid) if any(map(Path.is_file, files.values())) else None
