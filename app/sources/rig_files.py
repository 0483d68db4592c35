"""Rigs of several cameras, from files of Kalibr, COLMAP, EuRoC or KITTI, and the views of their frames."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.input_file import input_errors, read_file
from stream_recon.app.core.rig import Rig
from stream_recon.app.core.transforms import FloatArray, invert_pose, is_rigid, rotation_matrix
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.camera_files import kalibr_camera
from stream_recon.app.sources.camera_models import UnsupportedError, colmap_camera
from stream_recon.app.sources.frame_choice import TF, FrameChoice
from stream_recon.app.sources.images import NAME, ImagesReader
from stream_recon.app.sources.joined import CameraChange
from stream_recon.app.sources.named_values import Names, parse_trees
from stream_recon.app.sources.rig_views import RigReader
from stream_recon.app.sources.rosbag import is_recording
from stream_recon.app.sources.source import Source, open_source, source_of
from stream_recon.configs.errors import ConfigError, InputError

FORMS = "Kalibr's camchain.yaml, COLMAP's rig_config.json, EuRoC's folder mav0 or KITTI's calib.txt"
RIGID = 1e-3
"""Deviation of a matrix from a rotation up to which it is rounding."""


@dataclass(frozen=True)
class RigCamera:
    """One camera of a rig."""

    name: str
    """Folder or film, without its suffix, below the source."""
    camera: Calibration
    T_first_camera: FloatArray  # [4, 4] in metres
    topic: str | None = None
    """Its topic of a ROS recording; None: called as the camera."""


def read_rig(path: Path) -> list[RigCamera]:
    """Cameras of a rig, that which gives the pose first. Raises InputError, which names what is not understood."""
    with input_errors(f"--rig {path}"):
        try:
            cameras = _euroc(path) if path.is_dir() else _of_file(path, read_file(path).decode("utf-8-sig"))
        except (InputError, ConfigError, UnsupportedError) as error:
            raise InputError(f"--rig {path}: {error}") from error
        except (ValueError, TypeError) as error:
            raise InputError(f"--rig {path} is none of {FORMS}: {error}") from error
    names = [camera.name for camera in cameras]
    if len(cameras) < 2 or len(set(names)) < len(names):
        raise InputError(f"--rig {path} has {len(cameras)} cameras ({', '.join(names)}): two or more with own names")
    return cameras


def _of_file(path: Path, text: str) -> list[RigCamera]:
    if text.startswith("P0:"):
        return _kitti(path.parent, text)
    (tree,) = parse_trees(text)
    return _colmap(tree) if isinstance(tree, list) else _kalibr(Names(tree))


def _euroc(folder: Path) -> list[RigCamera]:
    """The ``T_BS`` of each camera's ``sensor.yaml`` takes its points to the body."""
    cameras = []
    for file in sorted(_body(folder).glob("cam*/sensor.yaml")):
        (tree,) = parse_trees(read_file(file).decode("utf-8-sig"))
        names = Names(tree, f"{file.parent.name}/{file.name}")
        cameras.append(RigCamera(file.parent.name, kalibr_camera(names), body_pose(names)))
    return _from_first(cameras)


def _body(folder: Path) -> Path:
    """The folder of the cameras of a sequence of EuRoC, where it is one."""
    return folder / "mav0" if (folder / "mav0").is_dir() else folder


def body_pose(names: Names) -> FloatArray:
    """The ``T_BS`` of a ``sensor.yaml``, which takes its sensor's points to the body. Raises InputError."""
    values = names.numbers("T_BS", shape=(4, 4))
    if values is None:
        raise InputError(f"{names.name} has no T_BS")
    return _rigid(np.reshape(values, (4, 4)), f"{names.name}: T_BS")


def _kitti(folder: Path, text: str) -> list[RigCamera]:
    """The rectified pair whose images stand beside the file, that in colour where there are two."""
    rows, cameras = dict(re.findall(r"(?m)^P([0-3]):(.+)$", text)), list[RigCamera]()
    pairs = [pair for pair in ("23", "01") if all((folder / f"image_{k}").is_dir() for k in pair)]
    if not pairs:
        raise InputError("no images of a pair, image_2 and image_3 or image_0 and image_1, stand beside it")
    for k in pairs[0]:
        values = rows.get(k, "").split()
        P = np.array(values, np.float64).reshape(3, 4) if len(values) == 12 else np.zeros((3, 4))
        (fx, _, cx), (_, fy, cy), _ = P[:, :3].tolist()
        if not (fx > 0 and fy > 0 and np.array_equal(P[:, :3], [[fx, 0, cx], [0, fy, cy], [0, 0, 1]])):
            raise InputError(f"P{k} is no camera matrix of 3 rows and 4 columns")
        T = np.eye(4)
        T[:3, 3] = -np.linalg.solve(P[:, :3], P[:, 3])
        cameras.append(RigCamera(f"image_{k}", Calibration(fx, fy, cx + 0.5, cy + 0.5), _rigid(T, f"P{k}")))
    return _from_first(cameras)


def _from_first(cameras: list[RigCamera]) -> list[RigCamera]:
    """Cameras whose poses are in any axes, with those from the first one's."""
    T_first = invert_pose(cameras[0].T_first_camera) if cameras else np.eye(4)
    return [replace(camera, T_first_camera=T_first @ camera.T_first_camera) for camera in cameras]


def _kalibr(names: Names) -> list[RigCamera]:
    """Each camera has its pose relative to the one before it: ``T_cn_cnm1`` takes points of that one to it."""
    found = [name for name in names if re.fullmatch(r"cam\d+", name)]
    blocks = [f"cam{number}" for number in range(len(found))]
    if set(blocks) != set(found):
        raise InputError(f"its cameras are {', '.join(found)}: each is relative to the one before it, from cam0 on")
    cameras, T_first_last = list[RigCamera](), np.eye(4)
    for block in blocks:
        table = Names(names.take(block), block)
        values = table.numbers("T_cn_cnm1", shape=(4, 4))
        if (values is None) == bool(cameras):
            raise InputError(f"{block} has {'no' if cameras else 'a'} T_cn_cnm1")
        if values is not None:
            T_first_last = T_first_last @ invert_pose(_rigid(np.reshape(values, (4, 4)), f"{block}: T_cn_cnm1"))
        topic = table.take("rostopic")
        cameras.append(RigCamera(block, kalibr_camera(table), T_first_last, None if topic is None else str(topic)))
    names.end("")
    return cameras


def _colmap(tree: list[Any]) -> list[RigCamera]:
    if len(tree) != 1:
        raise InputError(f"it has {len(tree)} rigs: give one")
    rig = Names(tree[0], "the rig")
    listed = rig.take("cameras")
    rig.end("")
    if not isinstance(listed, list):
        raise InputError("the rig has no list of cameras")
    found = [_colmap_camera(Names(table, f"camera {number}")) for number, table in enumerate(listed)]
    if [is_first for is_first, _ in found].count(True) != 1:
        raise InputError("one camera is the ref_sensor")
    found.sort(key=lambda each: not each[0])
    return _from_first([camera for _, camera in found])


def _colmap_camera(names: Names) -> tuple[bool, RigCamera]:
    """Whether a camera is the rig's reference, and the camera with its pose in the rig's axes."""
    prefix, model = names.take("image_prefix"), names.take("camera_model_name")
    parameters = names.numbers("camera_params")
    if not isinstance(prefix, str) or not isinstance(model, str) or parameters is None:
        raise InputError(f"{names.name} needs image_prefix, camera_model_name and camera_params")
    is_first, T = bool(names.flag("ref_sensor")), np.eye(4)
    quaternion = names.numbers("cam_from_rig_rotation", shape=(1, 4))
    translation = names.numbers("cam_from_rig_translation", shape=(1, 3))
    names.end("")
    if quaternion is not None and translation is not None:
        w, x, y, z = quaternion
        if abs(math.hypot(*quaternion) - 1) > RIGID:
            raise InputError(f"{names.name}: cam_from_rig_rotation is no quaternion of length 1")
        T[:3, :3], T[:3, 3] = rotation_matrix(np.array([x, y, z, w])), translation
        _rigid(T, f"{names.name}: cam_from_rig_translation")
    elif not is_first or quaternion is not None or translation is not None:
        pose = "cam_from_rig_rotation and cam_from_rig_translation"
        raise InputError(f"{names.name} needs {pose}, or is the ref_sensor")
    camera = colmap_camera(model, parameters, None)  # sizes are those of the images
    return is_first, RigCamera(prefix.strip("/"), camera, invert_pose(T))


def _rigid(T: FloatArray, name: str) -> FloatArray:
    if not is_rigid(T, RIGID):
        raise InputError(f"{name} is no rigid transform")
    return T


class CameraRigReader(RigReader):
    """Views of several cameras as those of one pinhole camera, that of the first one's undistorted images."""

    def __init__(self, rig: Rig, name: str, parts: Sequence[Callable[[], Source]]) -> None:
        self._target: Intrinsics | None = None
        self._size = (0, 0)
        super().__init__(rig, name, parts)

    def view_camera(self, rgb: NDArray[np.uint8]) -> Calibration:
        self._target = k = self._source.intrinsics
        assert k is not None, "each camera of a rig is known"
        self._size = (rgb.shape[1], rgb.shape[0])
        return Calibration(k.fx, k.fy, k.cx, k.cy, size=self._size)

    def cut(self, rgb: NDArray[np.uint8], view: int) -> NDArray[np.uint8]:
        own, target = self._source.intrinsics, self._target
        assert own is not None and target is not None
        size = (rgb.shape[1], rgb.shape[0])
        if size == self._size and own == target:
            return rgb
        change = CameraChange(own.camera_model, target, self._size)
        return np.asarray(change.map(rgb, (float(size[0]), float(size[1])), self._size, cv2.INTER_LINEAR), np.uint8)


def open_rig(spec: str | Iterable[object], choice: FrameChoice) -> Source:
    """The views of a rig in folders or films below ``spec``, its topics or lists of images. Raises as `open_source`."""
    assert choice.rig is not None
    if choice.masks is not None or choice.camera is not None or (choice.topic is not None and choice.rig != TF):
        raise ConfigError("--rig gives the cameras: leave out --intrinsics, --masks and, but for tf, --topic")
    cameras = _of_recording(spec, choice.topic) if choice.rig == TF else read_rig(Path(choice.rig).expanduser())
    if isinstance(spec, str):
        folder = Path(spec).expanduser()
        name, parts = folder.resolve().name, [partial(_open_camera, folder, camera, choice) for camera in cameras]
    else:
        if isinstance(spec, Iterator):
            raise ConfigError("a rig's images are read once for each camera: give a list, not an iterator")
        name, parts = NAME, [partial(_open_images, spec, cameras, view, choice) for view in range(len(cameras))]
    rig = Rig(tuple(each.name for each in cameras), np.array([each.T_first_camera for each in cameras]))
    return Source(CameraRigReader(rig, name, parts))


def _of_recording(spec: object, topics: str | None) -> list[RigCamera]:
    from stream_recon.app.sources.recorded_rig import recorded_rig  # it imports this module

    if not isinstance(spec, str) or not is_recording(path := Path(spec).expanduser()):
        raise ConfigError("--rig tf is for ROS recordings: give the file of the rig")
    return _from_first(recorded_rig(path, topics))


def _open_images(moments: Iterable[object], cameras: Sequence[RigCamera], view: int, choice: FrameChoice) -> Source:
    reader = ImagesReader(moments, {each.name: each.camera for each in cameras}, view)
    return source_of(reader, replace(choice, rig=None, camera=cameras[view].camera.text()))


def _open_camera(folder: Path, camera: RigCamera, choice: FrameChoice) -> Source:
    own = replace(choice, rig=None, camera=camera.camera.text(), topic=None)
    with input_errors(folder):
        place = _body(folder) / camera.name
        films = sorted(path for path in place.parent.glob(f"{place.name}.*") if path.is_file())
        if is_recording(folder):
            place, own = folder, replace(own, topic=camera.topic or f"/{camera.name}")
        elif (place / "data").is_dir():  # EuRoC
            place /= "data"
        elif not place.is_dir():
            if len(films) != 1:
                raise InputError(f"{folder} has no folder or film {camera.name} of --rig")
            place = films[0]
    return open_source(str(place), own)
