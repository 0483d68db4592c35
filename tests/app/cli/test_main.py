import errno
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.cli import evaluate
from stream_recon.app.cli.main import COMMANDS
from stream_recon.app.cli.reconstruct import default_output
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.folder import read_result
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.stages.dense import DenseStage
from stream_recon.app.stages.mesh import MeshStage
from stream_recon.app.stages.refine import RefineStage
from stream_recon.app.stages.stage import StageContext
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.errors import OutputError, SourceLostError
from tests.app.fake_engine import FakeEngine
from tests.app.media import write_broken_avi, write_images, write_video
from tests.app.program import exit_code

Run = Callable[..., int]
MAKE_MESH = MeshStage.run


@pytest.fixture
def loaded() -> list[ModelChoice]:
    """Each model that was asked for."""
    return []


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: list[ModelChoice]) -> Run:
    """The program in ``tmp_path``, with an engine that needs no network; gives the exit code."""

    def load(choice: ModelChoice) -> FakeEngine:
        loaded.append(choice)
        return FakeEngine()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelChoice, "load", load)
    # It takes seconds.
    monkeypatch.setattr(MeshStage, "run", lambda stage, context: [])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    return partial(exit_code, monkeypatch)


def error_line(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("stream-recon: error: ")
    return line


def test_threads_of_an_engine_on_a_gpu_are_not_set(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu(FakeEngine):
        def __setattr__(self, name: str, value: object) -> None:
            assert name != "threads", "torch refuses zero threads"
            super().__setattr__(name, value)

    monkeypatch.setattr(ModelChoice, "load", lambda choice: OnGpu())
    write_video(tmp_path / "a.mp4", 3)
    assert run("a.mp4", "--no-viewer", "--mapping", "off") == 0


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from stream_recon.app.cli.main import COMMANDS, main\n"
        "for words in (['--help'], ['--version'], *([word, '--help'] for word in COMMANDS)):\n"
        "    sys.argv = ['stream-recon', *words]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert not end.code\n"
        "    heavy = {'torch', 'cv2', 'numpy', 'viser', 'flashinfer', 'plyfile'} & set(sys.modules)\n"
        "    assert not heavy, (words, heavy)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_version(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capfd.readouterr().out.startswith("stream-recon 0.")


def test_one_argument_is_enough(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "my walk.mp4", 12)
    assert run("my walk.mp4", "--port", "0") == 0
    out = capfd.readouterr().out
    assert (
        "viewer: http://127.0.0.1:" in out
        and "result: my-walk-recon" in out
        and "stream: 12 frames" in out
        and "done in 0:0" in out
    )
    assert len(read_result(tmp_path / "my-walk-recon")) == 12


def test_the_address_is_printed_before_anything_is_computed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def load(_: ModelChoice) -> FakeEngine:
        printed.append(capfd.readouterr().out)
        return FakeEngine()

    monkeypatch.setattr(ModelChoice, "load", load)
    write_video(tmp_path / "a.mp4", 5)
    assert run("a.mp4", "--port", "0") == 0
    assert "viewer: http://127.0.0.1:" in printed[0]


def test_the_first_line_comes_before_anything_heavy_is_loaded(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 3)
    program = (
        "import sys; sys.argv = ['stream-recon', sys.argv[1], '--no-viewer']\n"
        "from stream_recon.app.cli.console import PlainConsole\n"
        "def first(console, line):\n"
        "    assert line == 'loading the network', line\n"
        "    heavy = {'torch', 'cv2', 'numpy', 'viser', 'scipy', 'rich.progress'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
        "    sys.exit(7)\n"
        "PlainConsole.print = first\n"
        "from stream_recon.app.cli.main import main\n"
        "main()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.mp4")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr


def test_a_source_that_is_missing_loads_no_network(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("none.mp4", "--no-viewer") == 2
    assert "loading" not in capfd.readouterr().out


def test_options_reach_source_and_engine(run: Run, tmp_path: Path, loaded: list[ModelChoice]) -> None:
    write_video(tmp_path / "a.mp4", 30)
    choice = ["--stride", "3", "--start", "0.5", "--end", "2.5", "--max-frames", "4"]
    model = ["--weights", "w.safetensors", "--device", "cpu", "--keyframes", "5", "--cache", "fp8"]
    assert run("a.mp4", "-o", "out", "--no-viewer", *choice, *model) == 0
    assert [r.index for r in read_result(tmp_path / "out")] == [5, 8, 11, 14]
    assert loaded == [ModelChoice("small", Path("w.safetensors"), "cpu", "auto", "5", "fp8")]
    options = read_result(tmp_path / "out").run["options"]
    assert options == {
        "source": "a.mp4", "stride": 3, "fps": None, "start": 0.5, "end": 2.5, "max_frames": 4, "camera": None,
        "keyframes": "5",
    }  # fmt: skip


def test_fps_and_preset_options(run: Run, tmp_path: Path, loaded: list[ModelChoice]) -> None:
    write_video(tmp_path / "a.mp4", 30)
    shutil.copy(Path(evaluate.__file__).parents[2] / "configs" / "small.toml", tmp_path / "own.toml")
    assert run("a.mp4", "-o", "out", "--no-viewer", "--fps", "2", "--preset", "own.toml", "--keyframes", "every") == 0
    assert [r.index for r in read_result(tmp_path / "out")] == [0, 5, 10, 15, 20, 25]
    assert (loaded[0].preset, loaded[0].keyframes) == ("own.toml", "every")


def test_bad_input_is_one_line_and_code_2(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "a.mp4", 3)
    write_video(tmp_path / "cut.mp4", 30)
    (tmp_path / "cut.mp4").write_bytes((tmp_path / "cut.mp4").read_bytes()[:300])
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.mp4").write_text("hello")
    mixed = write_images(tmp_path / "mixed", ["1.png", "2.png"])
    write_images(mixed, ["10.png"], (32, 48))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").write_text("x")
    (tmp_path / "bad.toml").write_text("[network]\nwidth = 1")
    cases = {
        ("none.mp4",): "no such file",
        ("text.mp4",): "text.mp4 is not a video",
        ("cut.mp4",): "cut.mp4 is not a video",
        ("empty",): "no images in empty",
        ("mixed",): "2 images are 64x48, the largest group, and 1 are not, such as 10.png (32x48)",
        ("a.mp4", "-o", "taken"): "taken exists: use --overwrite",
        ("a.mp4", "-o", "a.mp4"): "a.mp4 is a file",
        ("a.mp4", "--preset", "huge"): "no preset 'huge'",
        ("a.mp4", "--preset", "bad.toml"): "width",
        ("a.mp4", "--keyframes", "often"): "keyframes must be",
        ("a.mp4", "--stride", "0"): "--stride must be at least 1",
        ("a.mp4", "--start", "99"): "no frame between",
        ("view", "empty"): "empty is not a result",
        ("view", "none"): "no such result folder",
    }
    for arguments, message in cases.items():
        viewer = [] if arguments[0] == "view" else ["--no-viewer"]
        assert run(*arguments, *viewer) == 2, arguments
        err = capfd.readouterr().err
        lines = [line for line in err.splitlines() if "frames" not in line or "error" in line]
        assert message in lines[-1] and lines[-1].startswith("stream-recon: error: "), (arguments, err)
    assert (tmp_path / "taken" / "x").read_text() == "x"
    assert not (tmp_path / "mixed-recon").exists(), "sizes are compared before anything is computed"


def test_a_port_in_use(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "a.mp4", 3)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        assert run("a.mp4", "-o", "out", "--port", str(busy.getsockname()[1])) == 2
    assert "port" in error_line(capfd)
    assert not (tmp_path / "out").exists()


def test_bad_input_leaves_an_old_result_alone(run: Run, tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 6)
    assert run("a.mp4", "-o", "out", "--no-viewer") == 0
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "1.png").write_bytes(b"nothing")
    for source in ("none.mp4", "bad"):
        assert run(source, "-o", "out", "--overwrite", "--no-viewer") == 2
    assert len(list(read_result(tmp_path / "out"))) == 6


def test_a_mesh_comes_last_unless_it_is_not_wanted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MeshStage, "run", MAKE_MESH)
    write_video(tmp_path / "a.mp4", 12)
    options = ("a.mp4", "-o", "out", "--no-viewer", "--mapping", "off")
    assert run(*options, "--no-mesh") == 0
    assert not (tmp_path / "out" / "mesh.glb").exists() and "mesh: " not in capfd.readouterr().out
    assert run(*options, "--resume") == 0
    assert (tmp_path / "out" / "mesh.glb").is_file() and "mesh: mesh.glb, " in capfd.readouterr().out
    # Another run replaces it as a part of the result.
    assert run(*options, "--overwrite", "--no-mesh") == 0
    assert not (tmp_path / "out" / "mesh.glb").exists()


@pytest.mark.parametrize(
    ("options", "side"),
    [((), 384), (("--dense-side", "640"), 640), (("--dense", "off"), None), (("--mapping", "stream"), None)],
)
def test_dense_depth_follows_refinement_at_the_size_that_is_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], side: int | None
) -> None:
    asked: list[int] = []

    def densify(stage: DenseStage, context: StageContext) -> list[str]:
        asked.append(stage.side)
        return []

    monkeypatch.setattr(DenseStage, "why_not", lambda stage, context: None)
    monkeypatch.setattr(DenseStage, "run", densify)
    write_video(tmp_path / "a.mp4", 12)
    assert run("a.mp4", "-o", "out", "--no-viewer", "--no-mesh", *options) == 0
    assert asked == ([] if side is None else [side])


def test_a_size_out_of_range_is_refused_before_anything_is_written(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_video(tmp_path / "a.mp4", 6)
    assert run("a.mp4", "-o", "out", "--no-viewer", "--dense-side", "20") == 2
    assert "--dense-side" in error_line(capfd)
    assert not (tmp_path / "out").exists()


def test_overwrite_needs_the_option(run: Run, tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 6)
    assert run("a.mp4", "-o", "out", "--no-viewer") == 0
    assert run("a.mp4", "-o", "out", "--no-viewer", "--max-frames", "2") == 2
    assert len(read_result(tmp_path / "out")) == 6
    assert run("a.mp4", "-o", "out", "--no-viewer", "--max-frames", "2", "--overwrite") == 0
    assert len(read_result(tmp_path / "out")) == 2


def test_damage_is_a_warning_and_code_0(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_broken_avi(tmp_path / "b.avi", 30)
    assert run("b.avi", "--no-viewer", "-o", "out") == 0
    captured = capfd.readouterr()
    assert "warning: b.avi is cut off at" in captured.err and "damaged" in captured.out
    assert read_result(tmp_path / "out").run["frames"]["damaged"] > 0


def test_ctrl_c_has_its_own_exit_code(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(frame: Any) -> None:
        if frame.index == 7:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(ModelChoice, "load", lambda *_: FakeEngine(before_push=interrupt))
    write_video(tmp_path / "a.mp4", 100)
    assert run("a.mp4", "-o", "out", "--no-viewer") == 130
    assert len(read_result(tmp_path / "out")) == 8
    assert read_result(tmp_path / "out").run["interrupted"] is True


@pytest.mark.parametrize(
    "arguments", [("a.mp4", "-o", "out", "--overwrite"), ("a.mp4",), ("demo", "--max-frames", "40")]
)
def test_the_command_that_is_printed_after_ctrl_c_continues_the_run(
    run: Run, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str]
) -> None:
    def interrupt(frame: Any) -> None:
        if frame.index == 20:
            os.kill(os.getpid(), signal.SIGINT)

    write_video(tmp_path / "a.mp4", 40)
    monkeypatch.setattr(ModelChoice, "load", lambda *_: FakeEngine(before_push=interrupt))
    assert run(*arguments, "--no-viewer", "--mapping", "off") == 130
    (line,) = [line for line in capfd.readouterr().out.splitlines() if line.startswith("to continue: ")]
    program, *printed = shlex.split(line.removeprefix("to continue: "))
    monkeypatch.setattr(ModelChoice, "load", lambda *_: FakeEngine())
    assert program == "stream-recon" and run(*printed) == 0
    (result,) = (read_result(path.parent) for path in tmp_path.glob("*/run.json"))
    assert len(result) == 40 and result.run["interrupted"] is False and result.run["resumed"]


def test_nothing_can_be_paused_once_all_frames_are_in(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[bool, int]] = []

    def refined(stage: RefineStage, context: StageContext) -> list[str]:
        assert isinstance(context.view, Viewer)
        context.view.flush()
        seen.append((context.view.state.ended, len(context.view.state.timeline)))
        return []

    monkeypatch.setattr(RefineStage, "run", refined)
    write_video(tmp_path / "a.mp4", 9)
    assert run("a.mp4", "--port", "0") == 0
    assert seen == [(True, 9)]


@pytest.mark.slow
def test_keep_open_serves_until_ctrl_c(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "a.mp4", 5)
    threading.Timer(4.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begun = time.monotonic()
    assert run("a.mp4", "--port", "0", "--keep-open") == 0
    assert time.monotonic() - begun >= 3.5
    assert "The viewer stays open at http://127.0.0.1:" in capfd.readouterr().out


@pytest.mark.slow
def test_view_shows_a_result_until_ctrl_c(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "a.mp4", 9)
    assert run("a.mp4", "-o", "out", "--no-viewer") == 0
    (tmp_path / "a.mp4").unlink()
    capfd.readouterr()
    threading.Timer(4.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    assert run("view", "out", "--port", "0") == 0
    out = capfd.readouterr().out
    assert "viewer: http://127.0.0.1:" in out and "9 frames of a.mp4" in out


@pytest.mark.parametrize("word", ["view", "eval"])
def test_a_path_is_never_mistaken_for_a_command(
    run: Run, tmp_path: Path, word: str, capfd: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / word, ["1.png", "2.png"])
    write_video(tmp_path / f"{word}.mp4", 3)
    assert run(f"./{word}", "--no-viewer", "-o", "folder") == 0
    assert run(f"{word}.mp4", "--no-viewer", "-o", "video") == 0
    assert run("--no-viewer", "-o", "later", word) == 0
    assert [len(read_result(tmp_path / name)) for name in ("folder", "video", "later")] == [2, 3, 2]
    capfd.readouterr()
    assert run(word) == 2
    assert f"'{word}' is a command: for the file or folder of that name write ./{word}" in error_line(capfd)


def test_eval_passes_its_options_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def fake_run(*arguments: Any) -> int:
        seen.extend(arguments)
        return 1

    monkeypatch.setattr(evaluate, "evaluate_folders", fake_run)
    arguments = "a b --stride 5 --frames 48 --json r.json --preset p --weights w --device cpu --attention sdpa"
    assert run("eval", *arguments.split(), "--keyframes", "flow", "--side", "320") == 1
    assert seen == [
        [Path("a"), Path("b")],
        RunOptions(FrameChoice(5, max_frames=48), ModelChoice("p", Path("w"), "cpu", "sdpa", "flow", "full")),
        Path("r.json"),
        320,
    ]


def test_commands_and_panels_are_in_the_help(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("--help") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    shown = {line.strip("│ ").split(" ")[0] for line in lines}
    assert set(COMMANDS) <= shown and {"--mapping", "--reconnect", "--version"} <= shown
    titles = " ".join(line for line in lines if line.startswith("╭"))
    assert all(panel in titles for panel in ("Input", "Output", "Camera", "Network", "Mapping", "Viewer", "Commands"))


@pytest.mark.parametrize(
    ("typed", "offered", "not_offered"),
    [("vi", "view", "export"), ("--max-f", "--max-frames", "--mapping"), ("export out --fo", "--format", "--port")],
)
def test_the_shell_completes_commands_and_options(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: Any, typed: str, offered: str, not_offered: str
) -> None:
    words = ["stream-recon", *typed.split()]
    monkeypatch.setenv("_STREAM_RECON_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert run() == 0
    found = capsys.readouterr().out.split()
    assert offered in found and not_offered not in found


def test_demo_reconstructs_the_sample_and_prints_its_errors(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("demo", "--no-viewer", "--max-frames", "12", "--mapping", "off") == 0
    out = capfd.readouterr().out
    assert "result: demo-recon" in out and "against exact ground truth, 12 frames" in out and "AbsRel" in out
    assert len(read_result(tmp_path / "demo-recon")) == 12


def test_a_known_camera_of_scenes_is_given_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("eval", "batch"):
        assert run(command, "a", "--dataset-intrinsics", "--intrinsics", "100,100,50,50") == 2
        assert "not both" in capsys.readouterr().err
        assert run(command, "a", "--intrinsics", "exif.txt") == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_default_folder_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shots.v2").mkdir()
    names = {
        "clips/Été 1.mp4": "Été-1-recon",
        "shots.v2": "shots.v2-recon",
        "0": "camera-0-recon",
        "rtsp://user:secret@cam.local:554/live": "cam.local-recon",
    }
    for spec, name in names.items():
        assert default_output(spec, overwrite=False) == Path(name)
    (tmp_path / "shots.v2-recon").mkdir()
    (tmp_path / "shots.v2-recon-2").mkdir()
    assert default_output("shots.v2", overwrite=False) == Path("shots.v2-recon-3")
    assert default_output("shots.v2", overwrite=True) == Path("shots.v2-recon")


def test_run_json_is_plain_json(run: Run, tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 5)
    assert run("a.mp4", "-o", "out", "--no-viewer") == 0
    record = json.loads((tmp_path / "out" / "run.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert record["interrupted"] is False and record["attention"] == "sdpa" and record["cache"] == "full"


def test_a_known_camera_is_kept_throughout(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "walk", [f"{n}.png" for n in range(4)])
    (tmp_path / "camera.txt").write_text("1 SIMPLE_RADIAL 640 480 500 320 240 -0.1\n")
    assert run("walk", "--no-viewer", "-o", "out", "--intrinsics", "camera.txt") == 0
    (tmp_path / "camera.txt").unlink()
    result = read_result(tmp_path / "out")
    focals = {camera.intrinsics.fx for camera in result.cameras} | {c.intrinsics_causal.fx for c in result.cameras}
    assert len(focals) == 1
    assert result.run["network_focal"] not in (None, *focals)
    assert run("refine", "out") == 0
    assert {camera.intrinsics.fx for camera in read_result(tmp_path / "out").cameras} == focals
    assert run("export", "out", "--format", "transforms", "-o", "there") == 0
    content = json.loads((tmp_path / "there" / "transforms.json").read_text())
    assert content["fl_x"] == content["fl_y"] == pytest.approx(focals.pop())
    assert "small images" not in capfd.readouterr().err  # the source was read again, through the same lens
    assert run("walk", "--no-viewer", "-o", "two", "--intrinsics", "1,2,3") == 2
    assert "use fx,fy,cx,cy" in error_line(capfd)


def test_refine_and_mapping(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_images(tmp_path / "walk", [f"{n}.png" for n in range(4)])
    assert run("walk", "--no-viewer", "--mapping", "off", "-o", "off") == 0
    assert "refinement" not in read_result(tmp_path / "off").run
    assert run("walk", "--no-viewer", "-o", "full") == 0
    assert "refinement" in read_result(tmp_path / "full").run
    assert run("refine", "off") == 0
    assert "refinement" in read_result(tmp_path / "off").run
    capfd.readouterr()
    assert run("refine", "walk") == 2
    assert "is not a result" in error_line(capfd)


def test_the_result_is_one_json_object_on_stdout(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "a.mp4", 12)
    options = ("a.mp4", "-o", "out", "--no-viewer", "--mapping", "off", "--json")
    for more in ((), ("--resume",)):
        assert run(*options, *more) == 0
        out, err = capfd.readouterr()
        result = json.loads(out)
        assert result["result"] == "out" and result["frames"] == 12 and result["verdict"]["level"] == "doubtful"
        assert "result: out" in err


def test_a_verdict_can_be_a_failure(run: Run, tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", 12)
    options = ("a.mp4", "--no-viewer", "--mapping", "off", "--overwrite", "-o", "out")
    assert run(*options, "--fail-on", "failed") == 0
    assert run(*options, "--fail-on", "doubtful") == 1


def test_progress_can_be_lines_of_json(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_video(tmp_path / "a.mp4", 12)
    assert run("a.mp4", "--no-viewer", "--mapping", "off", "--progress", "json", "--log-level", "warning") == 0
    out, err = capfd.readouterr()
    states = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
    assert not out
    assert states[0]["stage"] == "1 of 2: frames" and states[-1]["stage"].startswith("2 of 2: ")
    assert any({"step": "frames", "done": 12, "total": 12}.items() <= state.items() for state in states)


def test_a_misspelt_command_is_named(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("srve") == 2
    assert "did you mean 'serve'?" in error_line(capfd)
    (tmp_path / "srve").mkdir()
    assert run("srve") == 2
    assert "did you mean" not in error_line(capfd)


@pytest.mark.parametrize(
    ("error", "code"),
    [(SourceLostError("gone"), 3), (OSError(errno.ENOSPC, "full"), 4), (OSError(errno.EMFILE, "files"), 2)],
)
def test_exit_codes_tell_what_ended_a_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(stage: MeshStage, context: StageContext) -> list[str]:
        if isinstance(error, OSError):
            raise OutputError("cannot be written") from error
        raise error

    monkeypatch.setattr(MeshStage, "run", fail)
    write_video(tmp_path / "a.mp4", 3)
    assert run("a.mp4", "--no-viewer", "--mapping", "off") == code


def test_what_does_not_find_a_scale_changes_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MeshStage, "run", MAKE_MESH)
    write_video(tmp_path / "a.mp4", 12)
    assert run("a.mp4", "-o", "out", "--no-viewer", "--mapping", "off") == 0
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "out").rglob("*.*")}
    assert run("scale", "out", "marker:0.16") == 2
    assert "marker" in capfd.readouterr().err
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "out").rglob("*.*")}
    assert after == before
