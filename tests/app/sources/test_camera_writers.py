"""A file of each program that writes cameras is projected as OpenCV does; a changed one is never another silently."""

import json
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from stream_recon.app.sources.calibration import Calibration, parse_camera
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.media import write_images
from tests.mutations import Mutant, of_lines, of_scalars, of_tree, silently_other

SIZE = (752, 480)
FX, FY, CX, CY = 458.5, 457.25, 367.5, 248.25
K = np.array([[FX, 0, CX], [0, FY, CY], [0, 0, 1]])
BROWN = [-0.283, 0.074, 0.0002, -0.0003]
BROWN5 = [*BROWN, -0.011]
RATIONAL = [0.62, 0.31, 0.0003, -0.0002, 0.035, 0.64, 0.49, 0.12]
FISHEYE = [0.0034, 0.0007, -0.002, 0.0002]
GRID = np.stack(np.meshgrid(np.linspace(-0.6, 0.6, 5), np.linspace(-0.4, 0.4, 5)), axis=-1).reshape(-1, 2)
MATRIX = [FX, 0.0, CX, 0.0, FY, CY, 0.0, 0.0, 1.0]
TURN = {"rows": 4, "cols": 4, "dt": "d", "data": np.eye(4).ravel().tolist()}


def matrix(rows: int, cols: int, data: list[float]) -> dict[str, Any]:
    return {"rows": rows, "cols": cols, "dt": "d", "data": data}


def opencv(coefficients: list[float], **more: Any) -> dict[str, Any]:
    return {
        "calibration_time": "Tue 03 Nov 2026",
        "nr_of_frames": 20,
        "image_width": SIZE[0],
        "image_height": SIZE[1],
        "board_width": 9,
        "square_size": 0.025,
        "flags": 0,
        **more,
        "camera_matrix": matrix(3, 3, MATRIX),
        "distortion_coefficients": matrix(len(coefficients), 1, coefficients),
        "avg_reprojection_error": 0.21,
    }


def ros(model: str, coefficients: list[float]) -> dict[str, Any]:
    table = opencv(coefficients)
    sizes = {key: table[key] for key in ("image_width", "image_height")}
    plain = {name: {key: table[name][key] for key in ("rows", "cols", "data")} for name in ("camera_matrix",)}
    return {
        **sizes,
        "camera_name": "head",
        **plain,
        "distortion_model": model,
        "distortion_coefficients": {"rows": 1, "cols": len(coefficients), "data": coefficients},
        "rectification_matrix": {"rows": 3, "cols": 3, "data": [1, 0, 0, 0, 1, 0, 0, 0, 1]},
        "projection_matrix": {"rows": 3, "cols": 4, "data": [FX, 0, CX, 0, 0, FY, CY, 0, 0, 0, 1, 0]},
    }


def message(names: str, model: str, coefficients: list[float]) -> dict[str, Any]:
    """A camera_info as ``rostopic echo`` prints it."""
    d, k, r, p = names
    return {
        "header": {"stamp": {"secs": 1, "nsecs": 5}, "frame_id": "cam"},
        "height": SIZE[1],
        "width": SIZE[0],
        "distortion_model": model,
        d: coefficients,
        k: MATRIX,
        r: [1, 0, 0, 0, 1, 0, 0, 0, 1],
        p: [FX, 0, CX, 0, 0, FY, CY, 0, 0, 0, 1, 0],
        "binning_x": 0,
        "binning_y": 0,
        "roi": {"x_offset": 0, "y_offset": 0, "height": 0, "width": 0, "do_rectify": False},
    }


def kalibr(model: str, coefficients: list[float]) -> dict[str, Any]:
    return {
        "cam0": {
            "cam_overlaps": [1],
            "camera_model": "pinhole",
            "intrinsics": [FX, FY, CX, CY],
            "distortion_model": model,
            "distortion_coeffs": coefficients,
            "resolution": list(SIZE),
            "rostopic": "/cam0/image_raw",
            "T_cam_imu": np.eye(4).tolist(),
            "timeshift_cam_imu": 0.01,
        }
    }


EUROC = {
    "sensor_type": "camera",
    "comment": "VI-Sensor cam0",
    "T_BS": {"cols": 4, "rows": 4, "data": TURN["data"]},
    "rate_hz": 20,
    "resolution": list(SIZE),
    "camera_model": "pinhole",
    "intrinsics": [FX, FY, CX, CY],
    "distortion_model": "radial-tangential",
    "distortion_coefficients": BROWN,
}
VINS = {
    "model_type": "PINHOLE",
    "camera_name": "camera",
    "image_width": SIZE[0],
    "image_height": SIZE[1],
    "distortion_parameters": dict(zip(("k1", "k2", "p1", "p2"), BROWN, strict=True)),
    "projection_parameters": {"fx": FX, "fy": FY, "cx": CX, "cy": CY},
}
VINS_FISHEYE = {
    "model_type": "KANNALA_BRANDT",
    "camera_name": "camera",
    "image_width": SIZE[0],
    "image_height": SIZE[1],
    "projection_parameters": dict(zip(("k2", "k3", "k4", "k5"), FISHEYE, strict=True))
    | {"mu": FX, "mv": FY, "u0": CX, "v0": CY},
}
XI = 1.1
OMNI = [-0.05, 0.02, 0.0003, -0.0002]
VINS_MEI = {
    "model_type": "MEI",
    "camera_name": "camera",
    "image_width": SIZE[0],
    "image_height": SIZE[1],
    "mirror_parameters": {"xi": XI},
    "distortion_parameters": dict(zip(("k1", "k2", "p1", "p2"), OMNI, strict=True)),
    "projection_parameters": {"gamma1": FX, "gamma2": FY, "u0": CX, "v0": CY},
}
VINS_MONO = {
    "imu_topic": "/imu0",
    "image_topic": "/cam0/image_raw",
    "output_path": "/home/user/",
    **VINS,
    "estimate_extrinsic": 0,
    "extrinsicRotation": matrix(3, 3, np.eye(3).ravel().tolist()),
    "max_cnt": 150,
    "freq": 10,
    "acc_n": 0.08,
    "td": 0.0,
    "rolling_shutter": 0,
    "rolling_shutter_tr": 0,
}


def orb_slam(kind: str | None, prefix: str, coefficients: dict[str, float]) -> dict[str, Any]:
    return {
        **({"File.version": "1.0"} if prefix == "Camera1." else {}),
        **({} if kind is None else {"Camera.type": kind}),
        f"{prefix}fx": FX,
        f"{prefix}fy": FY,
        f"{prefix}cx": CX,
        f"{prefix}cy": CY,
        **{prefix + key: value for key, value in coefficients.items()},
        "Camera.width": SIZE[0],
        "Camera.height": SIZE[1],
        "Camera.fps": 20,
        "Camera.RGB": 1,
        "ORBextractor.nFeatures": 1000,
        "Viewer.KeyFrameSize": 0.05,
    }


def transforms(model: str, coefficients: dict[str, float]) -> dict[str, Any]:
    frame = {"file_path": "images/1.jpg", "transform_matrix": np.eye(4).tolist(), "sharpness": 40.0}
    return {
        "camera_model": model,
        "fl_x": FX,
        "fl_y": FY,
        "cx": CX + 0.5,
        "cy": CY + 0.5,
        "w": SIZE[0],
        "h": SIZE[1],
        **coefficients,
        "aabb_scale": 16,
        "frames": [frame, {**frame, "file_path": "images/2.jpg"}],
    }


METASHAPE = {
    "calibration": {
        "projection": "frame",
        "width": SIZE[0],
        "height": SIZE[1],
        "f": FY,
        "cx": CX + 0.5 - SIZE[0] / 2,
        "cy": CY + 0.5 - SIZE[1] / 2,
        "b1": FX - FY,
        "k1": BROWN5[0],
        "k2": BROWN5[1],
        "k3": BROWN5[4],
        "p1": BROWN5[3],
        "p2": BROWN5[2],
        "date": "2026-11-03T10:00:00Z",
    }
}
METASHAPE_FISHEYE = {
    "calibration": {
        **{key: METASHAPE["calibration"][key] for key in ("width", "height", "f", "cx", "cy", "b1")},
        "projection": "fisheye",
        **dict(zip(("k1", "k2", "k3", "k4"), FISHEYE, strict=True)),
    }
}
K4 = ("k1", "k2", "k3", "k4")
PP = ("k1", "k2", "p1", "p2")
WRITERS: dict[str, tuple[str, dict[str, Any], list[float], str]] = {
    "opencv": ("yml", opencv(BROWN5), BROWN5, "perspective"),
    "opencv rational": ("yml", opencv(RATIONAL), RATIONAL, "perspective"),
    "opencv fisheye": ("yml", opencv(FISHEYE, fisheye_model=1), FISHEYE, "fisheye"),
    "opencv xml": ("xml", {"opencv_storage": opencv(BROWN5)}, BROWN5, "perspective"),
    "opencv json": ("json", opencv(BROWN5), BROWN5, "perspective"),
    "ros": ("yaml", ros("plumb_bob", BROWN5), BROWN5, "perspective"),
    "ros rational": ("yaml", ros("rational_polynomial", RATIONAL), RATIONAL, "perspective"),
    "ros equidistant": ("yaml", ros("equidistant", FISHEYE), FISHEYE, "fisheye"),
    "ros 1 message": ("yaml", message("DKRP", "plumb_bob", BROWN5), BROWN5, "perspective"),
    "ros 2 message": ("yaml", message("dkrp", "equidistant", FISHEYE), FISHEYE, "fisheye"),
    "kalibr": ("yaml", kalibr("radtan", BROWN), BROWN, "perspective"),
    "kalibr equidistant": ("yaml", kalibr("equidistant", FISHEYE), FISHEYE, "fisheye"),
    "kalibr omni": ("yaml", kalibr("radtan", OMNI), OMNI, "omni"),
    "vins mei": ("yml", VINS_MEI, OMNI, "omni"),
    "euroc": ("yaml", EUROC, BROWN, "perspective"),
    "vins": ("yml", VINS, BROWN, "perspective"),
    "vins kannala brandt": ("yml", VINS_FISHEYE, FISHEYE, "fisheye"),
    "vins mono": ("yml", VINS_MONO, BROWN, "perspective"),
    "orb-slam2": ("yml", orb_slam(None, "Camera.", dict(zip((*PP, "k3"), BROWN5, strict=True))), BROWN5, "perspective"),
    "orb-slam3": ("yml", orb_slam("PinHole", "Camera1.", dict(zip(PP, BROWN, strict=True))), BROWN, "perspective"),
    "orb-slam3 kb8": (
        "yml",
        orb_slam("KannalaBrandt8", "Camera1.", dict(zip(K4, FISHEYE, strict=True))),
        FISHEYE,
        "fisheye",
    ),
    "nerfstudio": ("json", transforms("OPENCV", dict(zip(PP, BROWN, strict=True))), BROWN, "perspective"),
    "nerfstudio fisheye": (
        "json",
        transforms("OPENCV_FISHEYE", dict(zip(K4, FISHEYE, strict=True))),
        FISHEYE,
        "fisheye",
    ),
    "metashape": ("xml", METASHAPE, BROWN5, "perspective"),
    "metashape fisheye": ("xml", METASHAPE_FISHEYE, FISHEYE, "fisheye"),
}


WRITERS["kalibr omni"][1]["cam0"].update(camera_model="omni", intrinsics=[XI, FX, FY, CX, CY])


def xml(tag: str, value: Any) -> str:
    if isinstance(value, dict) and "rows" in value and "data" in value:
        inside = "".join(xml(key, part) for key, part in value.items())
        return f'<{tag} type_id="opencv-matrix">{inside}</{tag}>\n'
    if isinstance(value, dict):
        return f"<{tag}>\n{''.join(xml(key, part) for key, part in value.items())}</{tag}>\n"
    return f"<{tag}>{' '.join(map(str, value)) if isinstance(value, list) else value}</{tag}>\n"


def written(kind: str, tree: Any) -> str:
    if kind == "json":
        return json.dumps(tree, indent=1)
    if kind == "xml":
        return "".join(xml(tag, value) for tag, value in tree.items())
    text = yaml.safe_dump(tree, sort_keys=False)
    return f"%YAML:1.0\n---\n{text}" if kind == "yml" else text


def read(tmp_path: Path, kind: str, text: str) -> tuple[Calibration, tuple[str, ...]]:
    path = tmp_path / f"camera.{kind}"
    path.write_text(text)
    camera = parse_camera(str(path))
    return camera, camera.notes


def expected(coefficients: list[float], model: str) -> np.ndarray:
    points = np.concatenate([GRID, np.ones((len(GRID), 1))], axis=1)[:, None]
    if model == "omni":  # cv2.omnidir.projectPoints
        points /= np.linalg.norm(points, axis=2, keepdims=True)
        points[..., 2] += XI
    project = cv2.fisheye.projectPoints if model == "fisheye" else cv2.projectPoints
    pixels, _ = project(points, np.zeros(3), np.zeros(3), K, np.array(coefficients))
    return np.asarray(pixels).reshape(-1, 2) + 0.5


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_of_each_program_is_applied_as_opencv_does(tmp_path: Path, writer: str) -> None:
    kind, tree, coefficients, model = WRITERS[writer]
    camera, notes = read(tmp_path, kind, written(kind, tree))
    assert camera.size == SIZE and camera.distortion == model
    assert all("k3 not stated" in note for note in notes)
    assert np.abs(Undistorter(camera, SIZE).to_source(GRID) - expected(coefficients, model)).max() < 0.1


def mutants_of(writer: str) -> list[Mutant[str]]:
    kind, tree, _, _ = WRITERS[writer]
    changed = [*of_tree(tree), *of_scalars(tree, ("abc", None))]
    changed = [m for m in changed if kind != "xml" or len(m.content) == 1]  # a root
    mutants = [Mutant(m.change, m.names, written(kind, m.content)) for m in changed if m.content]
    if kind not in ("json", "xml"):
        mutants += [m for m in of_lines(written(kind, tree)) if "commented" in m.change]
    return mutants


@pytest.mark.parametrize("writer", WRITERS)
def test_a_changed_file_is_never_another_camera_silently(tmp_path: Path, writer: str) -> None:
    kind, tree, _, _ = WRITERS[writer]
    camera, _ = read(tmp_path, kind, written(kind, tree))
    errors = (InputError, ConfigError)
    assert silently_other(lambda text: read(tmp_path, kind, text), mutants_of(writer), camera, errors) == []


@pytest.mark.parametrize("writer", ["kalibr omni", "vins kannala brandt", "opencv rational"])
def test_pixels_go_back_to_their_rays(tmp_path: Path, writer: str) -> None:
    kind, tree, _, _ = WRITERS[writer]
    lens = Undistorter(read(tmp_path, kind, written(kind, tree))[0], SIZE)
    k = lens.intrinsics
    rays = (np.stack(np.meshgrid([30.0, 376, 700], [40.0, 240, 430]), axis=-1).reshape(-1, 2) - (k.cx, k.cy)) / k.fx
    assert np.abs(lens.from_source(lens.to_source(rays)) - (rays * k.fx + (k.cx, k.cy))).max() < 0.1


def test_an_omnidirectional_camera_turns_with_its_images() -> None:
    camera = Calibration(FX, FY, CX, CY, "omni", (XI, *OMNI), SIZE)
    turned = camera.turned(6)  # by 90 degrees, clockwise
    x, y = GRID.T
    px, py = Undistorter(camera, SIZE).to_source(GRID).T
    expected = np.stack([SIZE[1] - py, px], axis=1)
    assert np.abs(Undistorter(turned, SIZE[::-1]).to_source(np.stack([-y, x], axis=1)) - expected).max() < 1e-6


MODELS = [
    ("SIMPLE_PINHOLE", 0, [FX, CX, CY]),
    ("PINHOLE", 1, [FX, FY, CX, CY]),
    ("SIMPLE_RADIAL", 2, [FX, CX, CY, -0.1]),
    ("RADIAL", 3, [FX, CX, CY, -0.1, 0.02]),
    ("OPENCV", 4, [FX, FY, CX, CY, *BROWN]),
    ("OPENCV_FISHEYE", 5, [FX, FY, CX, CY, *FISHEYE]),
    ("FULL_OPENCV", 6, [FX, FY, CX, CY, *RATIONAL]),
    ("SIMPLE_RADIAL_FISHEYE", 8, [FX, CX, CY, 0.01]),
    ("RADIAL_FISHEYE", 9, [FX, CX, CY, 0.01, -0.002]),
]


@pytest.mark.parametrize(("model", "number", "values"), MODELS)
def test_text_and_binary_files_of_colmap_say_the_same(
    tmp_path: Path, model: str, number: int, values: list[float]
) -> None:
    pycolmap = pytest.importorskip("pycolmap")
    text = f"# a comment\n1 {model} {SIZE[0]} {SIZE[1]} {' '.join(map(str, values))}  # another\n"
    camera, _ = read(tmp_path, "txt", text)
    row = struct.pack(f"<QiiQQ{len(values)}d", 1, 1, number, *SIZE, *values)
    (tmp_path / "cameras.bin").write_bytes(row)
    assert parse_camera(str(tmp_path / "cameras.bin")) == camera
    theirs = pycolmap.Camera(model=model, width=SIZE[0], height=SIZE[1], params=values)
    pixels = theirs.img_from_cam(np.concatenate([GRID, np.ones((len(GRID), 1))], axis=1))
    assert np.abs(Undistorter(camera, SIZE).to_source(GRID) - pixels).max() < 0.1
    words = text.split()[3:-2]
    for at in range(len(words)):
        for changed in (words[:at] + words[at + 1 :], [*words[:at], words[at] + "x", *words[at + 1 :]]):
            with pytest.raises((InputError, ConfigError)):
                read(tmp_path, "txt", " ".join(changed) + "\n")
    with pytest.raises(InputError, match="camera model FOV"):
        (tmp_path / "cameras.bin").write_bytes(row[:12] + struct.pack("<i", 7) + row[16:32] + bytes(40))
        parse_camera(str(tmp_path / "cameras.bin"))


def document(*calibrations: dict[str, Any]) -> str:
    """A Metashape document with one sensor for each calibration."""
    sensors = ""
    for number, table in enumerate(calibrations):
        inside = "".join(
            xml(key, value) for key, value in table.items() if key not in ("projection", "width", "height")
        )
        size = f'<resolution width="{SIZE[0]}" height="{SIZE[1]}"/>'
        sensors += (
            f'<sensor id="{number}" label="FC330" type="frame">{size}<property name="pixel_width" value="0.0015"/>'
            f'<calibration type="frame" class="initial">{size}<f>1</f></calibration>'
            f'<calibration type="{table["projection"]}" class="adjusted">{size}{inside}</calibration></sensor>'
        )
    return (
        f'<?xml version="1.0"?><document version="1.5.0"><chunk label="a" enabled="true"><sensors next_id="2">{sensors}'
        '</sensors><cameras next_id="1"><camera id="0"><transform>1 0</transform></camera></cameras></chunk></document>'
    )


def test_a_document_of_metashape_gives_its_adjusted_cameras(tmp_path: Path) -> None:
    camera, _ = read(tmp_path, "xml", document(METASHAPE["calibration"]))
    alone, _ = read(tmp_path, "xml", written("xml", METASHAPE))
    assert camera == alone
    both, _ = read(tmp_path, "xml", document(METASHAPE["calibration"], METASHAPE_FISHEYE["calibration"] | {"f": 300}))
    with pytest.raises(InputError, match="2 different cameras"):
        both.for_size(SIZE)


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("yml", written("yml", VINS) + "model_type: MEI\n", "model_type stands there twice"),
        ("yaml", written("yaml", kalibr("radtan", BROWN)).replace("pinhole", "ds"), "camera_model ds"),
        ("xml", written("xml", METASHAPE).replace("<b1>", "<b2>7</b2><b1>"), "b2, which moves pixels"),
        ("xml", written("xml", METASHAPE).replace("<b1>", "<k4>7</k4><b1>"), "k4 is not 0"),
        ("xml", written("xml", METASHAPE).replace("frame", "spherical"), "projection spherical"),
        ("xml", "<!DOCTYPE a [<!ENTITY b 'c'>]>" + written("xml", METASHAPE), "DOCTYPE"),
        ("yaml", written("yaml", ros("plumb_bob", BROWN5)) + "lens_shift: 0.2\n", "lens_shift"),
        ("json", json.dumps({**opencv(BROWN5), "skew": 2.0}), "skew"),
        ("yml", written("yml", orb_slam("PinHole", "Camera.", {})) + "LEFT.K: 3\n", r"LEFT\.K"),
        ("json", json.dumps({**transforms("OPENCV", {}), "fl_x": 300.0, "camera_angle_x": 0.5}), "contradict"),
    ],
)
def test_what_cannot_be_applied_is_refused_by_its_name(tmp_path: Path, kind: str, text: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read(tmp_path, kind, text)


@pytest.mark.parametrize(
    ("kind", "text", "named"),
    [
        ("yml", written("yml", {**VINS_MONO, "rolling_shutter": 1}), "rolling_shutter"),
        ("json", json.dumps(transforms("OPENCV", {})), "k1, k2, p1, p2"),
        ("yaml", "K: [[300, 0, 192], [0, 300, 144], [0, 0, 1]]\nD: [0, 0, 0, 0, 0]\n", "no image size"),
    ],
)
def test_what_a_file_leaves_open_is_a_warning_of_the_source(tmp_path: Path, kind: str, text: str, named: str) -> None:
    write_images(tmp_path / "images", ["1.png"], SIZE)
    (tmp_path / f"camera.{kind}").write_text(text)
    # As the command passes it on.
    camera = parse_camera(str(tmp_path / f"camera.{kind}")).text()
    with open_source(str(tmp_path / "images"), FrameChoice(camera=camera)) as source:
        assert any(named in line for line in source.warnings)


@pytest.mark.parametrize("kind", ["yml", "xml", "json"])
def test_what_opencv_writes_with_comments_is_read(tmp_path: Path, kind: str) -> None:
    storage = cv2.FileStorage(str(tmp_path / f"a.{kind}"), cv2.FILE_STORAGE_WRITE)
    storage.write("flags", 2)
    storage.writeComment("flags: +fix_aspectRatio", append=False)
    for name, value in (("image_width", SIZE[0]), ("image_height", SIZE[1])):
        storage.write(name, value)
    storage.write("camera_matrix", K)
    storage.write("distortion_coefficients", np.array(BROWN5))
    storage.write("image_points", np.zeros((2, 3, 2), np.float32))
    storage.release()
    camera = parse_camera(str(tmp_path / f"a.{kind}"))
    assert camera.size == SIZE and np.abs(Undistorter(camera, SIZE).to_source(GRID) - expected(BROWN5, "")).max() < 0.1


def test_values_in_flow_style_as_words_and_in_utf_16(tmp_path: Path) -> None:
    text = "{image_width: '752', image_height: 480.0, K: [[458.5, 0, 367.5], [0, +457.25, 248.25], [0, 0, 1.]], D: []}"
    (tmp_path / "a.yaml").write_text(text, encoding="utf-16")
    camera = parse_camera(str(tmp_path / "a.yaml"))
    assert (camera.fx, camera.fy, camera.size) == (FX, FY, SIZE)
