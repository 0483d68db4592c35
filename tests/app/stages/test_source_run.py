"""A run over a source: which steps follow one another, resumed, stopped and complete."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from stream_recon.app.core.cancel import Cancel
from stream_recon.app.core.views import ResultListener
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunJob, RunOptions
from stream_recon.app.run.session import Session
from stream_recon.app.stages.source_run import SourceRun, reconstruct_source
from stream_recon.configs.errors import ConfigError, OutputError
from tests.app.fake_engine import FakeEngine
from tests.app.media import write_video
from tests.app.page import Page


class Noted(SourceRun):
    """Notes the steps in their order."""

    def __init__(self, job: RunJob, cancel: Cancel | None = None, listeners: Sequence[ResultListener] = ()) -> None:
        super().__init__(job, RunObserver(), cancel, listeners)
        self.steps: list[str] = []

    def on_open(self) -> None:
        self.steps.append("open")

    def on_begin(self, session: Session) -> None:
        self.steps.append("begin")

    def listeners(self, session: Session, stack: ExitStack) -> list[ResultListener]:
        stack.callback(self.steps.append, "listeners closed")
        return []

    def on_summary(self, summary: RunSummary) -> None:
        self.steps.append(f"{summary.frames_reconstructed} frames")

    def on_frames_end(self) -> None:
        self.steps.append("stages")

    def on_stopped(self) -> None:
        self.steps.append("stopped")

    def on_complete(self, *, is_new: bool) -> None:
        self.steps.append("complete" if is_new else "was complete")

    def on_end(self) -> None:
        self.steps.append("end")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunJob:
    monkeypatch.setattr(ModelChoice, "load", lambda choice: FakeEngine())
    video = write_video(tmp_path / "a.mp4", 12)
    return RunJob(str(video), RunOptions(mapping="off", mesh=False), tmp_path / "out", resume=True)


def test_all_steps_follow_one_another_and_nothing_is_done_twice(job: RunJob) -> None:
    page = Page()
    run = Noted(job, listeners=[page])
    assert reconstruct_source(run) and len(page.added) == 12 == len(read_result(job.folder))
    assert run.steps == ["open", "begin", "listeners closed", "12 frames", "stages", "complete", "end"]
    again = Noted(job)
    assert reconstruct_source(again) and again.steps == ["was complete"]


def test_a_run_that_is_cancelled_stops_and_is_resumed(job: RunJob) -> None:
    cancel = Cancel()

    class Stopping(Page):
        def add_image(self, index: int, image: object) -> None:
            if index > 3:
                cancel.request()

    stopped = Noted(job, cancel, [Stopping()])
    assert not reconstruct_source(stopped) and stopped.steps[-1] == "stopped"
    done = len(read_result(job.folder))
    page = Page()
    resumed = Noted(job, listeners=[page])
    assert reconstruct_source(resumed) and resumed.steps[-1] == "end"
    assert len(page.added) == 12 - done and len(read_result(job.folder)) == 12


def test_what_cannot_be_done_is_found_out_before_anything_is_written(job: RunJob, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        reconstruct_source(Noted(RunJob(job.spec, RunOptions(max_disk="much"), job.folder)))
    assert not job.folder.exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("mine")
    with pytest.raises(OutputError):
        reconstruct_source(Noted(RunJob(job.spec, job.options, tmp_path / "full")))
