from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from stream_recon.models.weights import PUBLISHED_MARK, read_tensors
from tests.app.program import exit_code

Run = Callable[..., int]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``stream-recon convert`` in a folder with a small checkpoint, p.pt; gives the exit code."""
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {f"{PUBLISHED_MARK}weight": torch.ones(3), "module.depth_head.scale": torch.zeros(2)}}, "p.pt")
    return partial(exit_code, monkeypatch, "convert")


def error_line(capfd: pytest.CaptureFixture[str]) -> str:
    (line,) = capfd.readouterr().err.splitlines()
    return line


def test_a_checkpoint_becomes_a_file_of_weights(run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("p.pt", "w.safetensors") == 0
    assert "2 tensors written to w.safetensors" in capfd.readouterr().out
    assert len(read_tensors(tmp_path / "w.safetensors")) == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.pt", "w.safetensors"]


def test_a_file_is_replaced_only_when_that_is_asked_for(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "w.safetensors"
    target.write_bytes(b"kept")
    assert run("p.pt", "w.safetensors") == 2
    assert "w.safetensors exists: use --overwrite" in error_line(capfd)
    assert target.read_bytes() == b"kept"
    assert run("p.pt", "w.safetensors", "--overwrite") == 0
    assert len(read_tensors(target)) == 2


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("none.pt", "w.safetensors", "no checkpoint at none.pt"),
        ("p.pt", "w.pt", "the name of a weights file ends in"),
        ("p.pt", "nowhere/w.safetensors", "cannot write nowhere/w.safetensors"),
        ("text.pt", "w.safetensors", "text.pt is"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], source: str, target: str, message: str
) -> None:
    (tmp_path / "text.pt").write_text("no tensors")
    assert run(source, target) == 2
    assert message in error_line(capfd)
    assert not list(tmp_path.rglob("*.safetensors*"))
    assert not (tmp_path / "w.pt").exists()


def test_weights_in_a_pickle_name_the_command(run: Run, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"stream-recon convert .*p\.pt OUT\.safetensors"):
        read_tensors(tmp_path / "p.pt")
