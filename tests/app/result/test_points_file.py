"""The file of points: what is read back, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.ply import positions
from stream_recon.app.result.files import PlyFile, checked_points
from stream_recon.configs.errors import OutputError


def write(path: Path, xyz: list[list[float]]) -> Path:
    cloud = PlyFile(path)
    cloud.append(np.array(xyz, np.float32), np.zeros((len(xyz), 3), np.uint8))
    cloud.close()
    return path


def test_points_are_read_as_they_were_written(tmp_path: Path) -> None:
    points = [[0.0, 0.5, 1.0], [-2.0, 3.0, 1e6]]
    assert np.array_equal(positions(checked_points(write(tmp_path / "a.ply", points))), np.array(points, np.float32))


@pytest.mark.parametrize("value", [1e29, float("nan"), float("-inf")])
def test_points_at_impossible_places_are_refused(tmp_path: Path, value: float) -> None:
    path = write(tmp_path / "a.ply", [[0.0, 0.0, 1.0], [0.0, value, 1.0]])
    with pytest.raises(OutputError, match="damaged"):
        checked_points(path)
