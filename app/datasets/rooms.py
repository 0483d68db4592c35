"""Readers of indoor data sets with one pose and one depth image for each frame.

7-Scenes (Shotton et al., CVPR 2013), ScanNet as its reader exports it (Dai et al., CVPR 2017), Replica as rendered
for iMAP and NICE-SLAM (Zhu et al., CVPR 2022). None has timestamps, so a nominal 30 frames a second are used.
"""

from collections.abc import Sequence
from pathlib import Path

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.datasets.recording import (
    DepthImages,
    PinholeCamera,
    Recording,
    frame_numbers,
    has_images,
    images_in,
)
from stream_recon.app.datasets.rgbd import centred
from stream_recon.app.datasets.text import errors_in, integer, number_rows, read_json, read_pose_files, read_pose_lines
from stream_recon.app.sources.image_files import natural_key
from stream_recon.app.sources.named_values import Names
from stream_recon.configs.errors import InputError

MILLIMETRES = 1000.0
"""Steps of depth images in a metre."""
SEVEN_SCENES_CAMERA = PinholeCamera(Intrinsics(585.0, 585.0, 320.0, 240.0), (640, 480))
"""Camera that the data set recommends; it has no calibration."""
SEVEN_SCENES_NO_DEPTH = 65535
"""Value of unknown depth."""
REPLICA_DEPTH_UNITS_PER_METRE = 6553.5
"""Steps of depth images in a metre without cam_params.json: 10 m in 16 bits."""


def is_seven_scenes(path: Path) -> bool:
    return next(path.glob("frame-*.color.*"), None) is not None


def is_scannet(path: Path) -> bool:
    return has_images(path / "color") and any((path / part).is_dir() for part in ("pose", "intrinsic"))


def is_replica(path: Path) -> bool:
    return (path / "traj.txt").is_file() and next((path / "results").glob("frame*.*"), None) is not None


def seven_scenes_images(path: Path) -> tuple[Path, ...]:
    return tuple(image for image in images_in(path) if image.name.startswith("frame-") and ".color." in image.name)


def replica_images(path: Path) -> tuple[Path, ...]:
    images = [image for image in images_in(path / "results") if image.name.startswith("frame")]
    return tuple(sorted(images, key=lambda image: natural_key(image.name)))


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


def load_replica(path: Path) -> Recording:
    """Replica: results/frame000000.jpg, depth000000.png, traj.txt by frame number, cam_params.json here or above."""
    images = replica_images(path)
    numbers = frame_numbers(images, "frame")
    poses = read_pose_lines(path / "traj.txt", 16)
    files = [folder / "cam_params.json" for folder in (path, path.resolve().parent)]
    parameters = next((file for file in files if file.is_file()), None)
    camera, scale = (None, REPLICA_DEPTH_UNITS_PER_METRE) if parameters is None else _replica_camera(parameters)
    depth = {i: image.with_name(f"depth{image.stem.removeprefix('frame')}.png") for i, image in enumerate(images)}
    return Recording(
        images=images,
        poses={i: poses[number] for i, number in enumerate(numbers) if number in poses},
        camera=camera,
        read_depth=_existing(depth, scale),
    )


def _replica_camera(file: Path) -> tuple[PinholeCamera, float]:
    content = read_json(file)
    with errors_in(file):
        names = Names(content)
        table = Names(names.take("camera"), "camera")
        fx, fy, cx, cy, scale, w, h = (table.needed(key) for key in ("fx", "fy", "cx", "cy", "scale", "w", "h"))
        for each in (table, names):
            each.end("")
        if min(fx, fy, scale, w, h) <= 0:
            raise InputError("w, h, fx, fy and scale must be above 0")
        return PinholeCamera(centred(fx, fy, cx, cy), (integer(w, "w"), integer(h, "h"))), scale


def _numbered_alike(folder: Path, images: Sequence[Path], suffix: str) -> dict[int, Path]:
    """Files of the images' names, or numbers without their zeros, by position; they may not exist."""
    by_number = {int(file.stem): file for file in folder.glob(f"*{suffix}") if file.stem.isdecimal()}
    own = ((folder / f"{image.stem}{suffix}", image.stem) for image in images)
    return {i: by_number.get(int(stem), file) if stem.isdecimal() else file for i, (file, stem) in enumerate(own)}


def _existing(files: dict[int, Path], units_per_metre: float, invalid: int = 0) -> DepthImages | None:
    """Reader of depth images; None where there are none."""
    return DepthImages(files, units_per_metre, invalid) if any(map(Path.is_file, files.values())) else None
