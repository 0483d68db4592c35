"""What a page is told while a result is refined."""

import re
from functools import partial
from pathlib import Path

import pytest

from stream_recon.app.cli.console import result_consoles
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.core.cancel import Cancel
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.verdict import recorded_verdict
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.refine import RefineStage
from stream_recon.app.stages.stage import StageContext
from tests.app.page import Page
from tests.app.slam.room import FOCAL, Video, drifting, walk
from tests.app.stages.chains import run_stage

FRAMES = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    truth = walk(16)[:FRAMES]
    video = Video(truth, drifting(truth, turn_deg=0.8, move=0.1), focal=FOCAL)
    video.write_images(tmp_path / "images")
    video.write_result(tmp_path / "out", known_camera=True)
    return tmp_path / "out"


@pytest.mark.slow
def test_page_and_terminal_are_told_how_far_it_is_and_the_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, images = Page(), partial(open_source, str(folder.parent / "images"))
    with TerminalObserver(*result_consoles(), page) as observer:
        context = StageContext(folder, images, observer, view=page)
        assert run_stages(RunPlan(()), context).is_complete
        assert page.verdicts[-1][0] == "doubtful" and page.verdicts[-1][1].startswith("not refined")
        capsys.readouterr()
        assert run_stages(RunPlan((RefineStage(),)), context).is_complete
    verdict = recorded_verdict(read_result(folder).run)
    assert verdict is not None and verdict.level == "good"
    assert page.verdicts[-1] == ("good", verdict.explanation)
    shares = [
        float(found[1]) for text in page.said if (found := re.match(r"refining: .+, (\d+)%(?:, about .+ left)?$", text))
    ]
    assert len(shares) > 5 and shares == sorted(shares) and shares[0] < 20 and shares[-1] > 80
    assert f"points: {FRAMES} of {FRAMES}" in page.said
    assert page.revisions and not page.added
    *printed, last = capsys.readouterr().out.splitlines()
    assert page.said[-1].split("\n\n") == printed and last == f"verdict: {verdict.line}"
    assert page.said[-1].startswith("refined: ") and " px instead of " in page.said[-1]


def test_a_page_is_told_where_it_was_stopped(folder: Path) -> None:
    page, cancel = Page(), Cancel()
    cancel.request()
    with TerminalObserver(*result_consoles(), page) as observer:
        assert not run_stage(folder, RefineStage(), observer=observer, view=page, cancel=cancel).is_complete
    assert page.said[-1].startswith("refinement stopped: the result is complete")
