import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pycolmap
import pytest

from stream_recon.app.core.types import ImageTransform, Intrinsics
from stream_recon.app.export.view import gltf_axes, pinhole_view
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import MESH, RUN_NAME
from tests.app.export.rooms import pixel_grid, write_room

SOURCE = Intrinsics(300.0, 300.0, 200.0, 150.0)
SIZE = (400, 300)
K1 = [-0.15, -0.02, 0.02, 0.15]


@pytest.mark.parametrize("k1", K1)
def test_pixels_there_and_back(k1: float) -> None:
    view = pinhole_view(SIZE, replace(SOURCE, k1=k1)).scaled(250)
    assert max(view.size) == 250
    pixels = pixel_grid(*view.size).reshape(-1, 2)
    assert view.to_export(view.to_source(pixels)) == pytest.approx(pixels, abs=1e-6)


@pytest.mark.parametrize("k1", K1)
def test_the_lens_is_that_of_colmap(k1: float) -> None:
    camera = pycolmap.Camera(model="SIMPLE_RADIAL", width=400, height=300, params=[300, 200, 150, k1])
    view = pinhole_view(SIZE, replace(SOURCE, k1=k1))
    pixels = pixel_grid(*view.size)[::17, ::13].reshape(-1, 2)
    k = view.intrinsics
    rays = np.concatenate([(pixels - (k.cx, k.cy)) / (k.fx, k.fy), np.ones((len(pixels), 1))], axis=1)
    assert view.to_source(pixels) == pytest.approx(camera.img_from_cam(rays), abs=1e-6)


@pytest.mark.parametrize("k1", K1)
def test_an_undistorted_image_is_as_large_as_possible_without_blanks(k1: float) -> None:
    view = pinhole_view(SIZE, replace(SOURCE, k1=k1))
    (width, height), corners = view.size, [[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0], [0, 0.5]]
    seen = view.to_source(np.array(corners) * (width, height))
    assert seen.min() > -1e-6 and (seen <= np.array(SIZE) + 1e-6).all()
    # At least two opposite borders are reached, but for whole pixels.
    larger = view.to_source(np.array(corners) * (width + 4, height + 4) - 2)
    assert larger.min() < 0
    assert (view.intrinsics.cx, view.intrinsics.cy) == (width / 2, height / 2)
    assert view.intrinsics.fx == SOURCE.fx


def test_a_fisheye_image_is_undistorted_as_by_colmap() -> None:
    source = replace(SOURCE, k1=0.02, k2=-0.01, fisheye=True)
    camera = pycolmap.Camera(model="RADIAL_FISHEYE", width=400, height=300, params=[300, 200, 150, 0.02, -0.01])
    view = pinhole_view(SIZE, source)
    pixels = pixel_grid(*view.size)[::17, ::13].reshape(-1, 2)
    k = view.intrinsics
    rays = np.concatenate([(pixels - (k.cx, k.cy)) / (k.fx, k.fy), np.ones((len(pixels), 1))], axis=1)
    assert view.to_source(pixels) == pytest.approx(camera.img_from_cam(rays), abs=1e-6)
    assert view.size[0] > SIZE[0]


def test_images_are_moved_as_pixels_are() -> None:
    # Brightness is the place: what a pixel shows says where it was taken from.
    ramp = np.repeat(np.rint(pixel_grid(*SIZE)[..., :1] * 0.6).astype(np.uint8), 3, axis=2)
    view = pinhole_view(SIZE, replace(SOURCE, k1=-0.1)).scaled(200)
    shown = view.image(ramp)
    assert shown.shape == (view.size[1], view.size[0], 3)
    off = (shown[..., 0] / 0.6 - view.to_source(pixel_grid(*view.size))[..., 0])[2:-2, 2:-2]
    assert abs(off.mean()) < 0.1 and np.abs(off).max() < 2  # pixels


def test_maps_of_the_network_follow_the_crop() -> None:
    view = pinhole_view(SIZE, SOURCE).scaled(100)
    transform = ImageTransform(SIZE, (40.0, 0.0, 320.0, 300.0), (160, 150))
    where = pixel_grid(160, 150).astype(np.float32)[..., 0] / transform.scale[0] + 40  # source x
    shown = view.from_network(where, transform)
    expected = view.to_source(pixel_grid(*view.size))[..., 0]
    assert shown[:, 15:-15] == pytest.approx(expected[:, 15:-15], abs=1e-2)
    assert (shown[:, :8] == 0).all()


def test_a_straight_image_is_left_as_it_is() -> None:
    rgb = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    assert pinhole_view(SIZE, SOURCE).image(rgb) is rgb


def test_small_distortion_leaves_images_as_they_are() -> None:
    view = pinhole_view((384, 288), Intrinsics(285, 285, 192, 144, k1=8e-5))
    rgb = np.random.default_rng(0).integers(0, 255, (288, 384, 3)).astype(np.uint8)
    assert view.size == (384, 288) and view.intrinsics == Intrinsics(285, 285, 192, 144)
    assert view.image(rgb) is rgb


@pytest.mark.parametrize("k1", [-0.08, 0.003, 0.06])
def test_no_image_is_moved_by_half_a_pixel(k1: float) -> None:
    """Near the centre, where there is no distortion, pixels are those of the source, not blurred."""
    source = np.random.default_rng(0).integers(0, 255, (289, 384, 3)).astype(np.uint8)
    view = pinhole_view((384, 289), Intrinsics(285, 285, 192, 144.5, k1=k1))
    shown = view.image(source)
    left, top = (384 - view.size[0]) // 2, (289 - view.size[1]) // 2
    middle = slice(top + view.size[1] // 2 - 4, None), slice(left + view.size[0] // 2 - 4, None)
    there = source[middle][:8, :8].astype(int)
    here = shown[view.size[1] // 2 - 4 :, view.size[0] // 2 - 4 :][:8, :8].astype(int)
    assert np.abs(here - there).max() <= 2


@pytest.mark.parametrize("cy", [120.0, 180.0])
def test_the_nearer_border_limits_the_view(cy: float) -> None:
    view = pinhole_view(SIZE, replace(SOURCE, cy=cy, k1=-0.05))
    top, bottom = view.to_source(np.array([[view.size[0] / 2, 0], [view.size[0] / 2, view.size[1]]]))[:, 1]
    assert top >= 0 and bottom <= SIZE[1] and 230 < bottom - top <= 240


@pytest.mark.parametrize("damaged", [None, [0, 0, 2], [0, 1], "up", ["east", 0, 1]])
def test_up_is_that_of_the_mesh_or_else_of_the_cameras(tmp_path: Path, damaged: object) -> None:
    write_room(tmp_path / "out", 6)
    cameras = read_result(tmp_path / "out").up
    assert cameras == pytest.approx([0, -1, 0], abs=1e-6)
    for up, expected in (([0.0, -0.8, 0.6], [0.0, -0.8, 0.6]), (damaged, cameras)):
        record = json.loads((tmp_path / "out" / RUN_NAME).read_text())
        replace_json(tmp_path / "out" / RUN_NAME, {**record, MESH: {"up": up}})
        result = read_result(tmp_path / "out")
        assert result.up == pytest.approx(expected)
        assert gltf_axes(result, "auto")[1] == pytest.approx(expected)
