"""A mesh of the truth has no error, also where the cameras' path is straight; a shifted one has that error."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import Similarity
from tests.app.mesh.signed_wall import intrinsics, poses, view, write_wall


def test_orientations_align_a_straight_path() -> None:
    from bench.compare_mesh import alignment

    random = np.random.default_rng(0)
    truth = np.stack(poses(20))
    truth[:, :3, 3] = np.linspace(0, 2, 20)[:, None] * np.array([1.0, 0, 0])
    change = Similarity(0.4, so3.exp(np.array([0.3, -0.8, 0.2])), np.array([1.0, 2.0, 3.0]))
    ours = change.inverse().move_pose(truth)
    ours[:, :3, 3] += random.normal(0, 0.02, (20, 3))
    found = alignment(ours, truth)
    assert found.scale == pytest.approx(0.4, rel=0.02)
    assert np.abs(found.rotation @ change.rotation.T - np.eye(3)).max() < 1e-6


def test_a_right_mesh_has_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from bench.compare_mesh import compare

    result = write_wall(tmp_path / "out", 9)
    sequence = tmp_path / "sequence"
    (sequence / "depth").mkdir(parents=True)
    T = np.array(poses(9)).reshape(9, 16)
    np.savetxt(sequence / "poses.txt", np.column_stack([np.arange(9), T]))
    k = intrinsics()
    (sequence / "intrinsics.txt").write_text(f"{k.fx} {k.fy} {k.cx} {k.cy} 96 72\n")
    for index, pose in enumerate(poses(9)):
        depth = np.rint(1000 * view(pose)[1]).astype(np.uint16)
        assert cv2.imwrite(str(sequence / "depth" / f"{index:06d}.png"), depth)
    x = np.array([[-3, -2, 2], [3, -2, 2], [3, 0.7, 2], [-3, 0.7, 2], [3, 0.7, -1], [-3, 0.7, -1]], float)
    faces = "3 0 2 1\n3 0 3 2\n3 3 4 2\n3 3 5 4\n"

    def errors(shift: float) -> list[float]:
        rows = "\n".join(f"{a} {b} {c + shift}" for a, b, c in x)
        head = "ply\nformat ascii 1.0\nelement vertex 6\nproperty float x\nproperty float y\nproperty float z\n"
        path = tmp_path / "mesh.ply"
        path.write_text(f"{head}element face 4\nproperty list uchar int vertex_indices\nend_header\n{rows}\n{faces}")
        compare(result.folder, path, sequence, [0.05])
        out = capsys.readouterr().out
        return [float(value) for value in re.findall(r"completeness +([\d.]+) cm \(median ([\d.]+)", out)[0]]

    assert errors(0.0)[1] < 2.5  # of the distance between samples
    assert errors(0.2)[0] > 5


def test_depth_is_registered_by_the_kinect_s_baseline() -> None:
    from data.register_depth import T_COLOUR_DEPTH, registered

    depth = np.full((480, 640), 2000, np.uint16)
    found = registered(depth)
    known = found > 0
    # The colour camera sees the same plane, a little turned, from 2.6 cm beside.
    assert known[60:420, 60:580].mean() > 0.75 and abs(float(np.median(found[known])) - 2000) < 25
    corner = np.zeros_like(depth)
    corner[240, 320] = 1000
    rows, columns = np.nonzero(registered(corner))
    assert abs(columns[0] - 320 - 525 * T_COLOUR_DEPTH[0, 3]) < 6 and abs(rows[0] - 240) < 6
