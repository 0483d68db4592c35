"""The command where terminals, pipes, names and folders are not as one would like: exit codes and one clear line."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.depth import depth_path
from stream_recon.app.result.folder import read_result
from stream_recon.app.viewer.viewer import Viewer
from tests.app.fake_engine import FakeEngine
from tests.app.media import write_video
from tests.app.program import exit_code

Run = Callable[..., int]
PROGRAM = """
import sys
from stream_recon.app.engine.model_choice import ModelChoice
from tests.app.fake_engine import FakeEngine
ModelChoice.load = lambda choice: FakeEngine(seconds=float({seconds}))
from stream_recon.app.cli.main import main
sys.argv[0] = "stream-recon"
main()
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelChoice, "load", lambda _: FakeEngine())
    return partial(exit_code, monkeypatch)


def start(folder: Path, *arguments: str, seconds: float = 0.0, shell: str = "", **environment: str) -> Any:
    """The program in a process of its own, with an engine that needs no network; ``shell`` follows its arguments."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""), *sys.path])
    command = [sys.executable, "-c", PROGRAM.format(seconds=seconds), *arguments, "--mapping", "off"]
    if shell:
        command = ["sh", "-c", f'"$@" {shell}', "sh", *command]
    return subprocess.Popen(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def end(process: Any) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


@pytest.mark.slow
def test_a_reader_that_goes_away_costs_nothing(tmp_path: Path) -> None:
    write_video(tmp_path / "v.mp4", 30)
    process = start(tmp_path, "v.mp4", "-o", "out", "--port", "0", shell="; echo $? > code", seconds=0.02)
    assert process.stdout.readline() == b"loading the network\n"
    assert b"viewer: http" in process.stdout.readline()
    process.stdout.close()
    process.stderr.close()
    process.wait(60)
    assert (tmp_path / "code").read_text() == "0\n"
    assert len(read_result(tmp_path / "out")) == 30


def test_errors_that_nobody_reads_keep_their_exit_code(tmp_path: Path) -> None:
    process = start(tmp_path, "none.mp4", "--no-viewer", shell="; echo $? > code")
    process.stderr.close()
    process.wait(60)
    assert (tmp_path / "code").read_text() == "2\n"


@pytest.mark.slow
def test_without_any_standard_stream(tmp_path: Path) -> None:
    write_video(tmp_path / "v.mp4", 5)
    code, _, err = end(start(tmp_path, "v.mp4", "-o", "a", "--port", "0", shell="<&-"))
    assert (code, err.count("Traceback")) == (0, 0)
    process = start(tmp_path, "v.mp4", "-o", "b", "--port", "0", shell="<&- >&- 2>&-")
    assert end(process)[0] == 0 and len(read_result(tmp_path / "b")) == 5


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_names_that_the_terminal_cannot_print(tmp_path: Path, encoding: str) -> None:
    write_video(tmp_path / "v.mp4", 5).rename(tmp_path / os.fsdecode(b"\xffv.mp4"))
    for name in ("hä", os.fsdecode(b"\xfe")):
        arguments = [os.fsdecode(b"\xffv.mp4"), "-o", name, "--no-viewer"]
        code, out, err = end(start(tmp_path, *arguments, PYTHONIOENCODING=encoding))
        assert (code, err.count("Traceback")) == (0, 0), err
        assert "result: " in out and len(read_result(tmp_path / name)) == 5


@pytest.mark.slow
def test_the_second_run_on_one_folder_is_told_at_once(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 30)
    write_video(tmp_path / "b.mp4", 12)
    first = start(tmp_path, "a.mp4", "-o", "mix", "--no-viewer", seconds=1.0)
    while not (tmp_path / "mix").exists() and first.poll() is None:
        time.sleep(0.02)
    for overwrite in ([], ["--overwrite"]):
        code, _, err = end(start(tmp_path, "b.mp4", "-o", "mix", "--no-viewer", *overwrite))
        assert code == 2 and len(err.splitlines()) == 1, err
        assert "another run is writing to mix (process" in err or "mix exists: use --overwrite" in err
    while not (tmp_path / "mix" / "cameras.json").exists() and first.poll() is None:
        time.sleep(0.02)
    first.send_signal(signal.SIGTERM)
    assert end(first)[0] == 130
    result = read_result(tmp_path / "mix")
    assert result.run["source"] == "a.mp4" and len(list(result)) >= 4


def test_terminating_it_while_it_loads_is_an_interruption(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def load(_: ModelChoice) -> FakeEngine:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)
        return FakeEngine()

    before = signal.getsignal(signal.SIGTERM)
    write_video(tmp_path / "v.mp4", 5)
    monkeypatch.setattr(ModelChoice, "load", load)
    assert run("v.mp4", "-o", "out", "--no-viewer") == 130
    assert signal.getsignal(signal.SIGTERM) is before
    assert capfd.readouterr().err == "stream-recon: stopped\n" and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (MemoryError(), "out of memory"),
        (RuntimeError("unable to mmap 62585728 bytes from file <w>: Cannot allocate memory (12)"), "out of memory"),
        (OSError(24, "Too many open files"), "the system refuses an operation: [Errno 24] Too many open files"),
    ],
)
def test_a_failed_load_leaves_no_folder(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    said: str,
) -> None:
    def load(_: ModelChoice) -> FakeEngine:
        raise error

    write_video(tmp_path / "v.mp4", 5)
    monkeypatch.setattr(ModelChoice, "load", load)
    assert run("v.mp4", "-o", "out", "--no-viewer") == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert said in line and not (tmp_path / "out").exists()


def test_a_result_of_nan_is_an_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write_video(tmp_path / "v.mp4", 12)

    class Broken(FakeEngine):
        def __init__(self, what: str, bad_from: int) -> None:
            super().__init__()
            self.what, self.bad_from = what, bad_from

        def push(self, frame: Any) -> Any:
            results = super().push(frame)
            for result in results:
                if result.index >= self.bad_from:
                    (result.depth if self.what == "depth" else result.T_world_camera)[:] = np.nan
            return results

    for number, (what, bad_from) in enumerate([("depth", 0), ("pose", 6)]):
        engine = Broken(what, bad_from)
        monkeypatch.setattr(ModelChoice, "load", lambda _, engine=engine: engine)
        assert run("v.mp4", "-o", str(number), "--no-viewer") == 2
        assert f"no finite pose or depth for frame {bad_from}" in capfd.readouterr().err.splitlines()[-1]
    assert len(list(read_result(tmp_path / "1"))) == 6


def test_a_source_that_is_lost_has_an_exit_code_of_its_own_kind(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from stream_recon.app.sources.live import LiveReader
    from stream_recon.app.sources.source import Source
    from stream_recon.app.stages import source_run
    from stream_recon.configs.errors import InputError
    from tests.app.sources.test_live import Camera, images

    def gone() -> Any:
        raise InputError("nothing answers")

    def opened(*_: Any, reconnect: float, **__: Any) -> Source:
        return Source(LiveReader(Camera(images(10)), "cam", gone, reconnect))  # type: ignore[arg-type]

    monkeypatch.setattr(source_run, "open_source", opened)
    assert run("0", "-o", "lost", "--no-viewer", "--reconnect", "0.5") == 3
    assert "cam was lost after" in capfd.readouterr().err.splitlines()[-1]
    record = json.loads((tmp_path / "lost" / "run.json").read_text())
    assert record["interrupted"] and record["source_lost"]
    assert run("0", "-o", "ended", "--no-viewer", "--reconnect", "0") == 0
    record = json.loads((tmp_path / "ended" / "run.json").read_text())
    assert not record["interrupted"] and not record["source_lost"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["99999999999"], "no such file or folder"),
        (["x" * 5000], "..."),
        (["v.mp4", "-o", "y" * 5000], "..."),
        (["v.mp4", "-o", "/proc/none"], "cannot write /proc/none"),
        (["v.mp4", "--start", "99"], "and its end"),
    ],
)
def test_odd_arguments_get_one_short_line(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    write_video(tmp_path / "v.mp4", 5)
    assert run(*arguments, "--no-viewer") == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert said in line and len(line) < 700 and "finished frames" not in line


def test_one_frame_in_an_age_is_the_first(run: Run, tmp_path: Path) -> None:
    write_video(tmp_path / "v.mp4", 5)
    assert run("v.mp4", "-o", "out", "--no-viewer", "--fps", "1e-300") == 0
    assert [result.index for result in read_result(tmp_path / "out")] == [0]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a video and its result."""
    folder = tmp_path_factory.mktemp("made")
    write_video(folder / "v.mp4", 9)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(ModelChoice, "load", lambda _: FakeEngine())
        assert exit_code(patched, "v.mp4", "-o", "out", "--no-viewer") == 0
    return folder


@pytest.fixture
def result(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "out"


def seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Exit code of ``view``, and frames on the page when the user has seen enough."""
    shown: list[int] = []

    def wait(viewer: Viewer) -> None:
        assert viewer.flush() and not viewer.failed
        shown.append(len(viewer.state.timeline))

    monkeypatch.setattr(Viewer, "wait", wait)
    return run("view", "out", "--port", "0"), sum(shown)


def compressed(path: Path) -> None:
    with np.load(path) as arrays:
        np.savez_compressed(path, **arrays)


def with_array(name: str, value: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with np.load(path) as arrays:
            changed = {**arrays, name: value}
        np.savez(path, **changed)

    return write


def nan_pixels(path: Path) -> None:
    with np.load(path) as arrays:
        depth = arrays["depth"].copy()
    depth[0] = [np.nan, np.inf] * (depth.shape[1] // 2)
    with_array("depth", depth)(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:900]),
    "other shape": with_array("depth", np.zeros((3, 4), np.float16)),
    "flat": with_array("depth", np.zeros(12, np.float16)),
    "one number": with_array("source_size", np.float64(5)),
    "size of nan": with_array("crop", np.full(4, np.nan)),
    "text": with_array("confidence", np.array("text")),
    "no JPEG": with_array("rgb_jpeg", np.zeros(100, np.uint8)),
    "another JPEG": with_array("rgb_jpeg", cv2.imencode(".jpg", np.zeros((9, 9, 3), np.uint8))[1].reshape(-1)),
    "compressed": compressed,
    "header": lambda path: path.write_bytes(path.read_bytes().replace(b"'descr'", b"'descr\n")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_damaged_depth_file_costs_its_frame_alone(
    run: Run, result: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    DAMAGES[damage](depth_path(result, 4))
    assert seen(run, monkeypatch) == (0, 8)
    err = capfd.readouterr().err
    assert "warning: 1 damaged frames are not shown: " in err and "Traceback" not in err


def test_pixels_that_are_not_finite_are_left_out(run: Run, result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nan_pixels(depth_path(result, 4))
    assert seen(run, monkeypatch) == (0, 9)


def edited(name: str, old: str, new: str) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return write


RECORDS: dict[str, Callable[[Path], object]] = {
    "nested": lambda folder: (folder / "run.json").write_text("[" * 100_000),
    "no source": edited("run.json", '"source"', '"sauce"'),
    "interrupted by text": edited("run.json", '"interrupted": false', '"interrupted": "no"'),
    "preset of text": lambda folder: replace_value(folder, "preset", "small"),
    "preset of numbers": lambda folder: replace_value(folder, "preset", {"points": 5}),
    "unit of numbers": lambda folder: replace_value(folder, "metric_scale", {"name": 7}),
    "unit that flattens": lambda folder: replace_value(
        folder,
        "metric_scale",
        {"name": "metre", "error": None, "from": "a", "how": "b", "world": "first camera", "origin": None}
        | {"T_metric_own": [[0] * 4] * 4},
    ),
    "voxel of 0": edited("run.json", '"voxel": 0.01', '"voxel": 0'),
    "nested camera": edited("cameras.json", '{"index": 3', "[" * 100_000 + '{"index": 3'),
    "camera of depth 100,000": edited("cameras.json", '{"index": 3', '{"index": ' + "[" * 100_000),
    "index of infinity": edited("cameras.json", '"index": 3', '"index": Infinity'),
    "focal length of nan": edited("cameras.json", '"fy": 32.0', '"fy": NaN'),
    "focal length of 0": edited("cameras.json", '"fx": 32.0', '"fx": 0'),
    "pose beyond all proportion": edited("cameras.json", "0.1]", "1e300]"),
    "depth scale of nan": edited("cameras.json", '"depth_scale": 1.0', '"depth_scale": NaN'),
    "flow of text": edited("cameras.json", '"flow": 0.5', '"flow": "much"'),
}


def replace_value(folder: Path, key: str, value: Any) -> None:
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {key: value}))


@pytest.mark.parametrize("damage", RECORDS)
def test_damaged_records_of_a_result_are_one_line(
    run: Run, result: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    RECORDS[damage](result)
    code, shown = seen(run, monkeypatch)
    err = capfd.readouterr().err
    assert "Traceback" not in err
    # A line that is no camera's is passed over; all else is refused.
    assert (code == 2 and err.startswith("stream-recon: error: ")) or (damage == "nested camera" and shown == 8)


def test_other_machines_get_a_warning_and_a_token(
    run: Run, result: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Viewer, "wait", lambda _: None)
    assert run("view", "out", "--port", "0", "--host", "0.0.0.0") == 0
    captured = capfd.readouterr()
    assert "/?token=" in captured.out and "127.0.0.1" not in captured.out
    assert "warning: the viewer is open to other machines: everyone with this address" in captured.err
    assert run("v.mp4", "-o", "again", "--port", "0", "--host", "0.0.0.0", "--mapping", "off") == 0
    warned = [line for line in capfd.readouterr().err.splitlines() if "warning:" in line]
    assert len(warned) == 1 and warned[0].endswith("can see and control it, unencrypted"), "one line"
    assert run("view", "out", "--port", "0", "--host", "", "--no-token") == 0
    captured = capfd.readouterr()
    assert "token" not in captured.out and "everyone who can reach this machine" in captured.err
    assert run("view", "out", "--port", "0") == 0
    captured = capfd.readouterr()
    assert "token" not in captured.out and captured.err == ""


def test_a_pause_ends_with_the_page_that_asked_for_it(tmp_path: Path) -> None:
    from stream_recon.configs.schema import PointsConfig
    from tests.app.viewer.clients import CAMERA
    from tests.app.viewer.test_guard import page, send

    with Viewer(PointsConfig(), port=0) as viewer:
        controls = viewer._server.gui._gui_input_handle_from_uuid
        pause = next(uuid for uuid, control in controls.items() if getattr(control, "label", "") == "Pause")

        def until(paused: bool) -> bool:
            deadline = time.monotonic() + 5
            while viewer.paused is not paused and time.monotonic() < deadline:
                threading.Event().wait(0.02)
            return viewer.paused is paused

        click = {"type": "GuiUpdateMessage", "uuid": pause, "updates": {"value": True}}
        with page(viewer.port) as other:
            send(other, CAMERA)
            with page(viewer.port) as client:
                send(client, CAMERA)
                send(client, click)
                assert until(True)
            assert until(False), "nobody is left to end it"
            with page(viewer.port) as client:
                send(client, CAMERA)
                send(client, click)
                assert until(True)
                send(other, click)
                assert until(False), "another page may end it, too"
