import io
from dataclasses import replace
from itertools import count

from rich.console import Console

from stream_recon.app.cli.progress import StepClock, TerminalObserver, print_summary
from stream_recon.app.result.run_record import RunSummary
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


def test_the_first_step_is_counted_among_all() -> None:
    page = Page()
    with TerminalObserver(terminal(100), terminal(100), page) as observer:
        observer.expect(30, stages=3)
        observer.on_progress(Progress(6, 30, 2, 0, 9.0, 100))
    assert page.said[0] == "first frames" and page.said[1].startswith("step 1 of 3, 6 of 30 frames")


def test_weak_intervals_are_told_but_of_photographs_in_no_order() -> None:
    weak = {"first": 7, "last": 18, "begin": 61.0, "end": 75.4, "frames": 12, "why": "hardly any texture"}
    summary = RunSummary(False, 40, 38, 9, frames_damaged=2, seconds=4.0, health={"weak": [weak]})
    out, err = terminal(200), terminal(200)
    print_summary(summary, out, err)
    assert "from 1:01 to 1:15 (12 frames): hardly any texture" in printed(err)
    assert printed(out) == "stream: 38 frames, 9 keyframes, 2 damaged; 4.0 s, 9.5 frames/s\n"
    out, err = terminal(200), terminal(200)
    latency = {"latency_p50_ms": 7.4, "latency_p95_ms": 9.6}
    print_summary(replace(summary, unordered=True, interrupted=True, warnings=("it is dark",), **latency), out, err)
    assert printed(err) == "warning: it is dark\n"
    assert "stopped after 38 frames" in printed(out) and "latency 7 ms (p95 10 ms)" in printed(out)
