"""Files that the page of a finished result offers."""

import zipfile
from pathlib import Path

import cv2
import numpy as np

from stream_recon.app.cli import downloads
from stream_recon.app.cli.view import show_all
from stream_recon.app.core.gltf import Primitive, read_glb, write_glb
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_result, read_run
from stream_recon.app.result.metric_scale import ONTO
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.schema import PointsConfig
from tests.app.export.rooms import write_room
from tests.app.viewer.clients import client_of

LABELS = ("Mesh (GLB)", "Points and cameras (GLB)", "COLMAP (ZIP)", "Film around it (MP4)")


def test_a_finished_result_offers_its_mesh_cloud_cameras_and_films(tmp_path: Path) -> None:
    folder = tmp_path / "kitchen"
    write_room(folder, 6, source=False)
    write_glb(folder / "mesh.glb", [Primitive(np.eye(3, dtype=np.float32), np.array([[0, 1, 2]], np.int32))])
    with Viewer(PointsConfig(), port=0, exports=downloads.VIEWER_EXPORTS) as viewer:
        downloads.offer_result(viewer, folder, film_seconds=0.2)
        viewer.finish()
        with client_of(viewer) as client:
            client.wait_for(lambda: "/surface/mesh" in client.nodes)
            for count, label in enumerate(LABELS, start=1):
                while len(client.files) < count:  # a click is refused until the last file is sent completely
                    notes = len(client.notes)
                    client.click(label)
                    # The file may come without a further note.
                    client.wait_for(
                        lambda: len(client.notes) > notes or len(client.files) >= count  # type: ignore[misc]  # noqa: B023
                    )
                    if any(note.startswith("Making") for note in client.notes[notes:]):
                        client.wait_for(lambda: len(client.files) == count)  # type: ignore[misc]  # noqa: B023
            client.wait_for(lambda: len(client.files[-1][1]) > 1000)
    names = [name for name, _ in client.files]
    assert names == ["mesh.glb", "kitchen.glb", "kitchen-colmap.zip", "kitchen-orbit.mp4"]
    assert {part.name for part in read_glb(client.files[1][1])} == {"points", "cameras", "path"}
    (tmp_path / "a.zip").write_bytes(client.files[2][1])
    assert any("/cameras." in name for name in zipfile.ZipFile(tmp_path / "a.zip").namelist())
    (tmp_path / "a.mp4").write_bytes(client.files[3][1])
    assert cv2.VideoCapture(str(tmp_path / "a.mp4")).read()[0]


def test_a_mesh_that_covers_little_does_not_replace_the_surfaces(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_room(folder, 6, source=False)
    write_glb(folder / "mesh.glb", [Primitive(np.eye(3, dtype=np.float32), np.array([[0, 1, 2]], np.int32))])
    for covered, is_shown in ((0.49, False), (0.51, True), ("much", True)):
        replace_json(folder / "run.json", {**read_run(folder), "mesh": {"covered": covered}})
        with Viewer(PointsConfig(), port=0) as viewer:
            downloads.offer_result(viewer, folder)
            assert viewer.flush() and viewer.shows_mesh == is_shown


def test_a_mesh_in_the_unit_of_the_first_poses_is_shown_before_the_frames(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_room(folder, 6, source=False)
    write_glb(folder / "mesh.glb", [Primitive(np.eye(3, dtype=np.float32), np.array([[0, 1, 2]], np.int32))])
    (folder / "depth" / "000003.npz").write_bytes(b"damaged")
    for scale in (1, 2):
        replace_json(
            folder / "run.json", {**read_run(folder), ONTO: {"T_onto_own": np.diag([scale] * 3 + [1]).tolist()}}
        )
        seen = []
        with Viewer(PointsConfig(), port=0) as viewer:
            show_all(viewer, read_result(folder), lambda _: seen.append(viewer.flush() and viewer.shows_mesh))  # noqa: B023
            assert viewer.flush() and viewer.shows_mesh
        assert seen == [scale == 1]
