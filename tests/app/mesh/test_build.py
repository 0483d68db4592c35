"""The textured mesh of a wall with writing: upright, not mirrored, complete or absent."""

import io
import os
import signal
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.drawing import Drawable, draw
from stream_recon.app.core import output_file
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.export.view import gltf_axes
from stream_recon.app.mesh.build import write_result_mesh
from stream_recon.app.result.folder import MESH_NAME, ResultFolder
from stream_recon.app.result.lock import FolderLock
from stream_recon.configs.errors import NoSurfaceError
from tests.app.export.rooms import write_room
from tests.app.mesh.signed_wall import FLOOR, SCALE, SIZE, WALL, intrinsics, poses, view, write_wall

trimesh = pytest.importorskip("trimesh")


@pytest.fixture(scope="module")
def wall(tmp_path_factory: pytest.TempPathFactory) -> ResultFolder:
    result = write_wall(tmp_path_factory.mktemp("wall") / "out", gains=(1.0, 0.85, 1.1))
    report = write_result_mesh(result)
    assert report.size == (result.folder / MESH_NAME).stat().st_size and report.views > 1
    assert 0.9 < report.covered <= 1
    return result


def parts_of(path: Path, axes: NDArray[np.float64]) -> list[Drawable]:
    """The textured primitives of a GLB file in the result's coordinates."""
    parts = []
    for mesh in trimesh.load(path).geometry.values():
        xyz = np.asarray(mesh.vertices @ axes, np.float32)
        uv = getattr(mesh.visual, "uv", None)
        if uv is None:
            continue
        image = np.asarray(mesh.visual.material.baseColorTexture.convert("RGB"))
        # trimesh counts v from the lower border.
        uv = np.stack([uv[:, 0], 1 - uv[:, 1]], axis=1).astype(np.float32)
        parts.append(Drawable(xyz, np.asarray(mesh.faces, np.int32), uv=uv, image=image))
    return parts


def test_trimesh_reads_textures_with_valid_coordinates(wall: ResultFolder) -> None:
    scene = trimesh.load(wall.folder / MESH_NAME)
    pages = [mesh for name, mesh in scene.geometry.items() if name != "untextured"]
    assert pages
    for mesh in pages:
        uv = np.asarray(mesh.visual.uv)
        assert np.isfinite(uv).all() and uv.min() >= 0 and uv.max() <= 1
        assert max(mesh.visual.material.baseColorTexture.size) <= 4096
        assert mesh.visual.material.doubleSided is False
    textured = sum(len(mesh.faces) for mesh in pages)
    assert textured > 0.9 * sum(len(mesh.faces) for mesh in scene.geometry.values())


def test_the_file_is_upright_and_in_front(wall: ResultFolder) -> None:
    low, high = trimesh.load(wall.folder / MESH_NAME).bounds
    # y is up and z backward: the floor is below the cameras, which are near y = 0, and the wall in front of them.
    assert low[1] == pytest.approx(-FLOOR, abs=0.05) and 0.3 < high[1] < 1.5
    # The first camera looks a little to the side.
    assert -WALL - 0.6 < low[2] < -WALL and high[2] < 0
    assert low[0] < -0.7 and high[0] > 0.7


def test_a_picture_from_a_known_camera_is_not_mirrored(wall: ResultFolder) -> None:
    parts = parts_of(wall.folder / MESH_NAME, gltf_axes(wall, "auto"))
    T, size = poses(7)[3], (SIZE[0] * SCALE, SIZE[1] * SCALE)
    drawn, shown = draw(parts, T, intrinsics(SCALE), size)
    image = view(T, SCALE)[0]
    assert shown.mean() > 0.8

    def likeness(other: NDArray[np.uint8]) -> float:
        grey = [values.astype(np.float64).mean(axis=2)[shown] for values in (drawn, other)]
        return float(np.corrcoef(*grey)[0, 1])

    assert likeness(image) > 0.95
    assert max(likeness(image[:, ::-1]), likeness(image[::-1])) < 0.6
    # From behind, nothing is drawn: triangles are single sided.
    behind = T.copy()
    behind[:3, :3] = np.diag([-1.0, 1.0, -1.0])
    behind[2, 3] = WALL + 2
    assert draw(parts, behind, intrinsics(SCALE), size)[1].mean() < 0.15


def test_textures_are_sharper_than_colours_at_vertices(wall: ResultFolder, tmp_path: Path) -> None:
    target, report = export(wall.folder, "mesh", tmp_path / "plain.ply")
    plain = trimesh.load(target, process=False)
    drawable = Drawable(
        np.asarray(plain.vertices, np.float32),
        np.asarray(plain.faces, np.int32),
        np.asarray(plain.visual.vertex_colors[:, :3], np.uint8),
    )
    T, size = poses(7)[3], (SIZE[0] * SCALE, SIZE[1] * SCALE)
    textured = parts_of(wall.folder / MESH_NAME, gltf_axes(wall, "auto"))
    image = view(T, SCALE)[0].astype(np.float64)

    def error(parts: list[Drawable]) -> float:
        drawn, shown = draw(parts, T, intrinsics(SCALE), size)
        # Exposure is free: cameras had three.
        factor = (drawn[shown] * image[shown]).sum() / np.square(drawn[shown].astype(np.float64)).sum()
        return float(np.square(factor * drawn[shown] - image[shown]).mean())

    assert error(textured) < 0.4 * error([drawable])
    assert "vertices" in report.summary


def test_an_export_has_the_same_texture_and_another_size(wall: ResultFolder, tmp_path: Path) -> None:
    _, report = export(wall.folder, "mesh", tmp_path / "small.glb", ExportOptions(faces=2000, up="keep"))
    scene = trimesh.load(tmp_path / "small.glb")
    assert sum(len(mesh.faces) for mesh in scene.geometry.values()) <= 2400
    assert "with textures of" in report.summary and (tmp_path / "small.glb.README.txt").exists()


@pytest.mark.parametrize("calls", [0, 2, 8, 20])
def test_a_cancelled_mesh_leaves_nothing(tmp_path: Path, calls: int) -> None:
    result = write_wall(tmp_path / "out", 5)
    before = sorted(path for path in result.folder.rglob("*"))
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > calls

    with pytest.raises(Cancelled):
        write_result_mesh(result, cancelled=cancelled)
    assert sorted(path for path in result.folder.rglob("*")) == before


def killed_after(result: ResultFolder, share: float) -> None:
    """Write the mesh in a child process that is killed when this share of the file is written."""
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        return
    whole = output_file.new_file

    def partial(path: Path, permissions: int = 0o644) -> BinaryIO:
        file = whole(path, permissions)
        write = file.write

        class Killed(io.BytesIO):
            def write(self, content: bytes) -> int:  # type: ignore[override]
                write(content[: int(share * len(content))])
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)
                return 0

        return Killed()

    output_file.new_file = partial
    write_result_mesh(result)
    os.abort()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_kill_9_while_writing_leaves_the_old_file_or_none(tmp_path: Path, share: float) -> None:
    result = write_wall(tmp_path / "out")
    killed_after(result, share)
    assert not (result.folder / MESH_NAME).exists()

    (result.folder / MESH_NAME).write_bytes(b"old")
    killed_after(result, share)
    assert (result.folder / MESH_NAME).read_bytes() == b"old"

    with FolderLock(result.folder):
        report = write_result_mesh(result)
    assert report.size == (result.folder / MESH_NAME).stat().st_size
    assert not list(result.folder.glob("*.part"))
    assert trimesh.load(result.folder / MESH_NAME).geometry


def test_progress_rises_to_the_end(tmp_path: Path) -> None:
    shown: list[tuple[int, int]] = []
    write_result_mesh(write_wall(tmp_path / "out", 5), lambda done, total: shown.append((done, total)))
    assert shown == sorted(shown) and shown[-1] == (100, 100) and len(shown) > 10


def test_a_mesh_has_to_fit_into_the_result_s_bound(tmp_path: Path) -> None:
    result = write_wall(tmp_path / "out", 3)
    used = sum(path.stat().st_size for path in result.folder.rglob("*") if path.is_file())
    with pytest.raises(NoSurfaceError, match="--max-disk"):
        write_result_mesh(result, max_bytes=used + 1000)
    assert not (result.folder / MESH_NAME).exists()
    report = write_result_mesh(result, max_bytes=used + 10**7)
    # The earlier mesh does not count: the new one replaces it.
    assert write_result_mesh(result, max_bytes=used + report.size).size == report.size


def test_a_result_without_dense_maps_gets_a_mesh_of_its_small_images(tmp_path: Path) -> None:
    report = write_result_mesh(write_wall(tmp_path / "out", 5, dense=False))
    assert report.triangles > 500 and report.views >= 1


def test_a_result_without_depth_has_no_surface(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 4, source=False)
    for path in (tmp_path / "out" / "depth").iterdir():
        path.unlink()
    with pytest.raises(NoSurfaceError):
        write_result_mesh(ResultFolder(tmp_path / "out"))
