"""Work beside the stream: the same in a thread and in a process, ended by whoever asked, and missed when it is gone."""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest

from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.online.worker import BackgroundWorker, ProcessWorker, StopTest, ThreadWorker, serve
from stream_recon.configs.errors import ResourceError


class Counter:
    """Knows what it was asked for."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, _: StopTest, number: int) -> int:
        self.total += number
        return self.total

    def fail(self, _: StopTest) -> None:
        raise SingularError("nothing holds it")

    def wait(self, should_stop: StopTest) -> bool:
        end = time.monotonic() + 20
        while not should_stop() and time.monotonic() < end:
            time.sleep(0.01)
        return should_stop()


def in_process() -> tuple[ProcessWorker, BaseProcess]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, Counter), daemon=True)
    process.start()
    theirs.close()
    return ProcessWorker(ours, "counter"), process


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
    asked = [worker.submit("add", number) for number in range(5)]
    assert [each.future.result() for each in asked] == [0, 1, 3, 6, 10]
    worker.close()


def test_its_errors_are_raised_where_it_was_asked_and_it_goes_on(worker: BackgroundWorker) -> None:
    with pytest.raises(SingularError, match="nothing holds it"):
        worker.submit("fail").future.result()
    assert worker.submit("add", 2).future.result() == 2
    worker.close()


def test_what_nobody_wants_ends_and_what_comes_after_does_not(worker: BackgroundWorker) -> None:
    first = worker.submit("wait")
    time.sleep(0.2)
    first.stop()
    assert first.future.result() is True
    first.stop()
    after = worker.submit("wait")
    time.sleep(0.2)
    assert not after.future.done(), "a stop too late is nobody else's"
    after.stop()
    worker.close()


def test_where_it_is_gone_whoever_asks_is_told() -> None:
    worker, process = in_process()
    asked = worker.submit("wait")
    process.kill()
    for each in (asked, worker.submit("add", 1)):
        with pytest.raises(ResourceError, match="--resume"):
            each.future.result()
    worker.close()
