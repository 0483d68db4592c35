"""Plugin of pytest that writes which test reaches which block of the program, also in programs that tests start.

scripts/reliability/mutants.py puts it into a copy of the program whose blocks call `reach`.
"""

import os

import pytest

_out = os.open(os.environ.get("REACH", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_seen = set[str]()
_test, _, _phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
if _phase != "(call)":
    _test = _test.partition("::")[0]


def reach(block: str) -> None:
    """Note a block, once for each test. What fixtures reach counts for all tests of the file."""
    if block not in _seen:
        _seen.add(block)
        os.write(_out, f"{block} {_test}\n".encode())


def _begin(name: str) -> None:
    global _test
    _test = name
    _seen.clear()


def pytest_collectstart(collector: pytest.Collector) -> None:
    _begin(collector.nodeid)


def pytest_runtest_logstart(nodeid: str) -> None:
    _begin(nodeid.partition("::")[0])


def pytest_runtest_call(item: pytest.Item) -> None:
    _begin(item.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Seconds of a test that passes."""
    if report.when == "call" and report.passed:
        os.write(_out, f"+{report.duration:.3f} {report.nodeid}\n".encode())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tests, and files of tests, that do not run here."""
    for kind in ("deselected", "skipped", "failed", "error"):
        for each in terminalreporter.stats.get(kind, []):
            os.write(_out, f"- {each.nodeid}\n".encode())
