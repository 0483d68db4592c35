"""The command line, run within the test process."""

import sys

import pytest

from stream_recon.app.cli import main


def exit_code(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Exit code of ``stream-recon`` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["stream-recon", *arguments])
    with pytest.raises(SystemExit) as end:
        main.main()
    return int(end.value.code or 0)
