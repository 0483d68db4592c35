"""The download button: the points that are shown while the video runs, the complete cloud once it is over."""

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import plyfile
import pytest

from stream_recon.app.viewer.points import no_points, ply_bytes
from stream_recon.app.viewer.viewer import Viewer, show_results
from stream_recon.configs.errors import OutputError
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import room_result, walk_pose
from tests.app.viewer.clients import client_of
from tests.app.viewer.clouds import wall_distance


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(
        PointsConfig(confidence=0.0, voxel=0.05), port=0, point_budget=30_000, exports={"colmap": "COLMAP (ZIP)"}
    ) as running:
        yield running


def read_ply(content: bytes) -> tuple[np.ndarray, set[str]]:
    """Coordinates [N, 3] and the names of all properties."""
    vertex = plyfile.PlyData.read(io.BytesIO(content))["vertex"]
    xyz = np.stack([vertex[axis] for axis in "xyz"], axis=1)
    return xyz, {p.name for p in vertex.properties}


def test_while_the_video_runs_it_gives_the_shown_points_in_world_axes(viewer: Viewer) -> None:
    show_results(viewer, (room_result(i, walk_pose(3 + i / 10)) for i in range(70)))
    with client_of(viewer) as client:
        client.set("Hide unsure (%)", 0)
        client.click("Points (PLY)")
        client.wait_for(lambda: len(client.files) == 1 and len(client.files[0][1]) > viewer.state.scene.shown)
    ((name, content),) = client.files
    assert name == "points.ply"
    xyz, properties = read_ply(content)
    assert len(xyz) == viewer.state.scene.shown > 0
    assert wall_distance(xyz).max() < 1e-4
    assert properties == {"x", "y", "z", "red", "green", "blue"}


def test_once_the_run_is_over_it_gives_the_results_own_file_and_its_size(viewer: Viewer, tmp_path: Path) -> None:
    show_results(viewer, [room_result(0)])
    path = tmp_path / "cloud.ply"
    with client_of(viewer) as client:
        viewer.offer_cloud(path)
        client.sync()
        assert client.control("Points (PLY)"), "there is no such file"
        content = b"ply\nelement vertex 1900000\n" + b"ply of the whole run" * 100_000
        path.write_bytes(content)
        viewer.offer_cloud(path)
        client.sync()
        client.set("Show", "Points")
        assert re.search(r"showing 0\.0 of 1\.9 million points", client.counts)
        client.click("All points (PLY, 2.0 MB)")
        client.wait_for(lambda: client.files == [("points.ply", content)])
        path.unlink()
        client.click("All points (PLY, 2.0 MB)")
        client.wait_for(lambda: len(client.notes) == 1)
        assert "cannot be read" in client.notes[0]
    assert not viewer.failed


def test_what_is_not_there_is_said_in_a_line_and_what_is_there_is_made_on_request(viewer: Viewer) -> None:
    show_results(viewer, [room_result(0)])

    def make(folder: Path) -> Path:
        (folder / "scene.zip").write_bytes(b"content")
        return folder / "scene.zip"

    def fail(folder: Path) -> Path:
        raise OutputError("the images are gone")

    with client_of(viewer) as client:
        client.click("Mesh (GLB)")
        client.wait_for(lambda: "at the end of the run" in "".join(client.notes))
        viewer.finish()
        client.click("Mesh (GLB)")
        client.wait_for(lambda: "--format mesh" in client.notes[-1])
        viewer.offer("colmap", make)
        client.click("COLMAP (ZIP)")
        client.wait_for(lambda: client.files == [("scene.zip", b"content")])
        viewer.offer("path", fail)
        client.click("Film along the path (MP4)")
        client.wait_for(lambda: "the images are gone" in client.notes[-1])


def test_a_cloud_without_points_is_a_file_too() -> None:
    xyz, _ = read_ply(ply_bytes(no_points()))
    assert xyz.shape == (0, 3)
