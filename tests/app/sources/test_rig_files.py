"""Rigs of several cameras: their files, and their frames as views of one pinhole camera."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import yaml

from stream_recon.app.core.rig import VIEW_STRIDE, view_of
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.images import open_images
from stream_recon.app.sources.rig_files import read_rig
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.media import write_video
from tests.mutations import of_lines, of_scalars, of_tree, silently_other

T_SECOND_FIRST = np.array([[0, 0, -1, 0.1], [0, 1, 0, 0.02], [1, 0, 0, -0.3], [0, 0, 0, 1]], np.float64)
KALIBR = f"""cam0:
  camera_model: pinhole
  intrinsics: [90, 90, 63.5, 47.5]
  distortion_model: radtan
  distortion_coeffs: [0, 0, 0, 0]
  resolution: [128, 96]
  rostopic: /cam0/image_raw
cam1:
  T_cn_cnm1: {T_SECOND_FIRST.tolist()}
  camera_model: pinhole
  intrinsics: [70, 70, 63.5, 47.5]
  distortion_model: radtan
  distortion_coeffs: [0, 0, 0, 0]
  resolution: [128, 96]
"""


def colmap() -> list[dict[str, Any]]:
    """The same rig as COLMAP states it, the second camera first."""
    half = float(np.sqrt(0.5))
    pose = {"cam_from_rig_rotation": [half, 0, -half, 0], "cam_from_rig_translation": [0.1, 0.02, -0.3]}
    pinhole = {"camera_model_name": "PINHOLE"}
    second = {"image_prefix": "cam1/", **pose, **pinhole, "camera_params": [70, 70, 64, 48]}
    first = {"image_prefix": "cam0/", "ref_sensor": True, **pinhole, "camera_params": [90, 90, 64, 48]}
    return [{"cameras": [second, first]}]


T_BODY_CAMERA = np.array([[0, -1, 0, 0.5], [1, 0, 0, -0.2], [0, 0, 1, 0.1], [0, 0, 0, 1]], np.float64)
KITTI = """P0: 718 0 607 0 0 718 185 0 0 0 1 0
P1: 718 0 607 -386 0 718 185 0 0 0 1 0
P2: 718 0 607 45 0 718 185 -0.1 0 0 1 0.005
P3: 718 0 607 -337 0 718 185 2.3 0 0 1 0.003
Tr: 0 -1 0 0 0 0 -1 0 1 0 0 0
"""


def euroc(folder: Path) -> Path:
    """The rig of `KALIBR` as EuRoC states it."""
    chain = yaml.safe_load(KALIBR)
    for name, T in (("cam0", np.eye(4)), ("cam1", invert_pose(T_SECOND_FIRST))):
        (folder / name).mkdir(parents=True)
        stated = {key: value for key, value in chain[name].items() if key not in ("T_cn_cnm1", "rostopic")}
        T_BS = {"cols": 4, "rows": 4, "data": (T_BODY_CAMERA @ T).ravel().tolist()}
        (folder / name / "sensor.yaml").write_text(yaml.safe_dump({"sensor_type": "camera", "T_BS": T_BS, **stated}))
    return folder


def written(folder: Path, content: object) -> Path:
    path = folder / "rig.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_files_of_kalibr_colmap_and_euroc_give_one_rig(tmp_path: Path) -> None:
    for content in (KALIBR, colmap(), None):
        first, second = read_rig(euroc(tmp_path / "mav0") if content is None else written(tmp_path, content))
        assert (first.name, second.name) == ("cam0", "cam1")
        np.testing.assert_allclose(first.T_first_camera, np.eye(4), atol=1e-12)
        np.testing.assert_allclose(second.T_first_camera, invert_pose(T_SECOND_FIRST), atol=1e-9)
        assert (first.camera.fx, first.camera.cx, second.camera.fx) == (90, 64, 70)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (KALIBR.replace("T_cn_cnm1", "T_cn_cnm2"), "no T_cn_cnm1"),
        (KALIBR.replace("0.02", "0.02, 1"), "T_cn_cnm1"),
        (KALIBR.replace("[[0.0, 0.0, -1.0", "[[0.0, 0.0, -2.0"), "rigid"),
        (KALIBR.partition("cam1:")[0], "two or more"),
        (KALIBR + "unit: mm\n", "'unit'"),
        (KALIBR.replace("cam1:", "cam2:"), "cam0, cam2"),
        (KALIBR.replace("  rostopic", f"  T_cn_cnm1: {np.eye(4).tolist()}\n  rostopic"), "cam0 has a T_cn_cnm1"),
        (KALIBR.replace("radtan", "bent"), "bent"),
        ([*colmap(), *colmap()], "2 rigs"),
        ([{"cameras": colmap()[0]["cameras"], "unit": "mm"}], "'unit'"),
        ([{"cameras": [each | {"ref_sensor": True} for each in colmap()[0]["cameras"]]}], "ref_sensor"),
        ([{"cameras": [each | {"turn": 1} for each in colmap()[0]["cameras"]]}], "'turn'"),
        ([{"cameras": [each | {"camera_model_name": "FOV"} for each in colmap()[0]["cameras"]]}], "FOV"),
        ([{"cameras": [{"image_prefix": "a"}, {"image_prefix": "b"}]}], "needs image_prefix"),
        ("nothing", "rig"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_rig(written(tmp_path, content))


def test_a_camera_of_euroc_without_its_pose_is_refused(tmp_path: Path) -> None:
    file = euroc(tmp_path) / "cam1/sensor.yaml"
    for old, new, message in (("T_BS", "T_SB", "no T_BS"), ("- 1.0", "- 2.0", "T_BS is no rigid transform")):
        text = file.read_text()
        file.write_text(text.replace(old, new))
        with pytest.raises(InputError, match=f"cam1/sensor.yaml.*{message}"):
            read_rig(tmp_path)
        file.write_text(text)
    with pytest.raises(InputError, match="0 cameras"):
        read_rig(tmp_path / "cam0")


def test_the_pair_of_kitti_is_that_whose_images_there_are(tmp_path: Path) -> None:
    file = tmp_path / "calib.txt"
    file.write_text(KITTI)
    with pytest.raises(InputError, match="no images of a pair"):
        read_rig(file)
    for pair, baseline in (((0, 1), 386 / 718), ((2, 3), 382 / 718)):
        for k in pair:
            (tmp_path / f"image_{k}").mkdir()
        first, second = read_rig(file)
        assert (first.name, second.name) == tuple(f"image_{k}" for k in pair)
        assert second.T_first_camera[0, 3] == pytest.approx(baseline, rel=0.01)
        assert (second.camera.fx, second.camera.cx, second.camera.cy) == (718, 607.5, 185.5)
    for changed in (KITTI.replace("P3", "P4"), KITTI.replace("-337 ", ""), KITTI.replace("45 0 718", "45 1 718")):
        file.write_text(changed)
        with pytest.raises(InputError, match="is no camera matrix"):
            read_rig(file)
    file.write_text(KITTI.replace("-337", "nan"))
    with pytest.raises(InputError):
        read_rig(file)


def reversed_blocks() -> str:
    first, _, second = KALIBR.partition("cam1:")
    return f"cam1:{second}{first}"


def read(folder: Path, content: object) -> tuple[object, tuple[str, ...]]:
    cameras = read_rig(written(folder, content))
    notes = tuple(note for camera in cameras for note in camera.camera.notes)
    poses = [camera.T_first_camera.round(9).tolist() for camera in cameras]
    return ([(c.name, c.camera.fx, c.camera.cx, c.camera.coefficients) for c in cameras], poses), notes


def test_no_change_of_an_element_is_silent(tmp_path: Path) -> None:
    expected, _ = read(tmp_path, colmap())
    assert silently_other(partial(read, tmp_path), of_tree(colmap(), lists=False), expected, InputError) == []
    expected, _ = read(tmp_path, KALIBR)
    tree = yaml.safe_load(KALIBR)
    changed = [*of_tree(tree, lists=False), *of_scalars(tree), *(m for m in of_lines(KALIBR) if "comment" in m.change)]
    mutants = [replace(mutant, names=(*mutant.names, "two or more")) for mutant in changed]
    assert silently_other(partial(read, tmp_path), mutants, expected, InputError) == []
    assert read(tmp_path, reversed_blocks())[0] == expected, "cameras are known by their numbers"


def circles(focal: float) -> np.ndarray:
    """Circles about the middle, by the angle from the axis, as a pinhole camera sees them."""
    y, x = np.indices((96, 128)) + 0.5
    angle = np.hypot(x - 64, y - 48) / focal
    return np.repeat((127 + 100 * np.sin(25 * angle))[..., None], 3, axis=2).astype(np.uint8)


def test_images_of_a_rig_are_views_of_one_pinhole_camera(tmp_path: Path) -> None:
    for name, focal, numbers in (("cam0", 90.0, (1, 2, 3, 5)), ("cam1", 70.0, (0, 2, 3, 4, 5))):
        (tmp_path / name).mkdir()
        for number in numbers:
            cv2.imwrite(str(tmp_path / name / f"{number:03d}.png"), circles(focal))
    choice = FrameChoice(rig=str(written(tmp_path, KALIBR)))
    with open_source(str(tmp_path), choice) as source:
        frames, rig, k, warnings = list(source), source.rig, source.intrinsics, source.warnings
    assert [(view_of(frame.index), frame.index % VIEW_STRIDE) for frame in frames] == [
        *((0, number) for number in range(4)),
        *((1, number) for number in (1, 2, 3)),
    ], "images of one moment have one number"
    assert "1 images of cam0 have no partner in cam1" in warnings
    assert k is not None and k.fx == 90 and rig is not None and not rig.is_central
    np.testing.assert_allclose(rig.T_body_view[1], invert_pose(T_SECOND_FIRST), atol=1e-9)
    for frame in frames:
        difference = np.abs(frame.rgb.astype(float) - circles(90.0))[12:-12, 16:-16]
        assert difference.mean() < 3, "both show the same angles"


@pytest.mark.parametrize("times", [None, (1.0, 1.25, 1.5)])
def test_lists_of_images_are_read_as_folders_are(tmp_path: Path, times: tuple[float, ...] | None) -> None:
    draw = np.random.default_rng(0)
    images = [[draw.integers(0, 255, (96, 128, 3), np.uint8) for _ in range(2)] for _ in range(3)]
    for k, name in np.ndindex(3, 2):
        (tmp_path / f"cam{name}").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / f"cam{name}/{k}.png"), images[k][name][..., ::-1])
    choice = FrameChoice(rig=str(written(tmp_path, KALIBR)))
    moments = images if times is None else list(zip(times, images, strict=True))
    with open_source(str(tmp_path), choice) as expected, open_images(moments, choice) as source:
        assert source.frame_hint == expected.frame_hint == 6 and not source.warnings
        for frame, other in zip(source, expected, strict=True):
            np.testing.assert_array_equal(frame.rgb, other.rgb)
            number = frame.index % VIEW_STRIDE
            assert frame.index == other.index and frame.segment == other.segment
            assert frame.timestamp == pytest.approx(number / 30 if times is None else times[number])


IMAGE = np.zeros((96, 128, 3), np.uint8)


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        (IMAGE, "at moment 0: 1; give a list of 2, by cam0, cam1"),
        ([IMAGE], "at moment 0: 1; give a list of 2"),
        ((0.5, [IMAGE, IMAGE, IMAGE]), "at moment 0: 3; give a list of 2"),
        ([IMAGE, None], "not NoneType"),
        ([IMAGE, IMAGE / 255], "not float64"),
        ([IMAGE, IMAGE[:, :96]], "image 0 of cam1.*128x96.*96x96"),
    ],
)
def test_images_that_are_not_those_of_the_rig_are_refused_by_what_came(
    tmp_path: Path, moment: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        open_images([moment], FrameChoice(rig=str(written(tmp_path, KALIBR))))


def test_images_of_a_rig_are_refused_where_they_change_or_come_once(tmp_path: Path) -> None:
    choice = FrameChoice(rig=str(written(tmp_path, KALIBR)))
    with (
        open_images([[IMAGE, IMAGE], [IMAGE, IMAGE[::2, ::2]]], choice) as source,
        pytest.raises(InputError, match="image 1 of cam1 is 64x48"),
    ):
        list(source)
    with pytest.raises(ConfigError, match="not an iterator"):
        open_images(iter([[IMAGE, IMAGE]]), choice)
    with pytest.raises(InputError, match="no T_cn_cnm1"):
        open_images([[IMAGE, IMAGE]], FrameChoice(rig=str(written(tmp_path, KALIBR.replace("T_cn_cnm1", "T")))))


def test_films_of_a_rig_are_matched_by_time(tmp_path: Path) -> None:
    for name, frames in (("cam0.mp4", 6), ("cam1.mp4", 8)):
        write_video(tmp_path / name, frames, size=(128, 96))
    with open_source(str(tmp_path), FrameChoice(rig=str(written(tmp_path, colmap())), stride=2)) as source:
        assert [frame.index % VIEW_STRIDE for frame in source] == 2 * [0, 2, 4]


def test_a_sequence_of_euroc_may_be_given_with_or_without_mav0(tmp_path: Path) -> None:
    body = euroc(tmp_path / "MH_01/mav0")
    for name in ("cam0", "cam1"):
        (body / name / "data").mkdir()
        for number in range(2):
            cv2.imwrite(str(body / name / f"data/{number}.png"), circles(90.0 + number))
    for folder in (body, body.parent):
        with open_source(str(folder), FrameChoice(rig=str(folder))) as source:
            assert [view_of(frame.index) for frame in source] == [0, 0, 1, 1]


def test_what_a_rig_lacks_is_said(tmp_path: Path) -> None:
    rig = str(written(tmp_path, KALIBR))
    with pytest.raises(InputError, match="no folder or film cam0"):
        open_source(str(tmp_path), FrameChoice(rig=rig))
    with pytest.raises(ConfigError, match="leave out --intrinsics"):
        open_source(str(tmp_path), FrameChoice(rig=rig, camera="1,1,1,1"))
