"""What is seen again of frames further back, inside the network: whole clips and a stream say the same."""

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from stream_recon.app.engine.odometry_state import OdometryState
from stream_recon.app.engine.stream import Stream
from stream_recon.models.network import Prediction
from stream_recon.models.odometry import refinement, rotation_search
from stream_recon.models.odometry.depth_filter import DepthState
from stream_recon.models.odometry.keyframe_matcher import (
    CONTEXT,
    KEPT,
    KeyframeMatcher,
    Matches,
    MatchingHistory,
    expect,
)
from stream_recon.models.odometry.pnp import rotation_from_vector, vector_from_rotation
from stream_recon.models.pose import pose_to_matrix
from tests.models.skies import FAR, FOCAL, SIZE, described
from tests.networks import (
    GRID,
    assert_only_keyframes_count,
    random_images,
    tiny_network,
    tiny_preset,
    whole_clip,
)

FRAMES = 7
REACH_PX = 16.0


def whole(images: torch.Tensor | None = None) -> Prediction:
    return whole_clip(tiny_preset(look_back=True), random_images(FRAMES) if images is None else images)


def test_a_stream_says_what_the_whole_clip_says(monkeypatch: pytest.MonkeyPatch) -> None:
    # Noise is never seen again: turns that are tried in vain would only enlarge what rounding does.
    monkeypatch.setattr(rotation_search, "LOST", -1.0)
    preset, images = tiny_preset(look_back=True), random_images(FRAMES)
    stream = Stream(tiny_network(preset), preset, GRID)
    first = preset.stream.scale_frames
    parts = [stream.step(part)[0] for part in (images[:first], *images[first:].split(1))]
    together = whole()
    codes = torch.cat([prediction.pose_code for prediction in parts], dim=1)
    torch.testing.assert_close(codes, together.pose_code, atol=1e-3, rtol=1e-3)
    depths = torch.cat([prediction.log_depth for prediction in parts], dim=1)
    torch.testing.assert_close(depths, together.log_depth, atol=1e-3, rtol=1e-3)


def test_it_moves_poses_and_depths_of_all_but_the_first_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    mended = whole()
    monkeypatch.setattr(refinement, "SUPPORTED", 2.0)  # nothing is trusted
    plain = whole()
    moved = (mended.pose_code - plain.pose_code)[0, :, :7].abs().amax(-1)
    assert float(moved[0]) == 0 and (moved[1:] > 1e-4).all()
    changed = (mended.log_depth - plain.log_depth)[0].flatten(1).abs().amax(-1)
    assert float(changed[0]) == 0 and (changed[1:] > 1e-5).any()
    torch.testing.assert_close(mended.pose_code[..., 7:], plain.pose_code[..., 7:])


def test_later_frames_do_not_change_earlier_ones() -> None:
    images = random_images(FRAMES)
    images[6:] = 0.5
    changed, before = whole(images), whole()
    torch.testing.assert_close(changed.pose_code[:, :6], before.pose_code[:, :6])
    torch.testing.assert_close(changed.log_depth[:, :6], before.log_depth[:, :6])


def test_a_frame_that_is_not_kept_leaves_no_trace() -> None:
    assert_only_keyframes_count(random_images(FRAMES + 4), look_back=True)


def test_each_seat_remembers_its_own_frames() -> None:
    prediction = whole()
    seats = OdometryState(tiny_preset(look_back=True).network, GRID, 3, torch.device("cpu"))
    seats.keep(prediction, [0], [1])
    past, ended = seats.of(torch.tensor([0, 1, 2])), prediction.kept
    assert past is not None and past.past is not None and ended is not None and ended.past is not None
    assert past.past.count.tolist() == [0, KEPT, 0]
    torch.testing.assert_close(past.past.features[1:2], ended.past.features)
    torch.testing.assert_close(past.past.poses[1], prediction.pose_code[0, -KEPT:].flip(0))
    assert not past.past.features[[0, 2]].any()


class Finding(nn.Module):
    """A look back that finds all points where the true turn leads them, and is sure of those near by; or finds none."""

    def __init__(self, R_first_camera: Tensor, finds: bool) -> None:
        super().__init__()
        self.R, self.finds = R_first_camera, finds

    def forward(
        self, own: Tensor, others: Tensor, context: Tensor, points: Tensor, motion: Tensor, lengths: Tensor, size: Any
    ) -> Matches:
        true = torch.cat([self.R, torch.zeros(3, 1)], dim=1).expand_as(motion)
        expected, _, in_view = expect(points, motion, lengths, size)
        places, _, truly = expect(points, true, lengths, size)
        near = (places - expected).norm(dim=-1) < REACH_PX
        return Matches(
            torch.stack([expected, places]), torch.where(near, 1.0, -6.0), in_view & truly & torch.tensor(self.finds)
        )


@pytest.mark.parametrize(("finds", "left"), [(True, 0.0), (False, 12.2)])
def test_a_turn_that_was_misjudged_is_mended_if_matches_confirm_it(finds: bool, left: float) -> None:
    grid = (SIZE[0] // 7, SIZE[1] // 7)
    R = rotation_from_vector(torch.deg2rad(torch.tensor([[2.0, -11.0, 5.0]])))[0]
    still = torch.tensor([[0.0, 0, 0, 0, 0, 0, 1, *(2 * math.atan(side / 2 / FOCAL) for side in SIZE)]])
    past = MatchingHistory.none(1, SIZE, torch.device("cpu")).followed_by(described(torch.eye(3)), still)
    kept = DepthState.of(torch.full((1, 2, *SIZE), math.log(FAR)), grid)
    look_back, context = Finding(R, finds), torch.zeros(1, *grid, CONTEXT)
    code, _ = refinement.refine_pose(cast(KeyframeMatcher, look_back), described(R), context, still, still, kept, past)
    off = pose_to_matrix(code)[0, :3, :3].T @ R
    assert math.degrees(float(vector_from_rotation(off[None]).norm())) == pytest.approx(left, abs=0.4)
