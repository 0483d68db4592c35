"""The command ``splat`` with the plain rasterizer in the place of a GPU's."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from stream_recon.app.cli.main import app
from stream_recon.app.core.splats import read_splats
from stream_recon.app.splat import job
from stream_recon.app.splat.job import SplatEvents
from stream_recon.app.stages.splats import SplatStage
from tests.app.export.rooms import write_room
from tests.app.splat.plain import draw_plainly

FEW = ("--frames", "all", "--max-side", "32", "--max-splats", "50", "--no-viewer")


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SplatStage, "check", lambda stage: None)
    monkeypatch.setattr(job, "make_splats", partial(job.make_splats, device=torch.device("cpu"), draw=draw_plainly))


@pytest.fixture
def room(tmp_path: Path) -> Path:
    write_room(tmp_path / "out", 10, source=False)
    return tmp_path / "out"


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def test_it_says_what_came_out_and_writes_a_file_for_other_programs(room: Path, tmp_path: Path) -> None:
    code, output = run("splat", room, "--steps", 6, "-o", tmp_path / "x.spz", *FEW)
    assert code == 0, output
    words = " ".join(output.split())
    assert "50 splats, 6 steps" in words and "2 held-out images: PSNR" in words and "verdict:" in words
    assert (tmp_path / "x.spz").read_bytes()[:2] == b"\x1f\x8b"
    assert json.loads((room / "run.json").read_text())["splats"]["splats"] == 50
    code, output = run("splat", room, "--steps", 6, "-o", tmp_path / "x.spz", *FEW)
    assert code == 2 and "exists" in output


def test_ctrl_c_keeps_what_is_there_and_resume_goes_on(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pressed: list[object] = []

    def press(self: SplatEvents, splats: object) -> None:
        if not pressed:
            os.kill(os.getpid(), signal.SIGINT)
        pressed.append(splats)

    make = job.make_splats

    def with_ctrl_c(folder: Path, options: object, events: SplatEvents, *others: object) -> object:
        monkeypatch.setattr(type(events), "on_splats", press)
        return make(folder, options, events, *others)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(job, "make_splats", with_ctrl_c)
        code, output = run("splat", room, "--steps", 6, *FEW)
    assert code == 130 and "--resume continues" in " ".join(output.split()), output
    assert len(read_splats(room / "splats.ply")) == 50
    code, output = run("splat", room, "--steps", 6, "--resume", *FEW)
    assert code == 0 and "6 steps" in output, output
