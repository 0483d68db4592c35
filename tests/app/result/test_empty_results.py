"""Results without frames, without depth and with numbers that are none: each command ends with one line."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.ply import VERTEX, header
from stream_recon.app.export.formats import FORMATS
from stream_recon.app.result.folder import read_result
from stream_recon.app.stages.evaluate import evaluate_result
from stream_recon.configs.errors import InputError
from tests.app.export.rooms import FORMATS_HERE, write_room
from tests.app.program import exit_code

NAN = float("nan")


def edit_cameras(folder: Path, change: Callable[[list[str]], list[str]]) -> None:
    path = folder / "cameras.json"
    head, lines = path.read_text().split("\n")[:2], path.read_text().split("\n")[2:]
    frames = change([line.rstrip(",") for line in lines if line.startswith('{"index"')])
    path.write_text("\n".join([*head, ",\n".join(frames), "]}"]) + "\n")


def without_frames(folder: Path) -> None:
    edit_cameras(folder, lambda frames: [])
    (folder / "points.ply").write_bytes(header(0))
    for path in (folder / "depth").iterdir():
        path.unlink()


def without_points(folder: Path) -> None:
    (folder / "points.ply").write_bytes(header(0))


def of_frame(**values: object) -> Callable[[Path], None]:
    """Another value in the line of a frame."""
    return lambda folder: edit_cameras(
        folder, lambda frames: [frames[0], json.dumps({**json.loads(frames[1]), **values}), *frames[2:]]
    )


def of_depth(name: str, value: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for path in (folder / "depth").iterdir():
            with np.load(path) as file:
                arrays = {key: file[key] for key in file.files}
            np.savez(path, **{**arrays, name: np.full_like(arrays[name], value)})

    return change


def of_points(value: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        vertices = np.zeros(2, VERTEX)
        vertices["x"][1] = value
        (folder / "points.ply").write_bytes(header(2) + vertices.tobytes())

    return change


STATES: dict[str, Callable[[Path], None]] = {
    "no frames": without_frames,
    "no points": without_points,
    "pose": of_frame(T_world_camera=[[NAN] * 4] * 4),
    "time": of_frame(timestamp=NAN),
    "scale": of_frame(depth_scale=float("inf")),
    "no depth": of_depth("depth", 0.0),
    "depth": of_depth("depth", NAN),
    "confidence": of_depth("confidence", NAN),
    "points": of_points(NAN),
    "far points": of_points(float("inf")),
}
REFUSED = ("no frames", "pose", "time", "scale")
"""States in which no command has anything to work on."""


@pytest.fixture
def room(tmp_path: Path) -> Path:
    write_room(tmp_path / "room", 4)
    return tmp_path / "room"


def check(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], state: str, *words: str) -> None:
    """Exit code 2 and one line, or 0 where the state leaves something to work on."""
    code = exit_code(monkeypatch, *words)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("stream-recon: error")]
    assert code == 2 if state in REFUSED else code in (0, 2), (code, lines)
    assert len(lines) == (code == 2), lines


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("form", FORMATS_HERE)
def test_exports(
    room: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], form: str, state: str
) -> None:
    STATES[state](room)
    target = room.with_name(f"export{FORMATS[form].suffixes[0] if FORMATS[form].suffixes else ''}")
    check(monkeypatch, capfd, state, "export", str(room), "--format", form, "-o", str(target))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("words", [("scale", "height:1.6"), ("scale", "frames:0,3,1.5"), ("refine",)])
def test_commands_that_change_a_result(
    room: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: tuple[str, ...], state: str
) -> None:
    STATES[state](room)
    if state in REFUSED or words[0] == "scale":
        check(monkeypatch, capfd, state, words[0], str(room), *words[1:])


@pytest.mark.parametrize("state", REFUSED)
def test_places(room: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], state: str) -> None:
    write_room(room.with_name("other"), 2)
    STATES[state](room)
    image = sorted(room.with_name("room-source").iterdir())[0]
    check(monkeypatch, capfd, state, "localize", str(room), str(image))
    for words in ((room, room.with_name("other")), (room.with_name("other"), room)):
        check(monkeypatch, capfd, state, "merge", *map(str, words), "-o", str(room.with_name("all")))
    assert not room.with_name("all").exists()


def test_evaluation_of_nothing(room: Path) -> None:
    without_frames(room)
    with pytest.raises(InputError, match="no frames to evaluate"):
        evaluate_result(read_result(room), None)
