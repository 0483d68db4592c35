"""Whether the back end of a run gets processes of its own."""

from typing import Any

import pytest

from stream_recon.app.run import back_end
from stream_recon.app.run.options import RunOptions
from tests.app.fake_engine import FakeEngine


@pytest.mark.parametrize(
    ("device", "cores", "frames", "in_processes"),
    [
        ("cpu", 2, 100, True),
        ("cpu", 2, None, True),
        ("cpu", 2, 20, False),
        ("cpu", 1, 100, False),
        ("cuda", 2, 100, False),
        ("cuda", 4, 100, True),
    ],
)
def test_processes_where_cores_and_frames_are_worth_it(
    monkeypatch: pytest.MonkeyPatch, device: str, cores: int, frames: int | None, in_processes: bool
) -> None:
    chosen: dict[str, Any] = {}
    monkeypatch.setattr(back_end, "make_back_end", lambda *_, **options: chosen.update(options))
    monkeypatch.setattr(back_end, "usable_cores", lambda: cores)
    engine = FakeEngine()
    engine.device = device

    back_end.run_back_end(RunOptions(), engine, None, live=False, known_intrinsics=False, frames=frames)

    assert chosen["separate_process"] == in_processes
