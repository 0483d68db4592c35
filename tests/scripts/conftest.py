"""Import path for tests of scripts."""

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _scripts_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (SCRIPTS, SCRIPTS / "reliability"):
        monkeypatch.syspath_prepend(str(folder))
