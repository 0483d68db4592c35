"""Choice between network and map."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.evidence import held_out_error
from stream_recon.app.slam.evidence.held_out_error import HeldOutConfig, HeldOutError, PoseCandidate
from stream_recon.app.slam.evidence.judgement import Evidence, beyond_breaks, motion_angle_deg, select, worse_runs
from stream_recon.app.slam.matching import matching
from tests.app.slam.room import FOCAL, SIZE, Video, drifting, walk
from tests.app.slam.test_pieces import detected

LENS = CameraModel(FOCAL, SIZE[0] / 2, SIZE[1] / 2)
COUNT = 10


NOWHERE = np.zeros(COUNT, bool)
STEPS = [(k, k + 1) for k in range(COUNT - 1)]

TIES = {(k, k + 1): (100, 100) for k in range(COUNT - 1)}


def sides() -> tuple[PoseCandidate, PoseCandidate, Video]:
    """A right one and a wrong one."""
    truth = walk(COUNT)
    video = Video(truth, truth, focal=FOCAL, scale_noise=0.0)
    return (
        PoseCandidate(truth, LENS, np.ones(COUNT)),
        PoseCandidate(drifting(truth, 1.0, 0.2), LENS, np.ones(COUNT)),
        video,
    )


def test_the_side_that_is_right_is_preferred() -> None:
    right, wrong, video = sides()
    found = detected(video)
    held = {(k, k + 1): matching.match(found[k], found[k + 1]) for k in range(COUNT - 1)}
    good, bad = (HeldOutError.measure(side, found, held) for side in (right, wrong))
    grids = [view.grid for view in video.views()]
    agreement = held_out_error.depth_agreement(wrong, right, grids, STEPS)
    assert good.mean < bad.mean
    assert agreement[1].mean() > agreement[0].mean()
    size = COUNT, held_out_error.image_parts(LENS)
    assert not select(Evidence.compare(bad, good, agreement, STEPS, size), NOWHERE).fallback.any()
    assert select(Evidence.compare(good, bad, agreement[::-1], STEPS, size), NOWHERE).fallback.all()


def test_most_of_the_depth_agrees_with_the_network() -> None:
    _, wrong, video = sides()
    before, after = held_out_error.depth_agreement(wrong, wrong, [view.grid for view in video.views()], STEPS)
    assert np.array_equal(before, after) and before.shape == (COUNT - 1,)
    assert 0.7 < before.mean() < 1


def test_only_the_segment_where_the_map_is_worse_falls_back() -> None:
    right, wrong, video = sides()
    found = detected(video)
    held = {(k, k + 1): matching.match(found[k], found[k + 1]) for k in range(COUNT - 1)}
    network = PoseCandidate(wrong.T_world_camera.copy(), LENS, np.ones(COUNT))
    network.T_world_camera[5:] = right.T_world_camera[5:]
    mapped = PoseCandidate(right.T_world_camera.copy(), LENS, np.ones(COUNT))
    mapped.T_world_camera[5:] = wrong.T_world_camera[5:]
    evidence = [HeldOutError.measure(side, found, held) for side in (mapped, network)]
    agreement = held_out_error.depth_agreement(network, mapped, [view.grid for view in video.views()], STEPS)
    worse = worse_runs(
        Evidence.compare(evidence[1], evidence[0], agreement, STEPS, (COUNT, held_out_error.image_parts(LENS)))
    )
    assert worse[6:].all() and not worse[:4].any()


def by_parts(lines: list[float], depth: list[float]) -> HeldOutError:
    """The same losses of the image's parts at all steps."""
    return HeldOutError({pair: np.stack([lines, depth], axis=1) for pair in STEPS})


def test_epipolar_lines_decide_alone_where_nothing_contradicts_them() -> None:
    # The network's focal length is wrong: its depth fits only its own poses, epipolar lines fit those of the map.
    network, mapped = by_parts([0.9] * 4, [0.2] * 4), by_parts([0.1] * 4, [0.9] * 4)
    agreement = np.full(COUNT - 1, 0.9), np.full(COUNT - 1, 0.5)
    together = Evidence.compare(network, mapped, agreement, STEPS, (COUNT, 4))
    assert select(together, NOWHERE).fallback.all()
    alone = Evidence.by_lines(network, mapped, (COUNT, 4))
    assert alone is not None and not select(alone, NOWHERE).fallback.any()


def test_a_map_that_loses_a_part_of_the_image_is_not_judged_by_lines_alone() -> None:
    # A moving object in three parts of four; the network explains the fourth.
    network, mapped = by_parts([0.9, 0.9, 0.9, 0.1], [0.5] * 4), by_parts([0.1, 0.1, 0.1, 0.9], [0.5] * 4)
    assert Evidence.by_lines(network, mapped, (COUNT, 4)) is None


def test_the_angle_between_motions_needs_no_common_world_or_scale() -> None:
    truth = walk(COUNT)
    turn = np.eye(4)
    turn[:3, :3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]]
    scaled = truth.copy()
    scaled[:, :3, 3] *= 3
    assert motion_angle_deg(truth, turn @ scaled) < 1e-3
    backwards = truth.copy()
    backwards[:, :3, 3] *= -1
    assert motion_angle_deg(truth, backwards) > 170


def halves(agree: float) -> tuple[HeldOutError, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Equal held-out errors; depth agreement under the map is ``agree`` at two steps."""
    evidence = HeldOutError({(k, k + 1): np.array([[0.3, 0.3]]) for k in range(COUNT - 1)})
    before = np.full(COUNT - 1, 0.9)
    after = before.copy()
    after[[3, 6]] = agree
    return evidence, (before, after)


def test_the_part_between_two_breaks_falls_back_unless_tied() -> None:
    evidence, agreement = halves(0.0)
    ties = {**TIES, (3, 4): (20, 60), (6, 7): (20, 60), (2, 8): (300, 310)}
    worse = beyond_breaks(evidence, evidence, agreement, ties)
    assert np.flatnonzero(worse).tolist() == [4, 5, 6]
    without = {pair: counts for pair, counts in ties.items() if pair != (2, 8)}
    worse = beyond_breaks(evidence, evidence, agreement, without)
    assert np.flatnonzero(worse).tolist() == [4, 5, 6, 7, 8, 9]


def test_few_matches_and_depth_that_disagrees_under_both_sides_are_a_break() -> None:
    # An object that covers most of the image appears: neither side explains its depth there.
    evidence, agreement = halves(0.4)
    agreement[0][[3, 6]] = 0.4
    ties = {**TIES, (3, 4): (10, 20), (6, 7): (10, 20), (2, 8): (300, 310)}
    assert np.flatnonzero(beyond_breaks(evidence, evidence, agreement, ties)).tolist() == [4, 5, 6]
    # Many matches across the step, or depth that agrees, hold the map together.
    assert not beyond_breaks(evidence, evidence, agreement, {**TIES, (2, 8): (300, 310)}).any()
    assert not beyond_breaks(evidence, evidence, halves(0.9)[1], ties).any()


@pytest.mark.parametrize(
    ("near", "distant", "tied", "broken"),
    [
        pytest.param((20, 60), (500, 1000), (450, 1000), (300, 1000), id="compared with distant pairs"),
        pytest.param((20, 98), (400, 500), (75, 100), (55, 100), id="tie parts whose neighbours are blurred"),
    ],
)
def test_distant_pairs(
    near: tuple[int, int], distant: tuple[int, int], tied: tuple[int, int], broken: tuple[int, int]
) -> None:
    evidence, agreement = halves(0.0)
    evidence.pairs[0, 2] = np.array([0.3, 0.3])
    ties = {**TIES, (3, 4): near, (6, 7): near, (0, 3): distant, (2, 5): tied, (2, 8): tied}
    assert not beyond_breaks(evidence, evidence, agreement, ties).any()
    ties[2, 5] = broken
    assert np.flatnonzero(beyond_breaks(evidence, evidence, agreement, ties)).tolist() == [4, 5, 6]


def test_a_match_by_chance_is_no_evidence() -> None:
    right, _, video = sides()
    found = detected(video)
    few = {(0, 1): matching.match(found[0], found[1])[:4]}
    assert not HeldOutError.measure(right, found, few, HeldOutConfig(min_matches=5)).pairs
    assert HeldOutError.measure(right, found, few, HeldOutConfig(min_matches=4)).pairs


def evidence_of(
    matches: float | NDArray[np.float64] = 0.0, depth: float = 0.0, lost: float = 0.0, won: float = 0.0
) -> Evidence:
    return Evidence(*(np.broadcast_to(np.asarray(each, float), COUNT).copy() for each in (matches, depth, lost, won)))


def test_a_map_that_loses_part_of_the_image_is_rejected() -> None:
    # An object that moves over half of the image has most of the matches.
    followed = select(evidence_of(matches=0.3, lost=0.17, won=0.77), NOWHERE)
    assert followed.fallback.all() and "moving object" in followed.reason


def test_a_map_that_moves_as_the_network_does_follows_no_object() -> None:
    lossy = evidence_of(matches=0.3, lost=0.071, won=0.271)
    assert select(lossy, NOWHERE).follows_object
    assert not select(replace(lossy, same_motion=True), NOWHERE).fallback.any()
    assert select(replace(evidence_of(matches=0.3, lost=0.17, won=0.77), same_motion=True), NOWHERE).follows_object


def test_few_lost_parts_are_chance() -> None:
    right = select(evidence_of(matches=0.02, depth=-0.01, lost=0.03, won=0.05), NOWHERE)
    assert not right.fallback.any() and not right.reason


def test_parts_without_matches_count_for_nothing() -> None:
    agreement = np.full(COUNT - 1, 0.9), np.full(COUNT - 1, 0.9)
    pairs = [(k, k + 1) for k in range(COUNT - 1)]
    network, mapped = (HeldOutError({pair: np.full((6, 2), loss) for pair in pairs}) for loss in (0.8, 0.2))
    found = Evidence.compare(network, mapped, agreement, STEPS, (COUNT, 48))
    assert np.allclose(found.matches, 0.6 * 6 / 48)
    assert np.allclose(found.won, 1) and np.allclose(found.lost, 0) and np.allclose(found.depth, 0)


def test_depth_counts_where_nothing_is_matched() -> None:
    agreement = np.full(COUNT - 1, 0.9), np.full(COUNT - 1, 0.4)
    found = Evidence.compare(HeldOutError({}), HeldOutError({}), agreement, STEPS, (COUNT, 48))
    assert np.allclose(found.total, -0.5)
    chosen = select(found, NOWHERE)
    assert chosen.fallback.all() and chosen.reason.startswith("depth of neighbouring frames agrees better")


def test_a_few_noisy_keyframes_do_not_fall_back() -> None:
    noise = 0.1 * np.random.default_rng(0).normal(size=(20, COUNT))
    assert np.mean([worse_runs(evidence_of(matches=0.05 + each)).any() for each in noise]) <= 0.1
    clear = np.full(COUNT, 0.1)
    clear[3:7] = -0.2
    assert np.flatnonzero(worse_runs(evidence_of(matches=clear))).tolist() == [3, 4, 5, 6]


def test_depth_alone_sends_no_run_back_that_matches_confirm() -> None:
    # The network's depth fits its own poses, also where these are wrong.
    depth, matches = np.zeros(COUNT), np.full(COUNT, 0.1)
    depth[3:7] = -0.35
    assert not worse_runs(replace(evidence_of(matches=matches), depth=depth)).any()
    matches[3:7] = 0.0
    # Matches of an object agree with a map that follows it.
    for unconfirmed in (evidence_of(matches=matches), evidence_of(matches=0.1, lost=0.2, won=0.3)):
        worse = worse_runs(replace(unconfirmed, depth=depth))
        assert worse[3:7].all() and not worse[[0, 1, 8, 9]].any()


@pytest.mark.parametrize("share", [0.2, 0.13, 0.06])
def test_a_run_that_loses_the_scene_falls_back(share: float) -> None:
    count = 4 * COUNT
    lost = np.full(count, 0.01)
    lost[12:20] = share
    even = np.full(count, 0.05)
    walk = Evidence(even, 0 * even, lost, lost, same_motion=True)
    chosen = select(walk, np.zeros(count, bool))
    if share < 0.15:
        assert not chosen.fallback.any() and not chosen.reason
    else:
        assert chosen.fallback[12:20].all() and not chosen.fallback[:10].any() and not chosen.fallback[22:].any()
        assert "moving object" in chosen.reason and not chosen.follows_object
        # A network that turns wrongly there agrees by chance with some of it.
        for right in (replace(walk, matches=even + 0.1), replace(walk, same_motion=False)):
            assert not select(right, np.zeros(count, bool)).fallback.any()


def test_a_map_must_be_better_by_more_than_chance() -> None:
    noise = np.random.default_rng(0).normal(0, 0.02, COUNT)
    little, much = (evidence_of(matches=mean + noise - noise.mean()) for mean in (0.01, 0.2))
    limit = 2.0 * little.standard_error(COUNT)
    assert 0.01 < limit < 0.2
    unsure = select(little, NOWHERE, limit)
    assert unsure.fallback.all() and "do not show it better" in unsure.reason
    assert not select(much, NOWHERE, limit).fallback.any()


def test_a_small_rest_is_not_worth_its_seams() -> None:
    beyond = NOWHERE.copy()
    beyond[3:] = True
    assert select(evidence_of(matches=0.1), beyond).fallback.all()


def test_what_is_cut_off_falls_back_with_its_own_reason() -> None:
    beyond = NOWHERE.copy()
    beyond[7:] = True
    chosen = select(evidence_of(matches=0.1), beyond)
    assert np.array_equal(chosen.fallback, beyond) and "broken" in chosen.reason


def test_depth_that_agrees_with_neither_is_no_break() -> None:
    evidence, (before, after) = halves(0.1)
    before[[3, 6]] = 0.1
    assert not beyond_breaks(evidence, evidence, (before, after), TIES).any()


@pytest.mark.parametrize(("theirs", "breaks"), [(0.3, True), (0.6, False)])
def test_matches_break_a_map_where_the_network_explains_them(theirs: float, breaks: bool) -> None:
    network, agreement = halves(0.9)
    mapped, _ = halves(0.9)
    network.pairs[4, 5][:], mapped.pairs[4, 5][:] = theirs, theirs + 0.3
    ties = {**TIES, (4, 5): (20, 60)}
    assert beyond_breaks(mapped, network, agreement, ties).any() == breaks


def test_nothing_breaks_where_nothing_was_matched() -> None:
    evidence, agreement = halves(0.4)
    untied = {**TIES, (3, 4): (20, 60), (6, 7): (20, 60)}
    assert beyond_breaks(evidence, evidence, agreement, untied).any()
    apart = {pair: counts for pair, counts in TIES.items() if pair not in ((3, 4), (6, 7))}
    assert not beyond_breaks(evidence, evidence, agreement, apart).any()


def test_without_pairs_the_error_is_one() -> None:
    assert HeldOutError({}).mean == 1.0
