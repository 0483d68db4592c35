"""What a page is told while a result is refined."""

import re
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.commands import refine
from stream_recon.app.commands.console import PlainConsole
from stream_recon.app.commands.refine import refined
from stream_recon.app.output.folder import read_result
from stream_recon.app.output.run_record import Summary
from stream_recon.app.output.writer import ResultWriter
from stream_recon.app.results import FrameResult, Revision
from stream_recon.app.run.refinement import RefinementCancelledError
from stream_recon.app.video.sources import open_source
from tests.app.fake_engine import run_info
from tests.app.mapping.room import Video, drifting, walk

FRAMES = 8


class Page:
    def __init__(self) -> None:
        self.said: list[str] = []

    def status(self, text: str) -> None:
        self.said.append(text)

    def add(self, result: FrameResult) -> None:
        raise AssertionError("nothing new")

    def revise(self, revision: Revision) -> None:
        pass

    def show_map(self, points: NDArray[np.floating], edges: NDArray[np.integer]) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    truth = walk(16)[:FRAMES]
    video = Video(truth, drifting(truth, turn_deg=0.8, move=0.1))
    (tmp_path / "images").mkdir()
    for index, rgb in enumerate(video.pictures):
        cv2.imwrite(str(tmp_path / "images" / f"{index:06d}.png"), rgb[..., ::-1])
    writer = ResultWriter(tmp_path / "out", run_info())
    for result in video.results:
        writer.add(result)
    writer.finish(Summary(interrupted=False))
    return tmp_path / "out"


def test_a_page_is_told_how_far_it_is_and_in_the_end_what_the_terminal_is(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Page()
    images = partial(open_source, str(folder.parent / "images"))
    report = refined(read_result(folder), images, PlainConsole(soft_wrap=True), PlainConsole(stderr=True), page)
    assert report is not None and report.reprojection_px is not None
    shares = [float(found[1]) for text in page.said if (found := re.match(r"refining: .+, (\d+)%$", text))]
    assert len(shares) > 5 and shares == sorted(shares) and shares[0] < 20 and shares[-1] > 80
    assert f"refined; points of {FRAMES} of {FRAMES} frames are in place" in page.said
    printed = capsys.readouterr().out.splitlines()
    assert page.said[-1].split("\n\n") == printed
    assert page.said[-1].startswith("refined: ") and " px instead of " in page.said[-1]


def test_a_page_is_told_where_it_was_stopped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise RefinementCancelledError

    monkeypatch.setattr(refine, "refine_result", stopped)
    page = Page()
    assert refined(read_result(folder), None, PlainConsole(), PlainConsole(stderr=True), page) is None
    (text,) = page.said
    assert text.startswith("refinement stopped: the result is complete")
