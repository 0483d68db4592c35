from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from stream_recon.app.planning import budget
from stream_recon.app.planning.budget import H200, run_memory
from stream_recon.cache import cache_dtypes
from stream_recon.cache.cache_dtypes import CACHE_CHOICES
from stream_recon.configs.schema import load_preset
from tests.app.media import write_video
from tests.app.program import exit_code

Run = Callable[..., int]


@cache
def in_fp8() -> int:
    """Bytes of the whole preset with its cache in fp8, the last of the choices."""
    return run_memory(load_preset("small"), (12, 16), CACHE_CHOICES[-1]).total


def tight() -> str:
    return f"{(in_fp8() - 1_000_000) / 1e6:.0f}MB"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``stream-recon plan walk.mp4`` on a machine without a GPU, in a folder with that video; gives the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write_video(tmp_path / "walk.mp4", 2)
    return partial(exit_code, monkeypatch, "plan", "walk.mp4")


def error_line(capfd: pytest.CaptureFixture[str]) -> str:
    (line,) = capfd.readouterr().err.splitlines()
    return line.removeprefix("stream-recon: error: ")


@pytest.mark.slow
def test_a_preset_that_fits_is_used_by_its_name(
    run: Run, capfd: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    assert run("--memory", "2GB", "--preset", "small") == 0
    out, errors = capfd.readouterr()
    assert not errors and not recwarn.list, "no warning of a library"
    assert "walk.mp4, 64x48, in 2.00 GB" in out and "NVIDIA H200 (there is no CUDA device" in out
    (row,) = [line.replace("│", " ").split() for line in out.splitlines() if "224x168" in line]
    assert row[:4] == ["small", str(load_preset("small").stream.window), "224x168", "full"] and row[5] == "GB", out
    assert out.splitlines()[-1] == "stream-recon walk.mp4 --preset small"


@pytest.mark.slow
def test_where_little_is_missing_the_cache_goes_into_fp8(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--memory", f"{in_fp8() // 10**6 + 1}MB", "--preset", "small") == 0
    out = capfd.readouterr().out
    assert "needs a GPU of compute capability 8.9" in out
    assert out.splitlines()[-1] == "stream-recon walk.mp4 --preset small --cache fp8"


@pytest.mark.slow
def test_fp8_is_not_offered_on_a_gpu_that_cannot_read_it(
    run: Run, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(budget, "measure_rates", lambda device: H200)
    monkeypatch.setattr(cache_dtypes, "supports_fp8", lambda device: False)
    assert run("--memory", f"{in_fp8() // 10**6 + 1}MB", "--preset", "small") == 0
    assert "fp8" not in capfd.readouterr().out


@pytest.mark.slow
def test_a_larger_network_names_the_weights_it_needs(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--memory", "24GB") == 0
    out = capfd.readouterr().out
    assert "lingbot-map" in out and "small" in out
    assert out.splitlines()[-1] == "stream-recon walk.mp4 --preset lingbot-map --weights CHECKPOINT.safetensors"


@pytest.mark.slow
def test_what_to_change_is_printed_or_written(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--memory", tight(), "--preset", "small") == 0
    out = capfd.readouterr().out
    assert "[stream]\nwindow = 9\nspecial_budget = 384\n[image]\nmax_patches = 208\nmax_side = 378\n" in out
    assert out.splitlines()[-1] == "stream-recon walk.mp4 --preset FILE.toml --cache fp8"
    assert run("--memory", tight(), "--preset", "small", "--write", "mine.toml") == 0
    assert capfd.readouterr().out.splitlines()[-1] == "stream-recon walk.mp4 --preset mine.toml --cache fp8"
    mine, small = load_preset(str(tmp_path / "mine.toml")), load_preset("small")
    assert (mine.stream.window, mine.stream.special_budget) == (9, 384)
    assert (mine.network, mine.image, mine.points) == (small.network, small.image, small.points)


@pytest.mark.slow
def test_a_file_is_replaced_only_when_that_is_asked_for(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text("precious")
    arguments = ("--memory", tight(), "--preset", "small", "--write", "mine.toml")
    assert run(*arguments) == 2
    assert "mine.toml exists: use --overwrite" in error_line(capfd)
    assert mine.read_text() == "precious"
    assert run(*arguments, "--overwrite") == 0
    assert load_preset(str(mine)).stream.window == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "there is no CUDA device whose memory could be read: use --memory"),
        (("--memory", "much"), "--memory must be a size such as 8GB"),
        pytest.param(
            ("--memory", "100MB", "--preset", "small"),
            "the smallest configuration for this source, preset small",
            marks=pytest.mark.slow,
        ),
        (("--memory", "8GB", "--preset", "huge"), "no preset 'huge'"),
        (("--memory", "8GB", "--write", "mine.txt"), "a preset file's name ends in .toml"),
        pytest.param(
            ("--memory", "2GB", "--preset", "small", "--write", "none/mine.toml"),
            "cannot write none/mine.toml",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_bad_input_is_one_line(
    run: Run, arguments: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert message in error_line(capfd)


def test_a_video_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert exit_code(monkeypatch, "plan", "none.mp4", "--memory", "8GB") == 2
    assert "no such file" in error_line(capfd)
