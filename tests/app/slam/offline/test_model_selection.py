"""Choice between network and map."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.matching import matching
from stream_recon.app.slam.offline import model_selection
from stream_recon.app.slam.offline.model_selection import HeldOutError, PoseCandidate
from tests.app.slam.room import FOCAL, SIZE, Video, drifting, walk
from tests.app.slam.test_pieces import detected

LENS = CameraModel(FOCAL, SIZE[0] / 2, SIZE[1] / 2)
COUNT = 10


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
    agreement = model_selection.depth_agreement(wrong, right, grids)
    assert good.mean < bad.mean
    assert agreement[1].mean() > agreement[0].mean()
    assert not model_selection.worse_keyframes(good, bad, agreement, TIES).any()
    assert model_selection.worse_keyframes(bad, good, agreement[::-1], TIES).all()


def test_most_of_the_depth_agrees_with_the_network() -> None:
    _, wrong, video = sides()
    before, after = model_selection.depth_agreement(wrong, wrong, [view.grid for view in video.views()])
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
    agreement = model_selection.depth_agreement(network, mapped, [view.grid for view in video.views()])
    worse = model_selection.worse_keyframes(evidence[0], evidence[1], agreement, TIES)
    assert worse[6:].all() and not worse[:4].any()


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
    worse = model_selection._cut_off(evidence, evidence, agreement, ties)
    assert np.flatnonzero(worse).tolist() == [4, 5, 6]
    without = {pair: counts for pair, counts in ties.items() if pair != (2, 8)}
    worse = model_selection._cut_off(evidence, evidence, agreement, without)
    assert np.flatnonzero(worse).tolist() == [4, 5, 6, 7, 8, 9]


def test_distant_pairs_are_compared_with_distant_pairs() -> None:
    evidence, agreement = halves(0.0)
    evidence.pairs[0, 2] = np.array([0.3, 0.3])
    ties = {**TIES, (3, 4): (20, 60), (6, 7): (20, 60), (0, 3): (500, 1000), (2, 5): (450, 1000), (2, 8): (450, 1000)}
    assert not model_selection._cut_off(evidence, evidence, agreement, ties).any()
    ties[2, 5] = 300, 1000
    worse = model_selection._cut_off(evidence, evidence, agreement, ties)
    assert np.flatnonzero(worse).tolist() == [4, 5, 6]


def test_a_match_by_chance_is_no_evidence() -> None:
    right, _, video = sides()
    found = detected(video)
    few = {(0, 1): matching.match(found[0], found[1])[: model_selection.MIN_MATCHES - 1]}
    assert not HeldOutError.measure(right, found, few).pairs


def test_a_map_that_spoils_part_of_the_image_is_rejected() -> None:
    agreement = np.full(COUNT - 1, 0.9), np.full(COUNT - 1, 0.9)

    def spread(parts: list[float]) -> HeldOutError:
        # Of ten parts of the image, by depth and pose.
        each = np.stack([np.full(10, 0.1), np.array(parts)], axis=1)
        pairs = [(k, k + 1) for k in range(COUNT - 1)]
        return HeldOutError({pair: each for pair in pairs})

    network, mapped = spread([0.8] * 9 + [0.1]), spread([0.2] * 10)
    assert not model_selection.fallback_segments(mapped, network, agreement, TIES).any()
    mapped = spread([0.2] * 9 + [0.7])
    assert model_selection.fallback_segments(mapped, network, agreement, TIES).all()


def test_depth_that_agrees_with_neither_is_no_break() -> None:
    evidence, (before, after) = halves(0.1)
    before[[3, 6]] = 0.1
    assert not model_selection.worse_keyframes(evidence, evidence, (before, after), TIES).any()


def test_nothing_breaks_where_nothing_was_matched() -> None:
    evidence, agreement = halves(0.4)
    untied = {**TIES, (3, 4): (20, 60), (6, 7): (20, 60)}
    assert model_selection._cut_off(evidence, evidence, agreement, untied).any()
    apart = {pair: counts for pair, counts in TIES.items() if pair not in ((3, 4), (6, 7))}
    assert not model_selection._cut_off(evidence, evidence, agreement, apart).any()


@pytest.mark.parametrize(
    ("held_out", "agreement", "better"),
    [
        ((0.5, 0.3), (0.95, 0.95), True),
        ((0.5, 0.51), (0.95, 0.97), False),
        # A little depth for many matches.
        ((0.5, 0.3), (0.95, 0.93), True),
        ((0.5, 0.3), (0.95, 0.9), False),
    ],
)
def test_matches_and_depth_both_count(
    held_out: tuple[float, float], agreement: tuple[float, float], better: bool
) -> None:
    assert model_selection.is_better(held_out, agreement) == better


def test_without_pairs_the_error_is_one() -> None:
    assert HeldOutError({}).mean == 1.0
