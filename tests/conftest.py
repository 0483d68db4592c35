"""Settings of the test process."""

import faulthandler
import gc
import importlib
import os
import signal
from collections.abc import Generator, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.chromium import chromium, fresh_page

# A shell starts background processes with SIGINT ignored. Programs that tests start would inherit that, and those that
# tests stop by Ctrl-C would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)
# With several test processes each one, and each program that it starts, uses one core.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# The package sets the thread count of numpy's products before numpy is imported. With another count here than in the
# program's own processes, results would differ in their last digits.
importlib.import_module("stream_recon.app")
LIMIT_S = 300
"""Of a test with its fixtures; what this error does not end, pytest's faulthandler_timeout ends with its process."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that hangs fails with its stack."""

    def fail(*_: object) -> None:
        faulthandler.dump_traceback(all_threads=True)
        pytest.fail(f"{item.nodeid} takes longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT_S)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first, so that no process ends long after the others; those that wait for a browser alternate
    with those that compute, so that no core is idle."""
    files = {item.path: list[pytest.Item]() for item in items}
    for item in items:
        files[item.path].append(item)
    browser = [path for path, tests in files.items() if any(test.get_closest_marker("browser") for test in tests)]
    slow = [path for path, tests in files.items() if any(test.get_closest_marker("slow") for test in tests)]
    pairs = zip_longest(browser, (path for path in slow if path not in browser))
    order = [path for pair in pairs for path in pair if path is not None]
    order += [path for path in files if path not in order]
    items[:] = [item for path in order for item in files[path]]


def pytest_collection_finish() -> None:
    """What was imported and collected lives to the end: each collection of garbage would look through all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def _chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture
def browser(_chromium: Any, tmp_path: Path) -> Iterator[Any]:
    """A new tab of this test process's Chromium; see `fresh_page`."""
    with fresh_page(_chromium, tmp_path / "downloads") as driver:
        yield driver
