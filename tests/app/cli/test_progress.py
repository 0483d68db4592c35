import io
from itertools import count

from rich.console import Console

from stream_recon.app.cli.progress import StepClock, TerminalObserver
from stream_recon.app.result.verdict import Verdict
from stream_recon.app.run.listeners import Progress
from stream_recon.app.slam.offline.report import RefinementReport
from stream_recon.app.stages.refine import described
from tests.app.page import Page

NOTICE = "low tracking quality since 0:41: consecutive frames are inconsistent"


def terminal(width: int) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_long_status_leaves_count_and_time_left_in_sight() -> None:
    for width in (50, 80, 200):
        err = terminal(width)
        with TerminalObserver(terminal(width), err) as observer:
            observer.on_progress(Progress(5, 464, 5, 0, 12.3, 512, notice=NOTICE))
            observer.on_progress(Progress(120, 464, 5, 0, 12.3, 512, notice=NOTICE, back_end=200 * "long "))
        lines = printed(err).splitlines()
        assert any("120/464" in line and "left 0:0" in line for line in lines)
        assert max(len(line.split("\x1b[2K")[-1]) for line in lines) <= width


def test_refinement_and_steps_have_their_time_left() -> None:
    err, page = terminal(100), Page()
    with TerminalObserver(terminal(100), err, page) as observer:
        for percent in range(0, 60, 5):
            observer.on_share("refining", percent / 100, "matches")
        observer.on_step("dense depth", 1, 40)
        observer.on_step("dense depth", 20, 40)
    assert "55 %" in printed(err) and "20/40" in printed(err)
    assert page.said[-1].startswith("dense depth: 20 of 40, about 0:0")
    assert any(text.startswith("refining: matches, 55%, about 0:0") for text in page.said)


def test_the_time_left_is_that_of_the_mean_speed_since_the_first_report() -> None:
    ticks = count(0, 10)
    clock = StepClock(lambda: float(next(ticks)))
    assert clock.left(0, 1000) is None
    assert clock.left(100, 1000) is None, "a resumed step has not begun to count"
    # 100 more in the 10 s since the first report; 800 are left.
    assert clock.left(200, 1000) == 80.0
    assert StepClock().left(5, None) is None


def test_a_rejected_refinement_is_called_not_refined_with_the_reason() -> None:
    why = "too few matches"
    report = RefinementReport(keyframes=30, fallback_segments=[{"first": 0, "last": 29, "why": why}])
    (line,) = described(report)
    assert line.startswith("not refined: ") and line.endswith(why)
    fitted = RefinementReport(reprojection_px=0.5, focal=300.0, fallback_segments=[{"first": 3, "last": 9, "why": why}])
    first, second = described(fitted)
    assert first.startswith("refined: ")
    assert second == f"frames 3 to 9 are not refined and keep the network's poses, because {why}"


def test_a_verdict_reaches_terminal_and_page() -> None:
    out, page = Console(file=io.StringIO(), width=200), Page()
    with TerminalObserver(out, terminal(80), page) as observer:
        observer.on_verdict(Verdict("doubtful", "the camera hardly moved", "Walk sideways"))
    assert printed(out) == "verdict: doubtful: the camera hardly moved. Walk sideways\n"
    assert page.verdicts == [("doubtful", "the camera hardly moved. Walk sideways")]
    coloured = Console(file=io.StringIO(), force_terminal=True, color_system="standard", width=200)
    TerminalObserver(coloured, terminal(80)).on_verdict(Verdict("failed", "no frame fits"))
    assert "\x1b[1;31mfailed\x1b[0m" in printed(coloured)
