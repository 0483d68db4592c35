"""Background workers: the same in a thread and in a process; stopped tasks and dead processes."""

import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest

from stream_recon.app.core.worker import BackgroundWorker, ProcessWorker, StopTest, ThreadWorker, serve, start_process
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
