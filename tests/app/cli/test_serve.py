"""Command ``serve``: refusals in one line."""

import socket
import sys
from pathlib import Path

import pytest

from tests.app.program import exit_code


def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("stream_recon.app.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert exit_code(monkeypatch, "serve", "--data", str(tmp_path)) == 2
    assert "pip install starlette uvicorn segno cryptography" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--cert", "a.pem"], ["--cert", "a.pem", "--key", "b.pem"], ["--public-address", "x"]]
)
def test_options_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert exit_code(monkeypatch, "serve", "--data", str(tmp_path / "data"), *options) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_port_in_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert exit_code(monkeypatch, "serve", "--data", str(tmp_path / "data"), "--port", str(port)) == 2
    assert f"port {port} is in use" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    assert exit_code(monkeypatch, "serve", "--data", str(tmp_path / "file" / "data")) == 2
    assert "choose another --data" in capsys.readouterr().err
