"""What is seen again of frames further back, inside the network: whole clips and a stream say the same."""

import math
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from stream_recon.app.engine.stream import OdometrySlots, StreamRunner
from stream_recon.models.odometry import refinement
from stream_recon.models.odometry.depth_filter import DepthState
from stream_recon.models.odometry.keyframe_matcher import (
    CONTEXT,
    HISTORY,
    KeyframeMatcher,
    Matches,
    MatchingHistory,
    predict_pixels,
)
from stream_recon.models.odometry.refinement import QueryFrame
from stream_recon.models.odometry.rotation_search import search_rotation
from stream_recon.models.odometry.sampling import CellPoints
from stream_recon.models.pose import pose_to_matrix, so3_exp, so3_log
from stream_recon.models.prediction import Prediction
from tests.models.skies import FAR, FOCAL, SIZE, described
from tests.networks import (
    GRID,
    assert_only_keyframes_count,
    clip_mask,
    clip_step,
    random_images,
    tiny_network,
    tiny_preset,
    whole_clip,
)

FRAMES = 7
REACH_PX = 16.0


def whole(images: torch.Tensor | None = None) -> Prediction:
    return whole_clip(tiny_preset(keyframe_matcher=True), random_images(FRAMES) if images is None else images)


def test_a_stream_gives_what_the_whole_clip_gives() -> None:
    # Noise has no overlap: rotations that are searched in vain would only amplify rounding errors.
    preset, images = tiny_preset(keyframe_matcher=True, rotation_search=False), random_images(FRAMES)
    stream = StreamRunner(tiny_network(preset), preset, GRID)
    first = preset.stream.scale_frames
    parts = [stream.step(part)[0] for part in (images[:first], *images[first:].split(1))]
    together = whole_clip(preset, images)
    codes = torch.cat([prediction.pose for prediction in parts], dim=1)
    torch.testing.assert_close(codes, together.pose, atol=1e-3, rtol=1e-3)
    depths = torch.cat([prediction.log_depth for prediction in parts], dim=1)
    torch.testing.assert_close(depths, together.log_depth, atol=1e-3, rtol=1e-3)


def test_it_moves_poses_and_depths_of_all_but_the_first_frame() -> None:
    network, images = tiny_network(tiny_preset(keyframe_matcher=True)), random_images(FRAMES)
    assert network.odometry is not None
    network.odometry.keyframe_matcher = None
    mended = whole(images)
    plain, _ = network(images[None], clip_mask(tiny_preset(), images))
    moved = (mended.pose - plain.pose)[0, :, :7].abs().amax(-1)
    assert float(moved[0]) == 0 and (moved[1:] > 1e-4).all()
    changed = (mended.log_depth - plain.log_depth)[0].flatten(1).abs().amax(-1)
    assert float(changed[0]) == 0 and (changed[1:] > 1e-5).any()
    torch.testing.assert_close(mended.pose[..., 7:], plain.pose[..., 7:])


def test_later_frames_do_not_change_earlier_ones() -> None:
    images = random_images(FRAMES)
    images[6:] = 0.5
    changed, before = whole(images), whole()
    torch.testing.assert_close(changed.pose[:, :6], before.pose[:, :6])
    torch.testing.assert_close(changed.log_depth[:, :6], before.log_depth[:, :6])


def test_a_frame_that_is_not_kept_leaves_no_trace() -> None:
    assert_only_keyframes_count(random_images(FRAMES + 4), keyframe_matcher=True)


def test_each_slot_remembers_its_own_frames() -> None:
    prediction, state = clip_step(tiny_preset(keyframe_matcher=True), random_images(FRAMES))
    slots = OdometrySlots(tiny_preset(keyframe_matcher=True).network, GRID, 3, torch.device("cpu"))
    slots.store(prediction, state, [0], [1])
    stored = slots.select(torch.tensor([0, 1, 2]))
    assert stored is not None and stored.history is not None and state is not None and state.history is not None
    assert stored.history.count.tolist() == [0, HISTORY, 0]
    torch.testing.assert_close(stored.history.features[1:2], state.history.features)
    torch.testing.assert_close(stored.history.poses[1], prediction.pose[0, -HISTORY:].flip(0))
    torch.testing.assert_close(stored.last.head_pose[1], prediction.head_pose[-1, 0, -1])
    torch.testing.assert_close(stored.depth.log_depth[1], prediction.log_depth[0, -1])
    assert not stored.depth.log_depth[[0, 2]].any()
    assert not stored.history.features[[0, 2]].any()


@pytest.mark.parametrize(("choice", "searches"), [(True, True), ("auto", True), (False, False)])
def test_the_preset_chooses_whether_rotations_are_searched(
    choice: object, searches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[CellPoints] = []

    def counted(own: Tensor, other: Tensor, points: CellPoints, motion: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        calls.append(points)
        return search_rotation(own, other, points, motion)

    monkeypatch.setattr(refinement, "search_rotation", counted)
    preset, images = tiny_preset(keyframe_matcher=True, rotation_search=choice), random_images(FRAMES)
    stream, first = StreamRunner(tiny_network(preset), preset, GRID), preset.stream.scale_frames
    for part in (images[:first], *images[first:].split(1)):
        stream.step(part)
    assert len(calls) == (FRAMES - 1 if searches else 0)


class Finding(nn.Module):
    """A look back that finds all points where the true turn leads them, and is sure of those near by; or finds none."""

    def __init__(self, R_first_camera: Tensor, finds: bool) -> None:
        super().__init__()
        self.R, self.finds = R_first_camera, finds

    def forward(self, own: Tensor, others: Tensor, context: Tensor, points: CellPoints, motion: Tensor) -> Matches:
        true = torch.cat([self.R, torch.zeros(3, 1)], dim=1).expand_as(motion)
        expected, _, in_view = predict_pixels(points, motion)
        places, _, truly = predict_pixels(points, true)
        near = (places - expected).norm(dim=-1) < REACH_PX
        return Matches(
            torch.stack([expected, places]), torch.where(near, 1.0, -6.0), in_view & truly & torch.tensor(self.finds)
        )


@pytest.mark.parametrize(("finds", "left"), [(True, 0.0), (False, 12.2)])
def test_a_wrong_rotation_is_corrected_if_matches_confirm_it(finds: bool, left: float) -> None:
    grid = (SIZE[0] // 7, SIZE[1] // 7)
    R = so3_exp(torch.deg2rad(torch.tensor([[2.0, -11.0, 5.0]])))[0]
    still = torch.tensor([[0.0, 0, 0, 0, 0, 0, 1, *(2 * math.atan(side / 2 / FOCAL) for side in SIZE)]])
    past = MatchingHistory.empty(1, SIZE, torch.device("cpu")).followed_by(described(torch.eye(3)), still)
    kept = DepthState.from_maps(torch.full((1, 2, *SIZE), math.log(FAR)), grid)
    matcher = cast(KeyframeMatcher, Finding(R, finds))
    query = QueryFrame(described(R), torch.zeros(1, *grid, CONTEXT), still)
    code, _ = refinement.refine_pose(matcher, query, still, kept, past)
    off = pose_to_matrix(code)[0, :3, :3].T @ R
    assert math.degrees(float(so3_log(off[None]).norm())) == pytest.approx(left, abs=0.4)
