"""What a page is told while a result is refined."""

import re
from functools import partial
from pathlib import Path

import pytest

from stream_recon.app.cli.console import result_consoles
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.verdict import recorded_verdict
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages import refine
from stream_recon.app.stages.finish import Finisher, FinishSteps
from tests.app.page import Page
from tests.app.slam.room import Video, drifting, walk

FRAMES = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    truth = walk(16)[:FRAMES]
    video = Video(truth, drifting(truth, turn_deg=0.8, move=0.1))
    video.write_images(tmp_path / "images")
    video.write_result(tmp_path / "out")
    return tmp_path / "out"


def test_a_page_is_told_how_far_it_is_and_in_the_end_what_the_terminal_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page()
    images = partial(open_source, str(folder.parent / "images"))
    with TerminalObserver(*result_consoles(), page) as observer:
        report = Finisher(folder, images, observer, page=page).refine()
    assert report is not None and report.reprojection_px is not None
    shares = [
        float(found[1]) for text in page.said if (found := re.match(r"refining: .+, (\d+)%(?:, about .+ left)?$", text))
    ]
    assert len(shares) > 5 and shares == sorted(shares) and shares[0] < 20 and shares[-1] > 80
    assert f"refined; points of {FRAMES} of {FRAMES} frames are updated" in page.said
    assert page.revisions and not page.added
    printed = capsys.readouterr().out.splitlines()
    assert page.said[-1].split("\n\n") == printed
    assert page.said[-1].startswith("refined: ") and " px instead of " in page.said[-1]


def test_a_page_is_told_where_it_was_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise Cancelled

    monkeypatch.setattr(refine, "refine_result", stopped)
    page = Page()
    with TerminalObserver(*result_consoles(), page) as observer:
        assert Finisher(folder, None, observer, page=page).refine() is None
    text = page.said[-1]
    assert text.startswith("refinement stopped: the result is complete")


def test_a_finished_result_is_judged_in_file_page_and_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page()
    with TerminalObserver(*result_consoles(), page) as observer:
        finisher = Finisher(folder, partial(open_source, str(folder.parent / "images")), observer, page=page)
        assert finisher.run(FinishSteps(refine=False))
        assert page.verdicts[-1][0] == "doubtful" and page.verdicts[-1][1].startswith("not refined")
        assert finisher.run(FinishSteps(refine=True))
    verdict = recorded_verdict(read_result(folder).run)
    assert verdict is not None and verdict.level == "good"
    assert page.verdicts[-1] == ("good", verdict.explanation)
    assert capsys.readouterr().out.splitlines()[-1] == f"verdict: {verdict.line}"
