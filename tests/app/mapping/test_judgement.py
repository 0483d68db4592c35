"""Which of network and map is believed, and where."""

import numpy as np
import pytest

from stream_recon.app.mapping import judgement, matching
from stream_recon.app.mapping.judgement import Evidence, Side
from stream_recon.app.mapping.problem import Lens
from tests.app.mapping.room import FOCAL, SIZE, Video, drifting, walk
from tests.app.mapping.test_pieces import detected

LENS = Lens(FOCAL, SIZE[0] / 2, SIZE[1] / 2)
COUNT = 10


def sides() -> tuple[Side, Side, Video]:
    """A right one and a wrong one."""
    truth = walk(COUNT)
    video = Video(truth, truth, focal=FOCAL, scale_noise=0.0)
    return Side(truth, LENS, np.ones(COUNT)), Side(drifting(truth, 1.0, 0.2), LENS, np.ones(COUNT)), video


def test_the_side_that_is_right_is_preferred() -> None:
    right, wrong, video = sides()
    found = detected(video)
    held = {(k, k + 1): matching.match(found[k], found[k + 1]) for k in range(COUNT - 1)}
    good, bad = (Evidence.of(side, found, held) for side in (right, wrong))
    grids = [view.grid for view in video.views()]
    agreement = judgement.depth_agreement(wrong, right, grids)
    assert good.mean < bad.mean
    assert agreement[1].mean() > agreement[0].mean()
    assert not judgement.worse_keyframes(good, bad, agreement).any()
    assert judgement.worse_keyframes(bad, good, agreement[::-1]).all()


def test_half_of_the_depth_agrees_with_the_network() -> None:
    _, wrong, video = sides()
    before, after = judgement.depth_agreement(wrong, wrong, [view.grid for view in video.views()])
    assert np.array_equal(before, after) and before.shape == (COUNT - 1,)
    assert 0.4 < before.mean() < 0.6


def test_only_the_stretch_where_the_map_is_worse_is_left() -> None:
    right, wrong, video = sides()
    found = detected(video)
    held = {(k, k + 1): matching.match(found[k], found[k + 1]) for k in range(COUNT - 1)}
    network = Side(wrong.T_world_camera.copy(), LENS, np.ones(COUNT))
    network.T_world_camera[5:] = right.T_world_camera[5:]
    mapped = Side(right.T_world_camera.copy(), LENS, np.ones(COUNT))
    mapped.T_world_camera[5:] = wrong.T_world_camera[5:]
    evidence = [Evidence.of(side, found, held) for side in (mapped, network)]
    agreement = judgement.depth_agreement(network, mapped, [view.grid for view in video.views()])
    worse = judgement.worse_keyframes(evidence[0], evidence[1], agreement)
    assert worse[6:].all() and not worse[:4].any()


@pytest.mark.parametrize(
    ("held_out", "agreement", "explained", "better"),
    [
        ((0.5, 0.3), (0.6, 0.6), 0.95, True),
        ((0.5, 0.51), (0.6, 0.7), 0.95, False),
        # A little depth for many matches, unless something else moves, too.
        ((0.5, 0.3), (0.6, 0.54), 0.95, True),
        ((0.5, 0.3), (0.6, 0.54), 0.7, False),
        ((0.5, 0.3), (0.6, 0.3), 0.95, False),
    ],
)
def test_matches_and_depth_have_a_say(
    held_out: tuple[float, float], agreement: tuple[float, float], explained: float, better: bool
) -> None:
    assert judgement.is_better(held_out, agreement, explained) == better


def test_nothing_seen_says_nothing() -> None:
    assert Evidence({}).mean == 1.0
