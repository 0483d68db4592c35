import io
import socket
from contextlib import ExitStack

import pytest

from stream_recon.app.cli import view
from stream_recon.app.cli.console import PlainConsole
from stream_recon.app.cli.view import ViewerChoice
from stream_recon.configs.errors import PortInUseError
from stream_recon.configs.schema import PointsConfig


def console() -> PlainConsole:
    made = PlainConsole(soft_wrap=True)
    made.file = io.StringIO()
    return made


def listening(stack: ExitStack, port: int = 0) -> int:
    """A port that another program listens on."""
    busy = stack.enter_context(socket.socket())
    busy.bind(("127.0.0.1", port))
    busy.listen()
    return int(busy.getsockname()[1])


def opened(port: int | None, out: PlainConsole) -> int:
    with ViewerChoice("127.0.0.1", port, keep_open=False).open(PointsConfig(), out, console()) as viewer:
        return viewer.port


def test_the_default_port_moves_on_to_the_next_free_one_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        taken = listening(stack)
        monkeypatch.setattr(view, "DEFAULT_PORTS", range(taken, taken + 100))
        out = console()
        port = opened(None, out)
    assert port > taken
    assert isinstance(out.file, io.StringIO)
    address, note = out.file.getvalue().splitlines()
    assert address.startswith(f"viewer: http://127.0.0.1:{port}")
    assert note == f"port {taken} is in use: the viewer took port {port}"


def test_a_port_that_was_given_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        taken = listening(stack)
        with pytest.raises(PortInUseError, match=f"port {taken} is in use"):
            opened(taken, console())
        monkeypatch.setattr(view, "DEFAULT_PORTS", range(taken, taken + 1))
        with pytest.raises(PortInUseError, match="choose another with --port"):
            opened(None, console())
    out = console()
    assert opened(taken, out) == taken
    assert isinstance(out.file, io.StringIO) and len(out.file.getvalue().splitlines()) == 1
