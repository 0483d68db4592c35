import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import plyfile
import pytest
import torch

from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.types import Frame, FrameResult, PreparedFrame, Revision
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run import pipeline
from stream_recon.app.run.dispatch import DEFAULT_PIPELINE, PipelineConfig
from stream_recon.app.run.listeners import Progress, RunObserver
from stream_recon.app.run.pipeline import RunSetup, reconstruct
from stream_recon.app.sources.live import LiveReader
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import InputError, OutputError, ResourceError
from tests.app.fake_engine import FakeEngine, run_info, trajectory_of
from tests.app.media import numbered_image, write_broken_avi, write_images, write_video
from tests.app.sources.test_source import FakeCapture

ROOT = Path(__file__).parents[3]


class FakeViewer:
    def __init__(self) -> None:
        self.paused = False
        self.added: list[int] = []
        self.revised: list[int] = []

    def add(self, result: FrameResult) -> None:
        self.added.append(result.index)

    def revise(self, revision: Revision) -> None:
        self.revised += [frame.index for frame in revision.frames]


class Watching(RunObserver):
    """Keeps the progress, and pauses the run as a viewer wants it."""

    def __init__(self, viewer: FakeViewer | None = None) -> None:
        self.seen: list[Progress] = []
        self._viewer = viewer

    @property
    def paused(self) -> bool:
        return self._viewer is not None and self._viewer.paused

    def on_progress(self, progress: Progress) -> None:
        self.seen.append(progress)


def run(
    source: Source,
    out: Path,
    engine: FakeEngine | None = None,
    viewer: FakeViewer | None = None,
    config: PipelineConfig = DEFAULT_PIPELINE,
) -> RunSummary:
    setup = RunSetup(config=config)
    with source:
        writer = ResultWriter(out, run_info())
        if viewer is None:
            return reconstruct(source, engine or FakeEngine(), writer, setup=setup)
        return reconstruct(source, engine or FakeEngine(), writer, [viewer], setup, Watching(viewer))


def run_json(out: Path) -> dict[str, object]:
    record: dict[str, object] = json.loads((out / "run.json").read_text())
    return record


def test_every_frame_of_a_file_reaches_writer_and_viewer(tmp_path: Path) -> None:
    viewer, observer = FakeViewer(), Watching()
    source = open_source(str(write_video(tmp_path / "a.mp4", 30)))
    summary = reconstruct(source, FakeEngine(), ResultWriter(tmp_path / "out", run_info()), [viewer], observer=observer)
    assert viewer.added == list(range(30))
    assert [r.index for r in read_result(tmp_path / "out")] == list(range(30))
    assert (summary.frames_read, summary.frames_reconstructed, summary.keyframes) == (30, 30, 10)
    assert (summary.interrupted, summary.frames_dropped, summary.frames_damaged) == (False, 0, 0)
    assert summary.fps > 0 and summary.peak_host_memory_mb > 10 and summary.peak_device_memory_mb is None
    assert run_json(tmp_path / "out")["interrupted"] is False
    assert (observer.seen[-1].frames, observer.seen[-1].frame_hint, observer.seen[-1].keyframes) == (30, 30, 10)
    assert observer.seen[0].frames == 4, "the scale frames come together"


def test_a_viewer_gets_the_sources_image_before_each_keyframe(tmp_path: Path) -> None:
    order: list[tuple[str, int]] = []

    class Pictured(FakeViewer):
        def add(self, result: FrameResult) -> None:
            order.append(("keyframe" if result.is_keyframe else "frame", result.index))

        def add_image(self, index: int, image: np.ndarray) -> None:
            assert image.shape == (360, 640, 3), "reduced"
            order.append(("image", index))

    run(open_source(str(write_video(tmp_path / "a.mp4", 9, size=(1280, 720)))), tmp_path / "out", viewer=Pictured())
    keyframes = [index for kind, index in order if kind == "keyframe"]
    assert keyframes and [index for kind, index in order if kind == "image"] == keyframes
    assert all(order[at + 1] == ("keyframe", index) for at, (kind, index) in enumerate(order) if kind == "image")


@pytest.mark.parametrize("count", [1, 3, 4, 5])
def test_fewer_frames_than_scale_frames(tmp_path: Path, count: int) -> None:
    write_images(tmp_path / "in", [f"{i}.png" for i in range(count)])
    assert run(open_source(str(tmp_path / "in")), tmp_path / "out").frames_reconstructed == count
    assert trajectory_of(tmp_path / "out").shape == (count, 8)


@pytest.mark.parametrize("size", [(36, 64), (200, 40), (50, 50)])
def test_portrait_and_panorama_use_the_whole_image(tmp_path: Path, size: tuple[int, int]) -> None:
    write_images(tmp_path / "in", ["1.png", "2.png"], size)
    run(open_source(str(tmp_path / "in")), tmp_path / "out")
    for result in read_result(tmp_path / "out"):
        assert result.transform.crop == (0, 0, *size)
        assert (result.depth.shape[1] > result.depth.shape[0]) == (size[0] > size[1])


def test_latency_is_measured_from_push_to_result(tmp_path: Path) -> None:
    source = open_source(str(write_video(tmp_path / "a.mp4", 20)))
    summary = run(source, tmp_path / "out", FakeEngine(scale_frames=4, seconds=0.02))
    assert summary.latency_p50_ms is not None and summary.latency_p95_ms is not None
    assert 20 <= summary.latency_p50_ms < 60, "half of the frames take one step"
    assert summary.latency_p95_ms >= 60, "the first frame waits for three more"


def test_a_video_that_breaks_off_ends_normally(tmp_path: Path) -> None:
    summary = run(open_source(str(write_broken_avi(tmp_path / "b.avi", 30))), tmp_path / "out")
    record = run_json(tmp_path / "out")
    assert summary.frames_damaged == 30 - summary.frames_read > 0
    assert not summary.interrupted and "is cut off at" in str(record["warnings"])
    assert record["frames"] == {
        "read": summary.frames_read, "reconstructed": summary.frames_read, "keyframes": summary.keyframes,
        "dropped": 0, "damaged": summary.frames_damaged, "blank": 0, "without_depth": 0,
    }  # fmt: skip


def test_an_input_error_in_mid_run_keeps_what_was_done(tmp_path: Path) -> None:
    write_images(tmp_path / "in", [f"{i}.png" for i in range(9)])
    source = open_source(str(tmp_path / "in"))
    cv2.imwrite(str(tmp_path / "in" / "7.png"), numbered_image(7, (30, 30)))  # while it is read
    with pytest.raises(InputError, match=r"7\.png is 30x30"):
        run(source, tmp_path / "out")
    assert [r.index for r in read_result(tmp_path / "out")] == list(range(7))
    assert run_json(tmp_path / "out")["interrupted"] is True


def test_no_readable_frame_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.png").write_bytes(b"nothing")
    with pytest.raises(InputError, match="no frame of"):
        run(open_source(str(tmp_path / "in")), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_writer_that_fails_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed: list[int] = []
    add = ResultWriter.add

    def fail(self: ResultWriter, result: FrameResult) -> None:
        if result.index == 6:
            raise OutputError("disk full")
        add(self, result)

    monkeypatch.setattr(ResultWriter, "add", fail)
    source = open_source(str(write_video(tmp_path / "a.mp4", 200)))
    engine = FakeEngine(seconds=0.005, before_push=lambda frame: pushed.append(frame.index))
    with pytest.raises(OutputError, match="disk full"):
        run(source, tmp_path / "out", engine)
    assert len(pushed) < 150
    assert [r.index for r in read_result(tmp_path / "out")] == list(range(6))
    record = read_result(tmp_path / "out").run
    assert record["interrupted"] is True and record["frames"]["read"] == len(pushed)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nGPU 0 has ..."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
        MemoryError(),
    ],
)
def test_out_of_memory_says_what_to_lower(tmp_path: Path, error: Exception) -> None:
    def exhaust(frame: PreparedFrame) -> None:
        if frame.index == 6:
            raise error

    source = open_source(str(write_video(tmp_path / "a.mp4", 10)))
    with pytest.raises(ResourceError, match=r"--preset.*window.*max_patches") as raised:
        run(source, tmp_path / "out", FakeEngine(before_push=exhaust))
    assert "\n" not in str(raised.value)
    assert len(list(read_result(tmp_path / "out"))) == 6


def test_other_errors_of_the_engine_are_not_hidden(tmp_path: Path) -> None:
    def fail(frame: PreparedFrame) -> None:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run(open_source(str(write_video(tmp_path / "a.mp4", 10))), tmp_path / "out", FakeEngine(before_push=fail))
    assert threading.active_count() < 10


def test_pause_holds_a_file_and_loses_nothing(tmp_path: Path) -> None:
    viewer, states = FakeViewer(), list[int]()

    def pause(frame: PreparedFrame) -> None:
        if frame.index == 10:
            viewer.paused = True
            threading.Thread(target=resume).start()

    def resume() -> None:
        deadline = time.monotonic() + 10
        while len(viewer.added) < 11 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)
        states.append(len(viewer.added))
        viewer.paused = False

    source = open_source(str(write_video(tmp_path / "a.mp4", 20)))
    summary = run(source, tmp_path / "out", FakeEngine(before_push=pause), viewer)
    assert states == [11], "frame 10 was under way; no other came while paused"
    assert viewer.added == list(range(20)) and summary.frames_dropped == 0
    assert summary.seconds > 0.3


def test_pause_of_a_live_source_drops_and_counts(tmp_path: Path) -> None:
    viewer, pauses = FakeViewer(), list[int]()

    def pause(frame: PreparedFrame) -> None:
        # The viewer is fed by another thread: the engine may never see it at exactly five results.
        if not pauses and len(viewer.added) >= 5:
            pauses.append(frame.index)
            viewer.paused = True
            threading.Timer(0.6, lambda: setattr(viewer, "paused", False)).start()

    source = Source(LiveReader(FakeCapture(100, 0.01), "camera 0"))
    summary = run(source, tmp_path / "out", FakeEngine(before_push=pause), viewer)
    assert summary.frames_dropped >= 15
    assert summary.frames_read + summary.frames_dropped >= 98
    assert max(b - a for a, b in zip(viewer.added, viewer.added[1:], strict=False)) >= 15


def test_a_slow_engine_drops_live_frames_and_never_those_of_a_file(tmp_path: Path) -> None:
    live = Source(LiveReader(FakeCapture(60, 0.005), "camera 0"))
    summary = run(live, tmp_path / "live", FakeEngine(seconds=0.03))
    assert summary.frames_dropped > 20 and not summary.interrupted
    file = open_source(str(write_video(tmp_path / "a.mp4", 15)))
    assert run(file, tmp_path / "file", FakeEngine(seconds=0.03)).frames_read == 15


def test_a_slow_disk_drops_live_frames_and_never_those_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ResultWriter.add

    def slow(self: ResultWriter, result: FrameResult) -> None:
        time.sleep(0.02)
        add(self, result)

    monkeypatch.setattr(ResultWriter, "add", slow)
    short = PipelineConfig(queued_results=2)
    live = Source(LiveReader(FakeCapture(100, 0.004), "camera 0"))
    summary = run(live, tmp_path / "live", FakeEngine(1), config=short)
    written = [r.index for r in read_result(tmp_path / "live")]
    assert summary.frames_dropped > 40 and summary.frames_read == len(written)
    # Every frame that came was read, or dropped and counted; the last one may still wait when the source closes.
    assert 0 <= 100 - summary.frames_read - summary.frames_dropped <= 1
    assert written == sorted(set(written)), "what is left stays in order"
    file = open_source(str(write_video(tmp_path / "a.mp4", 40)))
    summary = run(file, tmp_path / "file", FakeEngine(1), config=short)
    assert [r.index for r in read_result(tmp_path / "file")] == list(range(40))
    assert summary.frames_dropped == 0


def test_few_frames_wait_and_as_small_images(tmp_path: Path) -> None:
    """However slow the engine is, and prepared by another thread than its own."""
    made: list[tuple[int, str]] = []
    ahead: list[int] = []

    class Watching(FakeEngine):
        def prepare(self, frame: Frame) -> PreparedFrame:
            made.append((frame.index, threading.current_thread().name))
            return super().prepare(frame)

    def look(frame: PreparedFrame) -> None:
        time.sleep(0.05)
        ahead.append(len(made) - frame.index)
        assert frame.rgb.shape[:2] == frame.transform.network_size[::-1] != frame.transform.source_size[::-1]

    source = open_source(str(write_video(tmp_path / "a.mp4", 30, size=(640, 480))))
    run(source, tmp_path / "out", Watching(before_push=look))
    assert [index for index, _ in made] == list(range(30))
    assert {name for _, name in made} != {threading.current_thread().name}
    assert 2 < max(ahead) <= DEFAULT_PIPELINE.file_frames_ahead + 2


def test_progress_is_told_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    rarely = RunSetup(config=PipelineConfig(progress_seconds=3600.0))
    observer = Watching()
    source = open_source(str(write_video(tmp_path / "a.mp4", 30)))
    reconstruct(source, FakeEngine(), ResultWriter(tmp_path / "out", run_info()), setup=rarely, observer=observer)
    assert [progress.frames for progress in observer.seen] == [4, 30]


def test_a_frame_of_another_size_ends_the_run_after_those_before_it(tmp_path: Path) -> None:
    class Strict(FakeEngine):
        def prepare(self, frame: Frame) -> PreparedFrame:
            if frame.index == 6:
                raise InputError("frame 6 is 30x30")
            return super().prepare(frame)

    with pytest.raises(InputError, match="frame 6 is 30x30"):
        run(open_source(str(write_video(tmp_path / "a.mp4", 20))), tmp_path / "out", Strict())
    assert [r.index for r in read_result(tmp_path / "out")] == list(range(6))
    assert run_json(tmp_path / "out")["interrupted"] is True


def test_ctrl_c_finishes_the_frames_under_way(tmp_path: Path) -> None:
    def interrupt(frame: PreparedFrame) -> None:
        if frame.index == 9:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    source = open_source(str(write_video(tmp_path / "a.mp4", 300)))
    summary = run(source, tmp_path / "out", FakeEngine(before_push=interrupt))
    assert summary.interrupted and summary.frames_reconstructed == 10
    assert [r.index for r in read_result(tmp_path / "out")] == list(range(10))
    assert run_json(tmp_path / "out")["interrupted"] is True
    assert signal.getsignal(signal.SIGINT) == before


def test_ctrl_c_before_the_scale_frames_are_complete(tmp_path: Path) -> None:
    def interrupt(frame: PreparedFrame) -> None:
        if frame.index == 1:
            os.kill(os.getpid(), signal.SIGINT)

    source = open_source(str(write_video(tmp_path / "a.mp4", 300)))
    summary = run(source, tmp_path / "out", FakeEngine(before_push=interrupt))
    assert summary.frames_reconstructed == 2 == len(list(read_result(tmp_path / "out")))


def test_ctrl_c_is_the_normal_end_of_a_live_source(tmp_path: Path) -> None:
    threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    summary = run(Source(LiveReader(FakeCapture(100_000, 0.01), "camera 0")), tmp_path / "out")
    assert not summary.interrupted and summary.frames_reconstructed > 4
    assert run_json(tmp_path / "out")["interrupted"] is False


def test_a_second_ctrl_c_quits_at_once(tmp_path: Path) -> None:
    def insist(frame: PreparedFrame) -> None:
        if frame.index == 9:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(open_source(str(write_video(tmp_path / "a.mp4", 300))), tmp_path / "out", FakeEngine(before_push=insist))
    assert time.monotonic() - begun < 4
    assert [r.index for r in read_result(tmp_path / "out")] == list(range(9))


@pytest.mark.slow
def test_a_killed_process_leaves_readable_results(tmp_path: Path) -> None:
    """kill -9 at several moments: all files agree on the frames that were finished, or are one frame apart."""
    video = write_video(tmp_path / "a.mp4", 3000, size=(64, 48))
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from stream_recon.app.run.pipeline import reconstruct
        from stream_recon.app.sources.source import open_source
        from stream_recon.app.result.writer import ResultWriter
        from tests.app.fake_engine import FakeEngine, run_info
        reconstruct(open_source(sys.argv[1]), FakeEngine(), ResultWriter(Path(sys.argv[2]), run_info()))
    """)
    for trial in range(3):
        out = tmp_path / f"out{trial}"
        process = subprocess.Popen([sys.executable, "-c", program, str(video), str(out)], cwd=ROOT)
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline and not (out / "depth" / f"{20 + 37 * trial:06d}.npz").exists():
            time.sleep(0.001)
        process.kill()
        process.wait()
        results = list(read_result(out))
        assert [r.index for r in results] == list(range(len(results))) and len(results) >= 20
        assert all(np.isfinite(r.depth).all() for r in results)
        lines = trajectory_of(out)
        assert lines.shape[1] == 8 and len(results) - 1 <= len(lines) <= len(results)
        assert len(plyfile.PlyData.read(str(out / "points.ply"))["vertex"].data) > 1000
        assert run_json(out)["interrupted"] is True


def test_the_listeners_thread_may_ask_how_it_goes_while_results_come(tmp_path: Path) -> None:
    """It does at each checkpoint; after a million frames, and with threads switched all the time, the two meet."""

    class Asking(FakeViewer):
        def add(self, result: FrameResult) -> None:
            super().add(result)
            for _ in range(3):
                assert run.summary(interrupted=True).frames_reconstructed > result.index

    viewer, interval = Asking(), sys.getswitchinterval()
    source = open_source(str(write_video(tmp_path / "a.mp4", 60, size=(64, 48))))
    run = pipeline._PipelineRun(source, FakeEngine(seconds=0.002), None, [viewer], RunSetup(), RunObserver())
    run._latencies_ms.extend([1.0] * 1_000_000)
    sys.setswitchinterval(1e-6)
    try:
        with source, ThreadPoolExecutor(2) as pool:
            threads = [*run.dispatcher.start(pool), pool.submit(run.decode)]
            try:
                run.run_engine(Cancel())
            finally:
                run.stop_threads()
            for thread in threads:
                thread.result()
    finally:
        sys.setswitchinterval(interval)
    assert len(viewer.added) == 60
