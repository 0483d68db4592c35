"""Commands `localize` and `merge`: output, and refusals in one line."""

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.app.localization.places import to_truth, write_refined
from tests.app.program import exit_code
from tests.app.slam.room import SIZE, picture, pose, walk
from tests.app.sources.test_panorama import around


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "room"
    write_refined(folder, walk(12))
    return folder


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    folder.mkdir()
    cv2.imwrite(str(folder / "a.png"), picture(pose((0.5, 0.1, -0.4), 0.35, 0.1), draw=3)[0][..., ::-1])
    cv2.imwrite(str(folder / "b.png"), np.full((SIZE[1], SIZE[0], 3), 90, np.uint8))
    return folder


@pytest.mark.slow
def test_photographs_get_poses_or_a_reason(
    room: Path, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "poses.jsonl"
    command = ("localize", str(room), str(photographs))
    assert exit_code(monkeypatch, *command, "--json", str(lines)) == 0
    assert "1 of 2 images show this place" in " ".join(capsys.readouterr().err.split())
    here, other = (json.loads(line) for line in lines.read_text().splitlines())
    T = to_truth(room, walk(12)).move_pose(np.array(here["T_world_camera"]))
    assert here["here"] and np.linalg.norm(T[:3, 3] - (0.5, 0.1, -0.4)) < 0.05
    assert not other["here"] and other["reason"]
    assert exit_code(monkeypatch, *command, "--json", str(lines)) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert exit_code(monkeypatch, *command) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert len(first.split()) == 8 and second.startswith("#")
    for number in range(2):
        cv2.imwrite(str(tmp_path / f"{number}.png"), around(seed=number))
    assert exit_code(monkeypatch, "localize", str(room), str(tmp_path)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("not here" in line for line in lines), "frames of 360 degrees, not their views"


def test_refusals_are_one_line(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, "localize", str(photographs), str(photographs)) == 2
    assert exit_code(monkeypatch, "merge", str(photographs), "-o", str(tmp_path / "all")) == 2
    assert "two or more" in capsys.readouterr().err and not (tmp_path / "all").exists()
