"""People who walk through clips are in the images, and nowhere in the truth."""

import pytest
import torch

from training.synthetic import ClipBatch, SceneGenerator, SceneShares
from training.synthetic.draws import Draws, SamplingProbability
from training.synthetic.people import MARGIN_PX, MOVING
from training.targets import build_targets

CLIPS, FRAMES, SIZE = 4, 2, (84, 112)


def clips(share: float) -> ClipBatch:
    shares = SceneShares(turning=0.0, people=share)
    return SceneGenerator("cpu", 77, degrade=False, shares=shares).render(CLIPS, FRAMES, *SIZE)


@pytest.fixture(scope="module")
def both() -> tuple[ClipBatch, ClipBatch]:
    return clips(0.0), clips(1.0)


def test_what_stands_still_is_as_it_was(both: tuple[ClipBatch, ClipBatch]) -> None:
    empty, peopled = both
    moving = peopled.depth == MOVING
    assert torch.equal(peopled.depth[~moving], empty.depth[~moving]) and (empty.depth >= 0).all()
    assert torch.equal(peopled.T_world_camera, empty.T_world_camera)
    changed = (peopled.images - empty.images).abs().sum(dim=2) > 1e-3
    assert not (changed & ~moving).any(), "all of them is left out of the truth"
    share = moving.flatten(1).float().mean(dim=1)
    assert (share > 0.01).sum() >= CLIPS // 2 and share.max() < 0.6
    assert changed[moving].float().mean() > 0.6, f"the mask is theirs, but for {MARGIN_PX} pixels around"


def test_they_move_by_themselves(both: tuple[ClipBatch, ClipBatch]) -> None:
    moving = both[1].depth == MOVING
    assert (moving[:, 0] != moving[:, -1]).flatten(1).any(dim=1).sum() >= CLIPS // 2


def test_they_are_asked_for_nothing(both: tuple[ClipBatch, ClipBatch]) -> None:
    patch = 14
    targets = build_targets(both[1], 2, patch)
    middle = (both[1].depth == MOVING)[:, :, patch // 4 :: patch // 2, patch // 4 :: patch // 2]
    assert middle.any()
    assert not (targets.points_valid & middle).any()
    assert not (targets.flow_valid & middle[:, 1:]).any()
    assert (targets.matches[middle[:, 1:]] == -1).all()


def test_the_share_is_kept_over_batches() -> None:
    chosen = SamplingProbability(Draws(torch.device("cpu"), 5), 0.4)
    counts = []
    for _ in range(10):
        clips = chosen.some(3)
        counts.append(0 if clips is None else len(clips))
        assert 0 <= chosen.left < 1
    assert 11 <= sum(counts) <= 12 and max(counts) <= 2
