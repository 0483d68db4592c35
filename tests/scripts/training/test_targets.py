import torch
import torch.nn.functional as F

from stream_recon.models.pose import inverse_pose, matrix_to_quaternion, quaternion_to_matrix
from tests.scripts.training.planes import plane_clips
from training.synthetic import ClipBatch
from training.targets import ROTATION_NOISE_DEG, build_targets, compress, match_targets, perturb_motion

PATCH = 14
CELL = PATCH // 2


def scaled(batch: ClipBatch, factor: float) -> ClipBatch:
    T = batch.T_world_camera.clone()
    T[..., :3, 3] *= factor
    return ClipBatch(batch.images, batch.depth * factor, T, batch.intrinsics, batch.kind)


def test_quaternions_and_matrices_agree_for_all_kinds_of_rotations() -> None:
    generator = torch.Generator().manual_seed(0)
    random = F.normalize(torch.randn(200, 4, generator=generator), dim=-1)
    half_turns = torch.eye(4)[:3]
    quaternions = torch.cat([random, half_turns, torch.tensor([[0.0, 0, 0, 1]])])
    R = quaternion_to_matrix(quaternions)
    assert torch.allclose(R @ R.transpose(-1, -2), torch.eye(3).expand_as(R), atol=1e-5)
    back = matrix_to_quaternion(R)
    assert (back[:, 3] >= 0).all()
    assert torch.allclose((back * quaternions).sum(-1).abs(), torch.ones(len(back)), atol=1e-5)


def test_quaternion_is_xyzw_and_right_handed() -> None:
    quarter_turn_about_z = torch.tensor([0, 0, 0.5**0.5, 0.5**0.5])
    turned = quaternion_to_matrix(quarter_turn_about_z) @ torch.tensor([1.0, 0, 0])
    assert torch.allclose(turned, torch.tensor([0.0, 1, 0]), atol=1e-6)


def test_inverse_pose_undoes_a_pose() -> None:
    T = plane_clips(1, 2, 3, 28, 42).T_world_camera
    assert torch.allclose(inverse_pose(T) @ T, torch.eye(4).expand_as(T), atol=1e-5)


def test_flow_target_leads_to_the_same_colour_in_the_previous_frame() -> None:
    height, width = 56, 84
    batch = plane_clips(2, 3, 4, height, width)
    targets = build_targets(batch, 2, PATCH)
    ys = torch.arange(CELL // 2, height, CELL) + 0.5
    xs = torch.arange(CELL // 2, width, CELL) + 0.5
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    place = torch.stack([x, y], dim=-1) + targets.flow * PATCH
    unit = place / torch.tensor([width, height]) * 2 - 1
    previous = batch.images[:, :-1].flatten(0, 1)
    colour = F.grid_sample(previous, unit.flatten(0, 1), mode="bilinear", align_corners=False)
    own = batch.images[:, 1:, :, CELL // 2 :: CELL, CELL // 2 :: CELL].flatten(0, 1)
    inside = (unit.abs().amax(-1) < 0.95).flatten(0, 1) & targets.flow_valid.flatten(0, 1)
    assert inside.float().mean() > 0.5
    assert targets.flow[targets.flow_valid].abs().mean() > 0.02
    assert (colour - own).abs().amax(1)[inside].max() < 0.03


def test_points_target_lies_in_the_first_cameras_frame() -> None:
    batch = plane_clips(3, 2, 4, 28, 42)
    targets = build_targets(batch, 1, PATCH)
    first, T_first_world = targets.points, inverse_pose(batch.T_world_camera[:, :1])
    # Frame 0's own points are its pixels' rays times depth; all others lie on the same plane, seen from camera 0.
    normal = T_first_world[:, 0, :3, 2]
    metric = first.sign() * first.abs().expm1() * targets.scale[:, None, None, None, None]
    heights = (metric * normal[:, None, None, None]).sum(-1)
    assert (heights - heights[:, :1, :1, :1]).abs().max() < 1e-3
    z = batch.depth[:, 0, CELL // 2 :: CELL, CELL // 2 :: CELL]
    assert torch.allclose(metric[:, 0, ..., 2], z, atol=1e-3)


def test_targets_do_not_know_the_unit_of_length() -> None:
    batch = plane_clips(4, 2, 4, 28, 42)
    small, large = build_targets(batch, 2, PATCH), build_targets(scaled(batch, 7.0), 2, PATCH)
    assert torch.allclose(large.scale, 7 * small.scale, rtol=1e-4)
    for name in ("translation", "quaternion", "fov", "points", "flow"):
        assert torch.allclose(getattr(small, name), getattr(large, name), atol=1e-4), name


def test_scale_is_the_mean_distance_of_the_scale_frames_points() -> None:
    batch = plane_clips(5, 1, 4, 28, 42, motion=0.0)
    targets = build_targets(batch, 1, PATCH)
    plane = float(batch.depth.min())
    assert plane < float(targets.scale) < 1.3 * plane


def test_sky_is_asked_for_nothing() -> None:
    batch = plane_clips(6, 1, 3, 28, 42)
    batch.depth[:, :, :14] = 0
    targets = build_targets(batch, 1, PATCH)
    assert not targets.points_valid[:, :, :2].any() and targets.points_valid[:, :, 2:].all()
    assert not targets.flow_valid[:, :, :2].any()
    assert torch.isfinite(targets.flow[targets.flow_valid]).all() and torch.isfinite(targets.points).all()


def test_hidden_points_have_no_flow_target() -> None:
    batch = plane_clips(7, 1, 2, 28, 42, motion=0.001)
    assert build_targets(batch, 1, PATCH).flow_valid.all()
    batch.depth[:, 0] *= 0.5  # something stood before the plane in frame 0
    assert not build_targets(batch, 1, PATCH).flow_valid.any()


def test_fields_of_view_come_from_both_focal_lengths() -> None:
    batch = plane_clips(8, 2, 2, 28, 42)
    fov = build_targets(batch, 1, PATCH).fov[:, 0]
    assert torch.allclose(torch.tan(fov[:, 0] / 2), 14 / batch.intrinsics[:, 1])
    assert torch.allclose(torch.tan(fov[:, 1] / 2), 21 / batch.intrinsics[:, 0])


def test_compress_is_odd_and_grows() -> None:
    x = torch.linspace(-50, 50, 101)
    assert torch.allclose(compress(-x), -compress(x)) and (compress(x).diff() > 0).all()


def test_matches_are_the_patches_that_flow_leads_to_and_hidden_points_have_none() -> None:
    height, width = 56, 84
    batch = plane_clips(2, 3, 4, height, width, motion=1.0)
    pairs = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    targets = build_targets(batch, 2, PATCH, pairs)
    assert targets.matches.shape == (3, 4, height // CELL, width // CELL)
    ys = torch.arange(CELL // 2, height, CELL) + 0.5
    xs = torch.arange(CELL // 2, width, CELL) + 0.5
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    place = torch.stack([x, y], dim=-1) / PATCH + targets.flow
    index = (place[..., 1].floor() * (width // PATCH) + place[..., 0].floor()).long()
    known = (targets.matches[:, :3] >= 0) & targets.flow_valid
    assert known.float().mean() > 0.5
    assert (targets.matches[:, :3] == index)[known].all()
    outside = (place < 0).any(-1) | (place[..., 0] >= width / PATCH) | (place[..., 1] >= height / PATCH)
    assert outside.any() and (targets.matches[:, :3][outside] == -1).all()
    blank = ClipBatch(batch.images, batch.depth * 0, batch.T_world_camera, batch.intrinsics, batch.kind)
    assert (build_targets(blank, 2, PATCH, pairs).matches == -1).all()


def test_places_to_look_back_at_show_the_same_colour_and_are_where_the_motion_leads() -> None:
    height, width = 56, 84
    batch = plane_clips(2, 3, 6, height, width)
    frames, others = torch.tensor([1, 3, 5]), torch.tensor([4, 0, 2])
    targets = build_targets(batch, 2, PATCH)
    matches = match_targets(batch, targets.scale, frames, others, PATCH)
    unit = matches.pixels / torch.tensor([width, height]) * 2 - 1
    colour = F.grid_sample(batch.images[:, others].flatten(0, 1), unit.flatten(0, 1), align_corners=False)
    own = batch.images[:, frames, :, CELL // 2 :: CELL, CELL // 2 :: CELL].flatten(0, 1)
    inside = ((unit.abs().amax(-1) < 0.95) & matches.shown).flatten(0, 1)
    assert inside.float().mean() > 0.3
    assert (colour - own).abs().amax(1)[inside].max() < 0.03
    assert matches.known.all()
    R, t = targets.R_first_camera, targets.translation
    torch.testing.assert_close(matches.motion[..., :3], R[:, others].mT @ R[:, frames], atol=1e-5, rtol=0)
    apart = (R[:, others].mT @ (t[:, frames] - t[:, others])[..., None])[..., 0]
    torch.testing.assert_close(matches.motion[..., 3], apart, atol=1e-5, rtol=0)


def test_perturbed_motions_are_motions_off_by_little_and_by_much() -> None:
    torch.manual_seed(0)
    motion = torch.eye(3, 4).repeat(40, 50, 1, 1)
    motion[..., 3] = torch.tensor([0.0, 0.0, 1.0])
    off = perturb_motion(motion)
    torch.testing.assert_close(off[..., :3] @ off[..., :3].mT, torch.eye(3).expand(40, 50, 3, 3), atol=1e-5, rtol=0)
    turn = torch.rad2deg((off[..., :3] - motion[..., :3]).square().sum((-2, -1)).div(2).sqrt()).flatten()
    assert turn.quantile(0.1) < 10 * ROTATION_NOISE_DEG[0] and turn.quantile(0.9) > 0.3 * ROTATION_NOISE_DEG[1]
    assert 0.05 < float(off[..., 3].norm(dim=-1).std()) < 0.15
