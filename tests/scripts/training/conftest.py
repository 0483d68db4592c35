"""Training and its synthetic scenes are not part of the product: their long tests run in CI alone."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
LONG = (HERE / "synthetic", HERE / "test_trainer.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path == path or path in item.path.parents for path in LONG):
            item.add_marker(pytest.mark.slow)
