"""The publisher: queue, events, failures, files, cost; and the option of the command line."""

import logging
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.types import FrameResult, FrameRevision, Revision
from stream_recon.app.publishing.client_queue import MAX_SMALL, ClientQueue
from stream_recon.app.publishing.event_queue import MAX_RESULTS, EventQueue, FrameEvent, RevisionEvent
from stream_recon.app.publishing.frame_tree import UNKNOWN_VARIANCE, Tracked
from stream_recon.app.publishing.messages import (
    BULKY,
    Diagnostics,
    MapPose,
    Message,
    OdometryMessage,
    State,
    Topic,
    Transforms,
)
from stream_recon.app.publishing.publisher import Clock, PublisherOptions, ResultPublisher
from stream_recon.app.publishing.tracking_state import TrackingState
from stream_recon.configs.errors import OutputError
from tests.app.fake_engine import POINTS, fake_result, frames, prepared
from tests.app.publishing.peers import eventually
from tests.app.publishing.runs import drifting_walk, last_revision


class KeptSink:
    """Sink that keeps messages; ``before``: called with each."""

    address = "a test"

    def __init__(
        self, *topics: Topic, lossless: bool = False, before: Callable[[Topic], None] = lambda topic: None
    ) -> None:
        self.messages: list[tuple[Topic, Message]] = []
        self.lossless = lossless
        self.topics, self._before = frozenset(topics), before
        self.new: frozenset[Topic] = frozenset()
        self.wake: Callable[[], None] = lambda: None
        self.closed = False

    def start(self, wake: Callable[[], None]) -> None:
        self.wake = wake

    def wants(self, topic: Topic) -> bool:
        return topic in self.topics

    def joined(self) -> frozenset[Topic]:
        found, self.new = self.new, frozenset()
        return found

    def send(self, topic: Topic, message: Message) -> None:
        self._before(topic)
        self.messages.append((topic, message))

    def close(self) -> None:
        self.closed = True

    def of(self, topic: Topic) -> list[Message]:
        return [message for found, message in self.messages if found is topic]


def _options(*, live: bool = False) -> PublisherOptions:
    return PublisherOptions(POINTS, Clock(1000, live))


def _result(index: int = 0, health: float | None = 0.9, segment: int = 0) -> FrameResult:
    result = fake_result(prepared(frames(1)[0]))
    return replace(result, index=index, timestamp=index / 10, health=health, segment=segment)


def test_a_slow_sink_gets_all_poses_and_the_newest_clouds() -> None:
    release = threading.Event()
    sink = KeptSink(Topic.ODOMETRY, Topic.POINTS, before=lambda topic: bool(release.wait(10)) and None)
    with ResultPublisher([sink], _options()) as publisher:
        began = time.monotonic()
        for index in range(100):
            publisher.add(_result(index))
        assert time.monotonic() - began < 2.0
        release.set()
    stamps = [message.stamp_ns for message in sink.of(Topic.ODOMETRY) if isinstance(message, OdometryMessage)]
    assert stamps == [1000 + index * 10**8 for index in range(100)]
    clouds = [message.stamp_ns for message in sink.of(Topic.POINTS)]
    assert len(clouds) <= MAX_RESULTS + 1 and clouds[-1] == stamps[-1] and publisher.dropped >= 95


def test_a_lossless_sink_gets_everything() -> None:
    sink = KeptSink(*Topic, lossless=True, before=lambda topic: time.sleep(0.001))
    with ResultPublisher([sink], _options()) as publisher:
        for index in range(30):
            publisher.add(_result(index))
    assert len(sink.of(Topic.POINTS)) == len(sink.of(Topic.ODOMETRY)) == 30 and sink.closed
    assert len(sink.of(Topic.PATH)) >= 1


def test_a_sink_that_fails_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fail(topic: Topic) -> None:
        if topic is Topic.ODOMETRY:
            raise OutputError("disk full")

    bad, good = KeptSink(*Topic, before=fail), KeptSink(Topic.ODOMETRY)
    with caplog.at_level(logging.WARNING), ResultPublisher([bad, good], _options()) as publisher:
        for index in range(3):
            publisher.add(_result(index))
    assert publisher.failures == ["a test: disk full"] and len(good.messages) == 3
    assert sum("disk full" in record.message for record in caplog.records) == 1


def test_where_publishing_breaks_the_run_goes_on_and_nothing_is_kept_for_it() -> None:
    release = threading.Event()

    class BrokenSink(KeptSink):
        def joined(self) -> frozenset[Topic]:
            raise ZeroDivisionError("a mistake of the program")

    sink = BrokenSink(Topic.POINTS, before=lambda topic: bool(release.wait(10)) and None)
    with ResultPublisher([sink], _options()) as publisher:
        for index in range(2):
            publisher.add(_result(index))
        waiting = _result(2)
        kept = weakref.ref(waiting)
        publisher.add(waiting)
        del waiting
        sink.wake()
        release.set()
        assert eventually(lambda: publisher.failures)
        publisher.add(_result(3))
        assert eventually(lambda: kept() is None) and publisher.flush()
    assert publisher.failures == ["publishing failed: a mistake of the program"]


def test_a_revision_moves_map_to_odom_alone() -> None:
    sink = KeptSink(Topic.TF)
    items = drifting_walk()
    with ResultPublisher([sink], _options()) as publisher:
        for item in items:
            publisher.revise(item) if isinstance(item, Revision) else publisher.add(item)
        publisher.flush()
        count = len(sink.messages)
        publisher.revise(last_revision(items))
        publisher.flush()
        new = [message for _, message in sink.messages[count:]]
        assert len(new) == 1 and isinstance(new[0], Transforms)
        assert [(each.parent, each.child) for each in new[0].transforms] == [("map", "odom")]
    stamps = [message.stamp_ns for _, message in sink.messages]
    # tf2 refuses a second transform of one stamp.
    assert stamps == sorted(set(stamps))


def test_a_new_peer_gets_what_holds() -> None:
    sink = KeptSink()
    with ResultPublisher([sink], _options()) as publisher:
        publisher.add(_result())
        publisher.flush()
        assert not sink.messages
        sink.topics = sink.new = frozenset({Topic.TF, Topic.TF_STATIC, Topic.PATH, Topic.DIAGNOSTICS})
        sink.wake()
        assert eventually(lambda: {topic for topic, _ in sink.messages} == sink.topics)


def test_nobody_listens_costs_little_and_keeps_nothing() -> None:
    """Ten minutes of a run without peers, shortened; measured by this process's CPU time."""
    sink, result = KeptSink(), _result()
    with ResultPublisher([sink], _options()) as publisher:
        for index in range(200):
            publisher.add(replace(result, index=index))
        publisher.flush()
        blocks, used = sys.getallocatedblocks(), time.process_time()
        for index in range(200, 5200):
            publisher.add(replace(result, index=index, timestamp=index / 30))
            if index % 100 == 0:
                publisher.flush()
        publisher.flush()
        used = time.process_time() - used
        # Poses of the path are kept, at most 4,096 of some hundred bytes each.
        assert sys.getallocatedblocks() - blocks < 60_000
    assert used / 5000 < 0.002  # seconds a frame
    assert not sink.messages


def test_queue_merges_revisions_and_forgets_old_results() -> None:
    queue, result = EventQueue(), _result()
    tracked = Tracked.of(result, 0)
    for _ in range(10):
        queue.add(tracked, result)
    for x in range(5):
        T = np.eye(4)
        T[0, 3] = x
        queue.revise(Revision((FrameRevision(x % 2, T),)))
    events = [queue.take() for _ in range(len(queue))]
    assert [isinstance(e, FrameEvent) and e.result is not None for e in events] == [False] * 6 + [True] * 4 + [False]
    last = events[-1]
    assert isinstance(last, RevisionEvent) and last.frames[0].T_world_camera[0, 3] == 4
    assert queue.take() is None and queue.dropped_results == 6


def test_client_queue_prefers_poses_and_is_bounded() -> None:
    queue = ClientQueue()
    for number in range(3 * MAX_SMALL):
        queue.put(Topic.ODOMETRY, number, b"")
        for topic in BULKY:
            queue.put(topic, number, b"large")
    assert len(queue) == MAX_SMALL + len(BULKY)
    first = queue.take()
    assert first is not None and first[:2] == (Topic.ODOMETRY, 2 * MAX_SMALL)
    rest = [queue.take() for _ in range(len(queue))]
    assert {item[1] for item in rest if item is not None and item[0] in BULKY} == {3 * MAX_SMALL - 1}


def test_states_of_tracking() -> None:
    state = TrackingState(silence_s=2.0)

    def after(*healths: float | None, segment: int = 0) -> State:
        for health in healths:
            state.add(Tracked.of(_result(0, health, segment), 0))
        return state.state

    assert state.state is State.INITIALISING
    assert after(None) is State.INITIALISING
    assert after(0.8) is State.TRACKING
    assert after(0.1) is State.TRACKING  # one blurred frame
    assert after(0.1, 0.1, 0.1, 0.1) is State.WEAK and state.reason
    assert after(0.5, 0.5, 0.5) is State.WEAK  # it recovers
    assert after(0.8, 0.8) is State.TRACKING
    assert after(0.0, 0.0, 0.0, 0.0, 0.0) is State.LOST
    assert after(*[0.9] * 5) is State.TRACKING
    assert after(None, segment=1) is State.LOST and "interrupted" in state.reason
    assert after(0.9, segment=1) is State.TRACKING
    state.silent(5.0)
    assert state.state is State.LOST and "5 s" in state.reason


def test_a_lost_pose_is_said_to_be_a_guess() -> None:
    sink = KeptSink(Topic.POSE)
    with ResultPublisher([sink], _options()) as publisher:
        publisher.add(_result(0, None))
        publisher.add(_result(1))
        publisher.add(_result(2, None, segment=1))
        publisher.add(_result(3, 0.9, segment=1))
    variances = [np.diag(message.covariance).max() for message in sink.of(Topic.POSE) if isinstance(message, MapPose)]
    assert [variance == UNKNOWN_VARIANCE for variance in variances] == [False, False, True, False]


def test_silence_is_reported() -> None:
    sink = KeptSink(Topic.DIAGNOSTICS)
    with ResultPublisher([sink], replace(_options(live=True), heartbeat_s=0.02, silence_s=0.1)) as publisher:
        publisher.add(_result())

        def lost() -> bool:
            message = sink.messages[-1][1] if sink.messages else None
            return isinstance(message, Diagnostics) and message.state is State.LOST

        assert eventually(lost)


def test_recording_has_every_message(tmp_path: Path) -> None:
    pytest.importorskip("foxglove")
    reader = pytest.importorskip("mcap.reader")
    from stream_recon.app.publishing.address import open_sinks, parse_address

    path = tmp_path / "walk.mcap"
    with ResultPublisher(open_sinks([parse_address(str(path))]), _options()) as publisher:
        for item in drifting_walk(40):
            publisher.revise(item) if isinstance(item, Revision) else publisher.add(item)
        assert not path.exists()  # the name appears when it is complete
    assert not publisher.failures
    with path.open("rb") as file:
        counts: dict[str, int] = {}
        for _, channel, message in reader.make_reader(file).iter_messages():
            counts[channel.topic] = counts.get(channel.topic, 0) + 1
            assert message.log_time >= 1000
    assert counts[Topic.ODOMETRY] == counts[Topic.POINTS] == counts[Topic.DEPTH] == 40
    with pytest.raises(OutputError, match="exists"):
        open_sinks([parse_address(str(path))])
    assert [each.name for each in tmp_path.iterdir()] == ["walk.mcap"]
