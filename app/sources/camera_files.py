"""Calibration files of other programs, with a table for each program that writes them.

Every element of a file is applied, stands in its writer's list of harmless ones, or is refused by its name.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stream_recon.app.core.input_file import read_file
from stream_recon.app.sources.calibration import FORMS, Calibration
from stream_recon.app.sources.camera_models import (
    FISHEYE_NAMES,
    SKEW,
    UnsupportedError,
    absent_notes,
    colmap_camera,
    colmap_rows,
    distortion,
    omnidirectional,
    rolling_shutter,
)
from stream_recon.app.sources.named_values import NUMBER, Names, parse_trees
from stream_recon.app.sources.transforms_json import nerfstudio_camera
from stream_recon.configs.errors import ConfigError, InputError

MAX_FILE_BYTES = 1 << 26
"""Bytes of a calibration file that are read: more than the largest transforms.json."""
SMALL_PX = 0.1
"""Error in pixels up to which Metashape's small affine term is left out, with a warning."""


def read_camera(path: Path) -> Calibration:
    """Camera from a calibration file, with all cameras of the file in ``others``.

    Raises InputError or ConfigError, as `parse_camera`.
    """
    try:
        cameras = _cameras(read_file(path, MAX_FILE_BYTES))
    except OSError as error:
        raise InputError(f"--intrinsics {path} cannot be read ({error.strerror}): use {FORMS}") from error
    except UnsupportedError as error:
        advice = "which is not supported: undistort the images with the program that made the file"
        raise InputError(f"--intrinsics {path}: {error}, {advice}") from error
    except (ValueError, ArithmeticError) as error:
        if "\0" in str(path):
            raise InputError(f"--intrinsics: no such file; use {FORMS}") from error
        raise InputError(f"--intrinsics {path}: damaged numbers or a missing entry ({error})") from error
    except (ConfigError, InputError) as error:
        raise InputError(f"--intrinsics {path}: {error}") from error
    if not cameras:
        raise InputError(f"--intrinsics {path} has an unknown format: use {FORMS}")
    distinct = list(dict.fromkeys(cameras))
    notes = tuple(f"--intrinsics {path.name}: {note}" for camera in distinct for note in camera.notes)
    return replace(distinct[0], others=tuple(distinct[1:]), notes=tuple(dict.fromkeys(notes)))


def _cameras(data: bytes) -> list[Calibration]:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        data = data.decode("utf-16").encode()
    if b"\0" in data[:8] or re.match(rb"(?:\xef\xbb\xbf)?(?:\s|#[^\n]*\n)*[-+.\d]\S*[ \t]+[A-Za-z]", data):
        return [colmap_camera(model, values, size) for _, model, size, values in colmap_rows(data)]
    text = data.decode("utf-8-sig")
    words = re.sub("#.*", "", text).split()
    if len(words) == 6 and all(re.fullmatch(NUMBER, word) for word in words):  # intrinsics.txt
        fx, fy, cx, cy, width, height = map(float, words)
        return [Calibration(fx, fy, cx, cy, size=(int(width), int(height)))]
    return [camera for tree in parse_trees(text) for camera in _of_tree(tree)]


def _of_tree(tree: Any) -> list[Calibration]:
    names = Names(tree.get("opencv_storage", tree) if isinstance(tree, dict) else tree)
    writer = next((w for w in WRITERS if any(re.fullmatch(w.mark, name) for name in names)), None)
    if writer is None:
        raise InputError(f"unknown format ({', '.join([*names][:4])}): use {FORMS}")
    cameras = writer.read(names)
    names.end(writer.harmless)
    return cameras


def _transforms(names: Names) -> list[Calibration]:
    frames = names.take("frames") if "frames" in names else []
    if not isinstance(frames, list):
        raise InputError("frames is no list")
    table = {name: names.take(name) for name in [*names]}
    tables = [table | dict(Names(frame, "a frame").items()) for frame in frames]
    return list(dict.fromkeys(nerfstudio_camera(each) for each in tables or [table]))


def _matrix(names: Names) -> list[Calibration]:
    """Camera matrix and coefficients of OpenCV and ROS."""
    K = names.numbers("camera_matrix", "Camera_Matrix", "cameraMatrix", "K", "k", shape=(3, 3))
    if K is None:
        raise InputError("camera_matrix (K) is missing")
    if abs(K[1]) > SKEW * abs(K[0]):
        raise UnsupportedError(f"a camera matrix with skew {K[1]:g}")
    if [K[3], *K[6:]] != [0, 0, 0, 1]:
        raise InputError("camera_matrix is not [fx, 0, cx, 0, fy, cy, 0, 0, 1]")
    bends = names.named("distortion_coefficients", "Distortion_Coefficients", *_OTHER_COEFFICIENTS)
    if names.number("binning_x") not in (None, 0, 1) or names.number("binning_y") not in (None, 0, 1):
        raise UnsupportedError("binning_x or binning_y above 1")
    if "roi" in names:
        roi = Names(names.take("roi"), "roi")
        roi.zero("x_offset", "y_offset", "width", "height")
        roi.end("do_rectify")
    size = names.numbers("cameraResolution", "resolution", "image_size", shape=(1, 2))
    if size is None:
        size = _size(names, ("image_width", "image_Width", "width"), ("image_height", "image_Height", "height"))
    model, camera = names.word("distortion_model"), names.word("camera_model")
    if camera not in (None, "pinhole", model):
        if model is not None:
            raise UnsupportedError(f"camera_model {camera} with distortion_model {model}")
        model = camera
    if (fisheye := names.flag("fisheye_model")) and model not in (None, *FISHEYE_NAMES):
        raise UnsupportedError(f"distortion_model {model} with fisheye_model")
    model = model if fisheye is None or model is not None else "fisheye" if fisheye else ""
    return [_opencv(names, [K[0], K[4], K[2], K[5]], model, bends, size)]


_OTHER_COEFFICIENTS = ("distortion_coeffs", "distCoeffs", "dist_coeffs", "dist_coeff", "D", "d")


def _opencv(
    names: Names,
    intrinsics: list[float],
    model: str | None,
    bends: tuple[str, list[float] | None],
    size: list[float] | None,
    xi: float | None = None,
) -> Calibration:
    """Camera whose (0, 0) is the centre of the first pixel, as in OpenCV, ROS, Kalibr, VINS and ORB-SLAM."""
    key, D = bends
    if D is None and model != "none":
        names.absent.append(key)
    notes = [
        f"{key}: {text}" for name, count, text in _ODD_COUNTS if (model, len(D or ())) == (name, count) and any(D or ())
    ]
    if size is None:
        notes.append("no image size (image_width, image_height or resolution) is stated: that of the source is taken")
    try:
        kind, used = distortion(model, D or [])
        if xi is not None:
            kind, used = omnidirectional(xi, kind, used)
    except UnsupportedError as error:
        raise UnsupportedError(f"{error} (distortion_model, {key})") from None
    fx, fy, cx, cy = intrinsics
    pixels = None if size is None else (int(size[0]), int(size[1]))
    return Calibration(fx, fy, cx + 0.5, cy + 0.5, kind, used, pixels, notes=(*notes, *absent_notes(names)))


_ODD_COUNTS = (
    (None, 4, "no distortion_model or fisheye_model is stated: the 4 are taken as k1 k2 p1 p2"),
    ("plumb_bob", 4, "4 where plumb_bob has 5: k3 is taken as 0"),
    ("radial-tangential", 5, "5 where radial-tangential has 4: the last is taken as k3"),
)


def _kalibr(names: Names) -> list[Calibration]:
    """Cameras of a camchain of Kalibr, or of a sensor.yaml of EuRoC."""
    blocks = [key for key in names if re.fullmatch(r"cam\d+", key)]
    if not blocks:
        return [kalibr_camera(names)]
    return [kalibr_camera(Names(names.take(key), key)) for key in blocks]


def kalibr_camera(names: Names) -> Calibration:
    """A camera of Kalibr. Raises InputError, UnsupportedError."""
    model = names.word("camera_model")
    values = names.numbers("intrinsics")
    if model is None or values is None:
        raise InputError(f"{'camera_model' if model is None else 'intrinsics'} is missing")
    xi = values.pop(0) if model == "omni" and len(values) == 5 else None
    if model not in ("pinhole", "omni") or len(values) != 4 or (xi is None) == (model == "omni"):
        raise UnsupportedError(f"camera_model {model} with {len(values)} intrinsics")
    bends = names.named("distortion_coeffs", "distortion_coefficients")
    kind, size = names.word("distortion_model"), names.numbers("resolution", shape=(1, 2))
    if kind is None and bends[1] is not None:
        raise InputError("distortion_model is missing")
    notes = rolling_shutter(names, "line_delay")
    names.end(_KALIBR_HARMLESS)
    camera = _opencv(names, values, kind, bends, size, xi=xi)
    return replace(camera, notes=(*camera.notes, *notes))


def _vins(names: Names) -> list[Calibration]:
    """Camera of VINS (camodocal)."""
    model = names.word("model_type")
    if model is None:
        raise InputError("model_type is missing: give the file of one camera, such as that in cam0_calib")
    if model not in _VINS:
        raise UnsupportedError(f"model_type {model.upper()}")
    keys, centre, bends = _VINS[model]
    at = Names(names.take("projection_parameters") or {}, "projection_parameters")
    bent = (
        at if model == "kannala_brandt" else Names(names.take("distortion_parameters") or {}, "distortion_parameters")
    )
    intrinsics = [at.needed(key) for key in (*keys, *centre)]
    D = [bent.needed(key) for key in bends]
    mirror = Names(names.take("mirror_parameters") or {}, "mirror_parameters") if model == "mei" else None
    xi = None if mirror is None else mirror.needed("xi")
    for table in (at, bent, mirror):
        if table is not None:
            table.end("")
    notes = rolling_shutter(names, "rolling_shutter")
    kind = "fisheye" if model == "kannala_brandt" else ""
    camera = _opencv(names, intrinsics, kind, ("distortion_parameters", D), _size(names), xi=xi)
    return [replace(camera, notes=(*camera.notes, *notes))]


_VINS = {
    "pinhole": (("fx", "fy"), ("cx", "cy"), ("k1", "k2", "p1", "p2")),
    "pinhole_full": (("fx", "fy"), ("cx", "cy"), ("k1", "k2", "p1", "p2", "k3", "k4", "k5", "k6")),
    "mei": (("gamma1", "gamma2"), ("u0", "v0"), ("k1", "k2", "p1", "p2")),
    "kannala_brandt": (("mu", "mv"), ("u0", "v0"), ("k2", "k3", "k4", "k5")),
}


def _orb_slam(names: Names) -> list[Calibration]:
    """Cameras of settings of ORB-SLAM2, which has no type, and ORB-SLAM3."""
    model = names.word("Camera.type")
    if model not in (None, "pinhole", "kannalabrandt8", "rectified"):
        raise UnsupportedError(f"Camera.type {model}")
    if names.number("Camera.imageScale") not in (None, 1):
        raise UnsupportedError("Camera.imageScale")
    size = _size(names, ("Camera.width", "Camera.cols"), ("Camera.height", "Camera.rows"))
    cameras = []
    for prefix in ("Camera.", "Camera1.", "Camera2."):
        if any(prefix + key in names for key in ("fx", "fy", "cx", "cy")):
            intrinsics = [names.needed(prefix + key) for key in ("fx", "fy", "cx", "cy")]
            bends = f"{prefix}k1", _orb_coefficients(names, prefix, model)
            kind = "fisheye" if model == "kannalabrandt8" else "none" if model == "rectified" else ""
            cameras.append(_opencv(names, intrinsics, kind, bends, size))
    if not cameras:
        raise InputError("Camera.fx (Camera1.fx) is missing")
    return cameras


def _orb_coefficients(names: Names, prefix: str, model: str | None) -> list[float] | None:
    fisheye = model == "kannalabrandt8"
    keys = [prefix + key for key in (("k1", "k2", "k3", "k4") if fisheye else ("k1", "k2", "p1", "p2"))]
    if model == "rectified" or not any(key in names for key in keys):
        return None
    if model is None and f"{prefix}k4" in names:
        raise InputError("Camera.type is missing")
    return [*(names.needed(key) for key in keys), *([] if fisheye else [names.usual(f"{prefix}k3")])]


def _metashape(names: Names) -> list[Calibration]:
    """Cameras of Metashape (Agisoft): a calibration, or the sensors of a document."""
    if "calibration" in names:
        return [_metashape_camera(Names(names.take("calibration"), "calibration"))]
    document = Names(names.take("document"), "document")
    chunk = Names(document.take("chunk"), "chunk")
    sensors = Names(chunk.take("sensors"), "sensors").take("sensor")
    chunk.end(_METASHAPE_HARMLESS)
    document.end("version")
    cameras = []
    for table in sensors if isinstance(sensors, list) else [sensors]:
        sensor = Names(table, "sensor")
        found = sensor.take("calibration")
        choices = {str(each.get("class")): each for each in (found if isinstance(found, list) else [found]) if each}
        notes = rolling_shutter(sensor, "rolling_shutter")
        sensor.end(_METASHAPE_HARMLESS)
        if not {"adjusted", "initial"} & choices.keys():
            raise InputError("sensor has no adjusted calibration")
        camera = _metashape_camera(Names(choices.get("adjusted") or choices["initial"], "calibration"))
        cameras.append(replace(camera, notes=(*camera.notes, *notes)))
    return cameras


def _metashape_camera(names: Names) -> Calibration:
    """Frame or fisheye camera; its p1 and p2 are OpenCV's p2 and p1, and cx, cy are offsets from the centre."""
    projection = names.word("projection", "type")
    if projection not in ("frame", "fisheye", "equidistant_fisheye"):
        raise UnsupportedError(f"projection {projection or '(missing)'}")
    at = Names(names.take("resolution"), "resolution") if "resolution" in names else names
    width, height = at.needed("width"), at.needed("height")
    f = names.needed("f")
    cx, cy, b1 = names.usual("cx"), names.usual("cy"), names.usual("b1")
    k1, k2, k3 = (names.usual(key) for key in ("k1", "k2", "k3"))
    moved_px = abs(names.number("b2") or 0.0) * height / 2 / f
    if moved_px > SMALL_PX:
        raise UnsupportedError(f"b2, which moves pixels by {moved_px:.2g}")
    notes = (f"b2 moves pixels by up to {moved_px:.2g} and is not applied",) if moved_px else ()
    names.zero("skew", "p3", "p4")
    if projection == "frame":
        p2, p1 = names.usual("p1"), names.usual("p2")
        names.zero("k4")
        kind, coefficients = distortion("plumb_bob", [k1, k2, p1, p2, k3])
    else:
        names.zero("p1", "p2")
        kind, coefficients = "fisheye", (k1, k2, k3, names.usual("k4"))
    names.end("class|date|software|text|covariance|params|vars|coeffs")
    size, centre = (int(width), int(height)), (width / 2 + cx, height / 2 + cy)
    return Calibration(f + b1, f, *centre, kind, coefficients, size, notes=(*notes, *absent_notes(names)))


def _size(
    names: Names, width: tuple[str, ...] = ("image_width",), height: tuple[str, ...] = ("image_height",)
) -> list[float] | None:
    """Width and height, both or none."""
    sides = names.whole(*width), names.whole(*height)
    if sides[0] is None and sides[1] is None:
        return None
    if sides[0] is None or sides[1] is None:
        raise InputError(f"{width[0] if sides[0] is None else height[0]} is missing")
    return [float(sides[0]), float(sides[1])]


@dataclass(frozen=True)
class Writer:
    """A program that writes cameras: how its files are known, what in them is harmless, and the reader of the rest."""

    mark: str
    """Pattern of a name by which its files are known."""
    harmless: str
    """Pattern of names that say nothing of how a ray meets the image."""
    read: Callable[[Names], list[Calibration]]


_KALIBR_HARMLESS = r"rostopic|T_\w+|timeshift_\w+|cam_overlaps|sensor_type|comment|rate_hz"
_METASHAPE_HARMLESS = (
    r"id|label|type|class|next_id|enabled|active_id|resolution|property|bands|data_type|black_level|sensitivity|"
    r"vignetting|covariance|components|cameras|markers|scalebars|reference|region|settings|meta|frames|transform|"
    r"pixel_(width|height|size)|focal_length|layer_index|images|date|software|date_time"
)
_MATRIX_HARMLESS = (
    r"(?i)calibration_?time|calibration_?date|(nr_?of_?)?frames(_?count)?|nframes|board_(width|height)|square_size|"
    r"marker_(size|length)|aspect_?ratio|fix_?aspect_?ratio|flag(s|value)|(avg|per_view)_reprojection_errors?|"
    r"extrinsic_parameters|(image|grid)_points|\w+_std_dev|camera_name|rectification_matrix|projection_matrix|header|"
    r"R|P|rms|reprojection_error|comment"
)
_VINS_HARMLESS = (
    r"camera_name|imu|imu_topic|image\d?_topic|num_of_cam|output_path|cam\d_calib|body_T_cam\d|extrinsic\w+|"
    r"estimate_(extrinsic|td)|ex_calib_result_path|max_\w+|min_dist|freq|F_threshold|show_track|flow_back|equalize|"
    r"fisheye(_mask)?|keyframe_parallax|(acc|gyr)_[nw]|g_norm|loop_closure|load_previous_pose_graph|save_image|td|"
    r"fast_relocalization|pose_graph_save_path|rolling_shutter_tr|visualize_\w+|multiple_thread|use_gpu\w*"
)
_ORB_SLAM_HARMLESS = (
    r"File\.version|Camera\d?\.(name|fps|RGB|bf|newWidth|newHeight|(over)?lapping(Begin|End))|(Stereo|RGBD)\.\w+|"
    r"ThDepth|DepthMapFactor|(ORBextractor|Viewer|IMU|System)\.\w+|Tbc|loopClosing"
)
WRITERS = (
    Writer(r"frames|fl_[xy]|camera_angle_[xy]|is_fisheye|transform_matrix", "", _transforms),
    Writer(r"Camera\d?\.\w+|ORBextractor\.\w+", _ORB_SLAM_HARMLESS, _orb_slam),
    Writer(r"model_type|projection_parameters|distortion_parameters|cam\d_calib", _VINS_HARMLESS, _vins),
    Writer(r"calibration|document", "", _metashape),
    Writer(r"cam\d+|intrinsics|T_BS|rostopic", _KALIBR_HARMLESS, _kalibr),
    Writer(
        r"(?i).*camera_?matrix|.*dist\w*_?coeff\w*|K|D|distortion_model|image_(width|height)|rectification_matrix|"
        r"fisheye_model",
        _MATRIX_HARMLESS,
        _matrix,
    ),
)
"""In the order in which they are tried."""
