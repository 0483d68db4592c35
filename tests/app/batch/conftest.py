from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app.batch import jobs
from stream_recon.app.stages.mesh import MeshStage
from tests.app.batch.fakes import RoomLoader
from tests.app.program import exit_code

Run = Callable[..., int]


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the engine was asked for; it is the room's."""
    asked: list[tuple[Any, ...]] = []

    def loader(*arguments: Any) -> RoomLoader:
        asked.append(arguments)
        return RoomLoader()

    monkeypatch.setattr(jobs, "EngineLoader", loader)
    return asked


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaders: list[tuple[Any, ...]]) -> Run:
    monkeypatch.chdir(tmp_path)
    # It takes seconds.
    monkeypatch.setattr(MeshStage, "run", lambda stage, context: [])
    return partial(exit_code, monkeypatch)
