"""Known poses against a result's own: whose frames they are, and in which axes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.transforms import Similarity, invert_pose, rotation_angle_deg
from stream_recon.app.metric_scale.known_poses import FittingPoses, fit_known_poses
from stream_recon.app.metric_scale.measure import measure_scale
from stream_recon.app.metric_scale.scale_source import parse_poses
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.metric_scale import OF_FILE
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.options import RunOptions
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.datasets.test_known_poses import write_tum
from tests.app.fake_engine import run_info
from tests.app.slam.room import FOCAL, network_result, walk

TRUTH = walk(24)
S = Similarity(3.0, TRUTH[9][:3, :3], np.array([5.0, -2.0, 1.0]))
KNOWN = S.move_pose(TRUTH)
"""The same walk in another world and unit."""
MIRROR = np.diag([1.0, 1.0, -1.0, 1.0])


def turned(*rows: tuple[float, float, float]) -> np.ndarray:
    T = np.eye(4)
    T[:3, :3] = rows
    return KNOWN @ T


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> ResultFolder:
    folder = tmp_path_factory.mktemp("known") / "out"
    grey, depth = np.full((240, 320, 3), 90, np.uint8), np.ones((240, 320))
    writer = ResultWriter(folder, run_info())
    for index, T in enumerate(TRUTH):
        writer.add(network_result(index, T, FOCAL, grey, depth))
    writer.finish(RunSummary(interrupted=False))
    return read_result(folder)


def fitted(result: ResultFolder, file: Path, text: str = "") -> FittingPoses:
    return fit_known_poses(result, parse_poses(text or str(file)))


def test_poses_that_fit_come_into_the_results_world(result: ResultFolder, tmp_path: Path) -> None:
    found = fitted(result, write_tum(tmp_path / "a.txt", KNOWN))
    assert found.how == "24 of 24 frames have a known pose"
    rows, placed = found.placed(result.cameras)
    assert rows == list(range(24)) and np.allclose(placed, TRUTH, atol=1e-6)


def test_axes_of_the_file_are_told_by_rotations_where_positions_have_errors(
    result: ResultFolder, tmp_path: Path
) -> None:
    known = KNOWN.copy()
    known[:, :3, 3] += np.random.default_rng(5).normal(0, 0.3, (24, 3))
    found = measure_scale(result, fitted(result, write_tum(tmp_path / "a.txt", known)).track, "poses")
    T = found.T_metric_own
    assert rotation_angle_deg(T.rotation.T @ S.rotation) < 0.01 and found.world == OF_FILE
    assert np.linalg.norm(T.apply(TRUTH[:, :3, 3]) - KNOWN[:, :3, 3], axis=1).max() < 0.4


def test_another_clock_is_found_and_stated(result: ResultFolder, tmp_path: Path) -> None:
    file = write_tum(tmp_path / "a.txt", KNOWN, first=1.7e9)
    found = fitted(result, file)
    assert "found by the fit" in found.how and len(found.poses) >= 23
    assert len(fitted(result, file, f"fixed:{file}@0").poses) == 24


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda: turned((1, 0, 0), (0, -1, 0), (0, 0, -1)), "look like OpenGL's"),
        (lambda: turned((0, -1, 0), (0, 0, -1), (1, 0, 0)), "those of a robot's body"),
        (lambda: MIRROR @ KNOWN @ np.diag([1.0, -1.0, 1.0, 1.0]), "mirrored"),
        (lambda: invert_pose(KNOWN), "look inverted"),
        (lambda: turned((0, 1, 0), (-1, 0, 0), (0, 0, 1)), "turned by 90 degrees"),
        (lambda: KNOWN[np.random.default_rng(1).permutation(24)], "does not fit"),
        (lambda: np.repeat(KNOWN[:1], 24, axis=0), "do not move"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_was_found(
    result: ResultFolder, tmp_path: Path, change: Callable[[], np.ndarray], what: str
) -> None:
    file = write_tum(tmp_path / "a.txt", change())
    with pytest.raises(InputError, match=what):
        fitted(result, file, f"{file}@0")


def test_few_poses_and_other_images_are_refused(result: ResultFolder, tmp_path: Path) -> None:
    file = write_tum(tmp_path / "a.txt", KNOWN)
    with pytest.raises(InputError, match="only 3 of 24 frames"):
        fitted(result, file, f"{file}@2.1")
    (tmp_path / "transforms.json").write_text(
        '{"frames": [{"file_path": "a.png", "transform_matrix": [[1,0,0,0],[0,1,0,0],[0,0,1,0],[0,0,0,1]]}]}'
    )
    with pytest.raises(InputError, match=r"images by name, such as a\.png"):
        fitted(result, tmp_path / "transforms.json")


def test_values_of_the_option(tmp_path: Path) -> None:
    file = write_tum(tmp_path / "a.txt", KNOWN)
    assert parse_poses(str(file)).text == f"prior:{file}" and parse_poses(f"scale:{file}@1.5").begins == 1.5
    for text, error in (("fixed:", ConfigError), ("exif", ConfigError), ("fixed:nothing.txt", InputError)):
        with pytest.raises(error, match="--poses"):
            parse_poses(text)
    with pytest.raises(ConfigError, match="--mapping"):
        RunOptions(poses=str(file), mapping="off")
    with pytest.raises(ConfigError, match="not both"):
        RunOptions(poses=f"scale:{file}", scale_from="height:1")
