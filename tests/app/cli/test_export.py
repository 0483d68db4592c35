import contextlib
import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_recon.app.export.formats import FORMATS
from tests.app.export.rooms import FORMATS_HERE, write_room, write_splats
from tests.app.program import exit_code


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("room") / "out"
    write_room(folder)
    return folder


def test_an_export_goes_beside_the_result(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(monkeypatch, "export", str(room), "--format", "glb", "--points", "1000") == 0
    assert "out.glb: 1000 points, 4 camera frusta" in capsys.readouterr().out
    assert exit_code(monkeypatch, "export", str(room), "--format", "trajectory") == 0
    assert (room.parent / "out-trajectory" / "trajectory_tum.txt").is_file()
    assert exit_code(monkeypatch, "export", str(room), "--format", "trajectory") == 2
    assert "--overwrite" in capsys.readouterr().err
    assert exit_code(monkeypatch, "export", str(room), "--format", "trajectory", "--overwrite") == 0


@pytest.mark.parametrize("command", ["export {} --format glb", "render {} film.mp4", "scale {} height:1.6"])
def test_one_line_and_no_bar_where_there_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    words = [str(tmp_path / "none") if word == "{}" else word for word in command.split()]
    assert exit_code(monkeypatch, *words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_format_that_is_not_known_is_bad_input(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code(monkeypatch, "export", str(room), "--format", "usd") == 2


@pytest.mark.parametrize("frames", ["some", "0", "-1"])
def test_a_choice_of_nothing_is_bad_input(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], frames: str
) -> None:
    arguments = ("--format", "trajectory", "-o", str(tmp_path / "there"), f"--frames={frames}")
    assert exit_code(monkeypatch, "export", str(room), *arguments) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) <= 2
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 4)
    cameras = tmp_path / "out" / "cameras.json"
    head, _, *lines = cameras.read_text().splitlines()
    # So many frames that they cannot be done before the signal comes.
    frames = [json.loads(line.rstrip(",")) for line in lines if line.startswith("{")]
    many = [json.dumps(frames[i % len(frames)] | {"index": i}) for i in range(16_000)]
    cameras.write_text("\n".join([head, '"frames": [', ",\n".join(many), "]}", ""]))
    there = tmp_path / "there"
    there.mkdir()
    command = [sys.executable, "-m", "stream_recon", "export", str(tmp_path / "out"), "--format", "trajectory"]
    with subprocess.Popen([*command, "-o", str(there / "x")], stderr=subprocess.PIPE, text=True) as program:
        deadline = time.monotonic() + 60
        while not list(there.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.01)
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=60)
    assert program.returncode == 130 and err.rstrip().endswith("stream-recon: stopped")
    assert not list(there.iterdir())


@pytest.mark.parametrize("name", FORMATS_HERE)
def test_a_file_system_that_takes_no_more_is_told_in_a_line(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """By the limit on a file's size: what the system says then is as when the disk is full."""
    if name == "splats":
        write_splats(room)
    target = tmp_path / f"x{(*FORMATS[name].suffixes, '')[0]}"
    with small_files():
        code = exit_code(monkeypatch, "export", str(room), "--format", name, "-o", str(target))
    assert code == 2 and f"cannot write {target}" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("encoder", ["ffmpeg", "OpenCV"])
def test_a_film_that_finds_no_room_is_told_in_a_line(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], encoder: str
) -> None:
    if encoder == "ffmpeg" and shutil.which("ffmpeg") is None:
        pytest.skip("no ffmpeg")
    target = tmp_path / "x.mp4"
    size = ("--seconds", "0.2", "--size", "160x90")
    if encoder == "OpenCV":
        monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    with small_files():
        code = exit_code(monkeypatch, "render", str(room), str(target), *size)
    assert code == 4
    assert f"error: cannot write {target}: the disk is full" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """A file may have 300 bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writes_none, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # modules' files would be cut off as well
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sys.dont_write_bytecode = writes_none


def test_it_needs_no_torch(room: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom stream_recon.app.export.formats import export\nfrom pathlib import Path\n"
        f"export(Path({str(room)!r}), 'transforms', Path({str(tmp_path / 'x')!r}))\nassert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    shutil.rmtree(tmp_path / "x")
