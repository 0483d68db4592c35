"""Fusion by certainty and by distance."""

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from bench.drawing import Drawable, draw
from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, Intrinsics
from stream_recon.app.mesh.config import DEFAULT_MESH
from stream_recon.app.mesh.fusion import fuse, mesh_cameras, pixel_weights
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.schema import PointsConfig
from tests.app.fake_engine import run_info
from tests.app.mesh.signed_wall import write_wall
from tests.app.result_files import write_dense

SIZE = (96, 72)
NEAR, FAR = 1.0, 12.0


def frame(index: int, depth: NDArray[np.float32]) -> FrameResult:
    T = np.eye(4)
    T[0, 3] = 0.02 * index
    transform = ImageTransform(SIZE, (0.0, 0.0, *map(float, SIZE)), SIZE)
    rgb = np.full((*depth.shape, 3), 128, np.uint8)
    k = Intrinsics(80.0, 80.0, SIZE[0] / 2, SIZE[1] / 2)
    return FrameResult(index, index / 10, T, k, depth, np.full(depth.shape, 9, np.float32), rgb, transform, True)


def street(folder: Path) -> ResultFolder:
    """A near wall on the left and a far one on the right."""
    writer = ResultWriter(folder, run_info())
    depth = np.full((SIZE[1], SIZE[0]), NEAR, np.float32)
    depth[:, 60:] = FAR
    for index in range(5):
        writer.add(frame(index, depth))
    writer.finish(RunSummary(interrupted=False, frames_reconstructed=5))
    return read_result(folder)


def test_far_surfaces_are_coarser_and_none_is_there_twice(tmp_path: Path) -> None:
    result = street(tmp_path / "out")
    mesh = fuse(result, mesh_cameras(result, 600), DEFAULT_MESH).mesh
    corners = mesh.xyz[mesh.faces]
    z = corners[..., 2].mean(axis=1)
    size = np.linalg.norm(corners[:, 1] - corners[:, 0], axis=1)
    near, far = np.abs(z - NEAR) < 0.1, np.abs(z - FAR) < 1
    assert near.sum() > 500 and far.sum() > 100 and (near | far).mean() > 0.97
    assert np.median(size[far]) > 2.5 * np.median(size[near])
    # The area of each wall is what the frames see of it, once.
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1) / 2
    assert 0.7 < area[near].sum() / (60 / 80 * 72 / 80 * NEAR**2) < 1.2
    assert 0.6 < area[far].sum() / (36 / 80 * 72 / 80 * FAR**2) < 1.3


def test_confirmed_depth_outweighs_the_network(tmp_path: Path) -> None:
    result = write_wall(tmp_path / "out", 8)
    points = PointsConfig()
    wrong, right = result.dense_map(0), result.dense_map(1)
    low = replace(wrong, certainty=np.full_like(wrong.certainty, Certainty.NETWORK))
    weights = [pixel_weights(m.result(result.cameras[0]), points, DEFAULT_MESH.fusion) for m in (low, right)]
    assert weights[1].max() > 9 * weights[0].max() > 0


def test_frames_with_dense_maps_are_fused_and_others_are_not(tmp_path: Path) -> None:
    result = write_wall(tmp_path / "out", 6)
    (result.folder / "dense" / "000002.npz").unlink()
    again = read_result(result.folder)
    assert [camera.index for camera in mesh_cameras(again, 600)] == [0, 1, 3, 4, 5]
    assert len(mesh_cameras(again, 600, "all")) == 6 and len(mesh_cameras(again, 600, "3")) == 2
    assert len(mesh_cameras(again, 4)) == 4
    record = json.loads((result.folder / "run.json").read_text())
    (result.folder / "run.json").write_text(json.dumps({**record, "refinement": {"id": "other"}}))
    assert not read_result(result.folder).dense


@pytest.mark.parametrize(("error", "voxels"), [(0.0, 3.0), (0.2, 6.0)])
def test_truncation_follows_the_disagreement_of_unconfirmed_depth(tmp_path: Path, error: float, voxels: float) -> None:
    result = write_wall(tmp_path / "out", 8)
    for number, camera in enumerate(result.cameras):
        dense = result.dense_map(camera.index)
        factor = np.float32(1 + error * (number % 2))
        certainty = np.where(dense.depth > 0, np.uint8(Certainty.NETWORK), np.uint8(Certainty.NONE))
        changed = replace(dense, depth=dense.depth * factor, certainty=certainty)
        write_dense(result.folder, changed, result.refinement_id or "")
    fused = fuse(read_result(result.folder), result.cameras, DEFAULT_MESH)
    assert fused.truncation / fused.voxel == pytest.approx(voxels)


def test_frames_that_disagree_leave_no_holes(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path / "out", run_info())
    noise = np.random.default_rng(0)
    shape = SIZE[1], SIZE[0]
    for index in range(12):
        error = cv2.resize(noise.normal(0, 0.12, (6, 8)), SIZE, interpolation=cv2.INTER_CUBIC)
        writer.add(frame(index, (NEAR * np.exp(error)).astype(np.float32)))
    writer.finish(RunSummary(interrupted=False, frames_reconstructed=12))
    result = read_result(tmp_path / "out")

    mesh = fuse(result, mesh_cameras(result, 600), DEFAULT_MESH).mesh

    middle = frame(6, np.zeros(shape, np.float32))
    parts = [Drawable(mesh.xyz, mesh.faces, mesh.rgb)]
    _, shown = draw(parts, middle.T_world_camera, middle.network_intrinsics, SIZE)
    assert shown[4:-4, 12:-12].mean() > 0.97
