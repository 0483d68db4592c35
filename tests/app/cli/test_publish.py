"""Option ``--publish``: what is said, what is heard, and how it ends."""

import errno
import threading
from functools import partial
from pathlib import Path

import pytest

from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.publishing import mcap_sink
from stream_recon.app.run.options import RunOptions
from stream_recon.app.run.publish import publishing
from stream_recon.app.stages.mesh import MeshStage
from tests.app.fake_engine import FakeEngine
from tests.app.media import write_video
from tests.app.program import exit_code
from tests.app.publishing.peers import FoxgloveClient, free_port

pytest.importorskip("foxglove")
reader = pytest.importorskip("mcap.reader")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> partial[int]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelChoice, "load", lambda choice: FakeEngine(seconds=0.02))
    monkeypatch.setattr(MeshStage, "run", lambda stage, context: [])
    write_video(tmp_path / "a.mp4", 30)
    return partial(exit_code, monkeypatch, "a.mp4", "-o", "out", "--no-viewer", "--mapping", "off")


def test_a_run_is_recorded_and_heard(run: partial[int], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    port, topics = free_port(), set[str]()

    def listen() -> None:
        while True:
            try:
                client = FoxgloveClient(f"ws://127.0.0.1:{port}")
                break
            except OSError:
                continue
        client.subscribe(*client.channels)
        try:
            while True:
                topics.add(client.receive()[0])
        except Exception:  # noqa: BLE001  # the run ends
            return

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert run("--publish", "run.mcap", "--publish", f"foxglove://127.0.0.1:{port}") == 0
    thread.join(10)
    out = capfd.readouterr().out
    assert "publishing: run.mcap" in out and f"ws://127.0.0.1:{port}" in out
    assert {"/tf", "/stream_recon/odometry", "/stream_recon/points", "/stream_recon/depth"} <= topics
    with (tmp_path / "run.mcap").open("rb") as file:
        summary = reader.make_reader(file).get_summary()
        counts = {summary.channels[n].topic: count for n, count in summary.statistics.channel_message_counts.items()}
    assert counts["/stream_recon/odometry"] == counts["/stream_recon/points"] == 30


@pytest.mark.parametrize("address", ["ros", "foxglove?mount=1", "a.mcap"])
def test_a_wrong_address_is_one_line_and_leaves_nothing(
    run: partial[int], tmp_path: Path, capfd: pytest.CaptureFixture[str], address: str
) -> None:
    (tmp_path / "a.mcap").write_text("mine")
    assert run("--publish", address) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("stream-recon: error: ") and ("--publish" in line or "mount" in line)
    assert not (tmp_path / "out").exists() and (tmp_path / "a.mcap").read_text() == "mine"


def test_a_recording_that_fails_is_an_error_and_the_result_is_complete(
    run: partial[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write = mcap_sink._RecordingFile.write

    def fill(file: mcap_sink._RecordingFile, data: bytes) -> int:
        if file.tell() > 1000 and file.error is None:
            file.error = OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(mcap_sink._RecordingFile, "write", fill)
    assert run("--publish", "run.mcap") == 2
    err = capfd.readouterr().err
    assert "publishing ended early: run.mcap: No space left on device" in err and "run.part.mcap" in err
    assert (tmp_path / "out" / "points.ply").is_file() and not (tmp_path / "run.mcap").exists()


def test_a_robot_gets_results_with_the_stamps_of_its_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("zenoh")
    from tests.app.publishing.peers import PlainSubscriber, router, session
    from tests.app.sources.test_zenoh_topic import STAMP, TYPES, robot

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ModelChoice, "load", lambda choice: FakeEngine(seconds=0.05))
    monkeypatch.setattr(MeshStage, "run", lambda stage, context: [])
    with router() as endpoint, robot(endpoint), session(endpoint) as opened:
        heard = PlainSubscriber(opened, "0/stream_recon/odometry/**")
        source = f"zenoh://{endpoint}/camera/image/compressed"
        options = ("--max-frames", "12", "--no-viewer", "--mapping", "off", "-o", "out")
        assert exit_code(monkeypatch, source, *options, "--publish", f"zenoh://{endpoint}") == 0
    stamps = [TYPES.deserialize_cdr(data, "nav_msgs/msg/Odometry").header.stamp for _, data, _ in heard.samples]
    steps = [(stamp.sec - STAMP[0]) * 10**9 + stamp.nanosec - STAMP[1] for stamp in stamps]
    # The robot's images are 20 ms apart, to the nanosecond.
    assert len(steps) == 12 and steps == sorted(set(steps)) and all(step % 20_000_000 == 0 for step in steps)
    assert "publishing: zenoh" in capfd.readouterr().out


def test_no_address_opens_nothing() -> None:
    with publishing(RunOptions(), None, None, None) as publisher:  # type: ignore[arg-type]
        assert publisher is None
