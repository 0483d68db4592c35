"""Results of a lens that bends lines: what is stored, and how depth is read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.depth import write_depth
from stream_recon.app.result.folder import result_of
from stream_recon.app.result.tracks import SparseTracks, lens_numbers, read_tracks
from tests.app.result_files import write_tracks
from tests.app.slam.room import network_result

SIZE = (320, 240)
LENSES = [CameraModel(260.0, 160.0, 120.0, -0.2, 0.03), CameraModel(150.0, 160.0, 120.0, 0.02, fisheye=True)]


def bent(folder: Path, lens: CameraModel) -> tuple[FrameCamera, FrameCamera]:
    """Cameras of a stored frame without and with distortion; the scene is a plane that is tilted about y."""
    u, v = np.meshgrid(np.arange(SIZE[0]) + 0.5, np.arange(SIZE[1]) + 0.5)
    rays = lens.rays(np.stack([u, v], axis=-1))
    depth = 2 / (1 - 0.3 * rays[..., 0].clip(-1.5, 1.5))
    rgb = np.zeros((*SIZE[::-1], 3), np.uint8)
    result = network_result(0, np.eye(4), lens.focal, rgb, depth)
    (folder / "depth").mkdir()
    write_depth(folder, result)
    camera = FrameCamera.from_result(result)
    return camera, replace(camera, intrinsics=Intrinsics.from_camera_model(lens))


@pytest.mark.parametrize("lens", LENSES)
def test_depth_is_read_as_of_a_pinhole_camera(tmp_path: Path, lens: CameraModel) -> None:
    straight, camera = bent(tmp_path, lens)
    found = result_of(tmp_path, camera)
    assert found.intrinsics == Intrinsics(lens.focal, lens.focal, 160.0, 120.0)
    points = found.camera_points[found.depth > 0]
    assert len(points) > 0.5 * found.depth.size
    inside = np.abs(points[:, 0] / points[:, 2]) < 1
    off = points[inside, 2] - 0.3 * points[inside, 0] - 2
    assert np.abs(off).max() < 0.04
    raw = result_of(tmp_path, straight)
    wrong = raw.camera_points.reshape(-1, 3)
    assert np.abs(wrong[:, 2] - 0.3 * wrong[:, 0] - 2).max() > 0.06


@pytest.mark.parametrize("lens", LENSES)
def test_the_lens_is_stored_and_read(tmp_path: Path, lens: CameraModel) -> None:
    _, camera = bent(tmp_path, lens)
    read = FrameCamera.from_json(json.loads(camera.to_json()))
    assert read.intrinsics == camera.intrinsics and read.intrinsics.camera_model == lens
    assert read.as_causal.intrinsics.camera_model.is_straight
    nothing = np.zeros(0, np.int32)
    write_tracks(
        tmp_path,
        SparseTracks(
            *(np.zeros((0, 3)), np.zeros(0, np.float32), nothing, nothing, np.zeros((0, 2), np.float32)),
            lens_numbers(lens),
            np.array(SIZE, np.int32),
            np.zeros((0, 2), np.int32),
        ),
    )
    tracks = read_tracks(tmp_path)
    assert tracks is not None and tracks.camera_model == lens


def test_a_straight_lens_adds_nothing_to_the_files(tmp_path: Path) -> None:
    straight, _ = bent(tmp_path, LENSES[0])
    assert "distortion" not in straight.to_json()
    assert lens_numbers(CameraModel(260.0, 160.0, 120.0, 0.01)).tolist() == [260.0, 160.0, 120.0, 0.01]
