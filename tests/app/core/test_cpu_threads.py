"""Threads give way to other programs, and come back."""

import os
import time
from pathlib import Path

import pytest

from stream_recon.app.core.cpu_threads import (
    OWN_CHOICES,
    ThreadBudget,
    adaptive_threads,
    initial_threads,
    threads_are_chosen,
)


class Machine:
    """Cores whose use is told by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, cores: int) -> None:
        self.seconds, self.used, self.own = 100.0, 0.0, 0.0
        self._cores = cores
        self.statistics = folder / "stat"
        self._write()
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
        monkeypatch.setattr(time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(os, "times", lambda: os.times_result((self.own, 0.0, 0.0, 0.0, self.seconds)))

    def pass_by(self, seconds: float, others: float, own: float) -> None:
        """``others``, ``own``: cores in use meanwhile."""
        self.seconds += seconds
        self.own += own * seconds
        self.used += (others + own) * seconds
        self._write()

    def _write(self) -> None:
        ticks = round(self.used * os.sysconf("SC_CLK_TCK") / self._cores)
        lines = [f"cpu{core} {ticks} 0 0 0 0 0 0 0 0 0" for core in range(self._cores)]
        self.statistics.write_text(
            "\n".join(["cpu  0 0 0 0 0 0 0 0 0 0", *lines, "cpu99 777 0 0 0 0 0 0 0 0 0", "intr 5"])
        )


def settled(machine: Machine, budget: ThreadBudget, others: float, own: float) -> int:
    for _ in range(4):
        machine.pass_by(0.6, others, own)
        budget.measure()
    return budget.measure()


@pytest.mark.parametrize(
    ("cores", "others", "threads"), [(2, 0.0, 2), (2, 0.3, 2), (2, 0.9, 1), (2, 2.0, 1), (16, 3.1, 13)]
)
def test_a_thread_for_each_core_that_others_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cores: int, others: float, threads: int
) -> None:
    machine = Machine(monkeypatch, tmp_path, cores)
    budget = ThreadBudget(cores, machine.statistics)
    assert settled(machine, budget, others, cores - others) == threads
    assert settled(machine, budget, 0.0, cores) == cores


def test_a_short_burst_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, 2)
    budget = ThreadBudget(2, machine.statistics)
    for others, own in ((0.0, 2.0), (1.5, 0.5), (0.0, 2.0), (1.5, 0.5)):
        machine.pass_by(0.6, others, own)
        assert budget.measure() == 2


def test_the_first_look_is_soon_and_believed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, 2)
    budget = ThreadBudget(2, machine.statistics)
    machine.pass_by(0.07, 1.0, 1.0)
    assert budget.measure() == 2
    machine.pass_by(0.07, 1.0, 1.0)
    assert budget.measure() == 1


def test_never_more_threads_than_the_share_of_a_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path, 16)
    budget = ThreadBudget(4, machine.statistics)
    assert settled(machine, budget, 8.0, 4.0) == 4
    assert settled(machine, budget, 15.5, 0.5) == 1


def test_nothing_changes_where_the_system_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    budget = ThreadBudget(8, tmp_path / "missing")
    monkeypatch.setattr(time, "monotonic", lambda: 1e9)
    assert budget.measure() == 8


def test_what_users_set_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OWN_CHOICES:
        monkeypatch.delenv(name, raising=False)
    with initial_threads(3):
        assert os.environ["OMP_NUM_THREADS"] == "3"
    assert not threads_are_chosen()
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with initial_threads(3):
        assert os.environ["OMP_NUM_THREADS"] == "5"
    assert threads_are_chosen()


class Worker:
    threads = 2


def test_a_run_gives_way_and_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in OWN_CHOICES:
        monkeypatch.delenv(name, raising=False)
    machine, worker = Machine(monkeypatch, tmp_path, 2), Worker()
    with adaptive_threads(worker, machine.statistics) as adapt:
        machine.pass_by(1.0, 1.0, 1.0)
        adapt()
        assert worker.threads == 1
    assert worker.threads == 2


def test_a_run_with_chosen_threads_keeps_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "1000")
    machine, worker = Machine(monkeypatch, tmp_path, 2), Worker()
    with adaptive_threads(worker, machine.statistics) as adapt:
        machine.pass_by(1.0, 1.0, 1.0)
        adapt()
        assert worker.threads == 2
