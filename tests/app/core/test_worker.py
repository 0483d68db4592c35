"""Background workers: the same in a thread and in a process; stopped tasks and dead processes."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from stream_recon.app.core import cores
from stream_recon.app.core.worker import (
    BackgroundWorker,
    Companion,
    ProcessGroup,
    ProcessWorker,
    StopTest,
    ThreadWorker,
    serve,
    start_process,
)
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.configs.errors import ResourceError


class Counter:
    """Target with a state."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, _: StopTest, number: int) -> int:
        self.total += number
        return self.total

    def fail(self, _: StopTest) -> None:
        raise SingularError("no solution")

    def wait(self, should_stop: StopTest) -> bool:
        end = time.monotonic() + 20
        while not should_stop() and time.monotonic() < end:
            time.sleep(0.01)
        return should_stop()


def in_process() -> tuple[ProcessWorker, BaseProcess]:
    process, connection = start_process("counter", serve, Counter)
    return ProcessWorker(connection, "counter", "it has ended: use --resume"), process


@pytest.fixture(params=["thread", "process"])
def worker(request: pytest.FixtureRequest) -> Iterator[BackgroundWorker]:
    if request.param == "thread":
        yield ThreadWorker(Counter(), "counter")
        return
    worker, process = in_process()
    yield worker
    process.join(20)
    assert process.exitcode == 0, "it ends when it is closed"


def test_it_does_one_thing_after_the_other_and_remembers(worker: BackgroundWorker) -> None:
    tasks = [worker.submit("add", number) for number in range(5)]
    assert [each.future.result() for each in tasks] == [0, 1, 3, 6, 10]
    worker.close()


def test_its_errors_are_raised_where_it_was_asked_and_it_goes_on(worker: BackgroundWorker) -> None:
    with pytest.raises(SingularError, match="no solution"):
        worker.submit("fail").future.result()
    assert worker.submit("add", 2).future.result() == 2
    worker.close()


def test_a_stopped_task_ends_and_the_next_one_does_not(worker: BackgroundWorker) -> None:
    first = worker.submit("wait")
    time.sleep(0.2)
    first.stop()
    assert first.future.result() is True
    first.stop()
    after = worker.submit("wait")
    time.sleep(0.2)
    assert not after.future.done(), "a late stop does not affect the next task"
    after.stop()
    worker.close()


def test_a_dead_process_raises_an_error() -> None:
    worker, process = in_process()
    task = worker.submit("wait")
    process.kill()
    for each in (task, worker.submit("add", 1)):
        with pytest.raises(ResourceError, match="--resume"):
            each.future.result()
    worker.close()


def test_a_group_gives_results_in_order_and_says_that_a_process_died() -> None:
    group = ProcessGroup("counters", 2, Counter)
    try:
        # Each process has a counter of its own.
        assert group.map("add", [(number,) for number in (1, 10, 2, 20, 3)]) == [1, 10, 3, 30, 6]
        with pytest.raises(SingularError, match="no solution"):
            group.map("fail", [()])
        assert group.map("add", [(1,)]) == [7]
        group._processes[1].kill()
        with pytest.raises(ResourceError, match="has ended"):
            group.map("add", [(1,), (1,)])
    finally:
        group.close()


def test_a_companion_calls_a_function_while_other_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "all_cores", lambda: 2)
    companion, done = Companion("companion"), list[int]()
    try:
        assert companion.call(os.getpid, (done.append(number) for number in range(1))) != os.getpid()
        assert done == [0]
        endless = companion.call(partial(time.sleep, 0.3), (time.sleep(0.01) for _ in range(10**6)))
        assert endless is None
        with pytest.raises(ValueError, match="literal"):
            companion.call(partial(int, "no number"))
        # It dies in the call, which is then made here.
        assert companion.call(partial(_kill_other, os.getpid())) == os.getpid()
    finally:
        companion.close()


def test_on_one_core_a_companion_is_this_process_and_nothing_is_done_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "all_cores", lambda: 1)
    companion, done = Companion("companion"), list[int]()
    assert companion.call(os.getpid, (done.append(number) for number in range(1))) == os.getpid()
    assert done == []
    companion.close()


def _kill_other(here: int) -> int:
    if os.getpid() != here:
        os.kill(os.getpid(), 9)
    return here


def test_a_script_without_a_guard_may_start_processes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from functools import partial\n"
        "from stream_recon.app.core.worker import ProcessGroup\n"
        "from stream_recon.app.run.live_dense import GroupStereo\n"
        "group = ProcessGroup('group', 1, partial(GroupStereo, 'cpu'))\n"
        "print(group.map('maps', [([],)]))\n"
        "group.close()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[[]]\n"
    assert done.stderr == ""
