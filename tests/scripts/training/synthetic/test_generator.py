"""What a clip promises: its frames warp into one another by its truth, and its numbers keep their ranges."""

import math

import pytest
import torch
from torch import Tensor

from training.synthetic import ClipBatch, SceneGenerator, SceneShares
from training.synthetic.primitives import SLOTS


def warp(batch: ClipBatch, target: int, source: int) -> tuple[Tensor, Tensor]:
    """The source frame seen from the target frame by depth, poses and intrinsics, and where it is visible."""
    clips, _, _, height, width = batch.images.shape
    fx, fy, cx, cy = (batch.intrinsics[:, i].view(-1, 1, 1) for i in range(4))
    v, u = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    z = batch.depth[:, target]
    points = torch.stack([(u - cx) / fx * z, (v - cy) / fy * z, z], -1).view(clips, -1, 3)
    T = torch.linalg.inv(batch.T_world_camera[:, source]) @ batch.T_world_camera[:, target]
    moved = (points @ T[:, :3, :3].transpose(1, 2) + T[:, None, :3, 3]).view(clips, height, width, 3)
    ahead = moved[..., 2].clamp_min(1e-3)
    x = (moved[..., 0] / ahead * fx + cx) * 2 / width - 1
    y = (moved[..., 1] / ahead * fy + cy) * 2 / height - 1
    grid = torch.stack([x, y], -1)
    image = torch.nn.functional.grid_sample(batch.images[:, source], grid, align_corners=False)
    there = torch.nn.functional.grid_sample(batch.depth[:, source, None], grid, mode="nearest", align_corners=False)[
        :, 0
    ]
    visible = (z > 0) & (grid.abs().amax(-1) < 1) & ((there - moved[..., 2]).abs() < 0.03 * moved[..., 2])
    return image, visible


def test_frames_warp_into_one_another(clean: ClipBatch) -> None:
    image, visible = warp(clean, 0, 2)
    seen = visible.flatten(1).float().mean(1)
    moving = (seen > 0.2) & (seen < 1.0)
    assert moving.sum() >= 5
    mask = visible[:, None]
    aligned = ((image - clean.images[:, 0]).abs() * mask).flatten(1).sum(1) / mask.flatten(1).sum(1).clamp_min(1)
    still = ((clean.images[:, 2] - clean.images[:, 0]).abs() * mask).flatten(1).sum(1)
    still = still / mask.flatten(1).sum(1).clamp_min(1)
    assert aligned[moving].mean() < 0.5 * still[moving].mean()


def test_nothing_is_nearer_than_the_camera_needs(clean: ClipBatch) -> None:
    assert torch.isfinite(clean.depth).all()
    surface = clean.depth[clean.depth > 0]
    assert surface.numel() > 0.5 * clean.depth.numel()
    # Layouts keep 0.15 m or more around a camera clear; depth is along the axis, at most cos(60 degrees) of that.
    assert surface.min() > 0.07


def test_images_are_not_blank(clean: ClipBatch) -> None:
    assert clean.images.min() >= 0 and clean.images.max() <= 1
    assert (clean.images.flatten(2).std(-1) > 0.01).float().mean() > 0.8


def test_poses_are_rigid_and_close_to_one_another(clean: ClipBatch) -> None:
    R = clean.T_world_camera[..., :3, :3]
    identity = torch.eye(3).expand_as(R)
    torch.testing.assert_close(R @ R.transpose(-1, -2), identity, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(R.shape[:2]), atol=1e-5, rtol=0)
    torch.testing.assert_close(clean.T_world_camera[..., 3, :], torch.tensor([0.0, 0, 0, 1]).expand(9, 3, 4))
    step = clean.T_world_camera[..., :3, 3].diff(dim=1).norm(dim=-1)
    assert (step < 0.6 * clean.depth.flatten(1).amax(1, keepdim=True)).all()


def test_all_kinds_appear(clean: ClipBatch) -> None:
    assert set(clean.kind.tolist()) == {0, 1, 2}
    kinds = SceneGenerator("cpu", 0).next_kinds(100)
    assert [kinds.count(k) for k in range(3)] == pytest.approx([55, 33, 12], abs=3)


def test_the_same_seed_gives_the_same_clips() -> None:
    def clip(seed: int) -> ClipBatch:
        return SceneGenerator("cpu", seed).render(clips=2, frames=2, height=14, width=28)

    first, again, other = clip(5), clip(5), clip(6)
    for name in ("images", "depth", "T_world_camera", "intrinsics", "kind"):
        assert torch.equal(getattr(first, name), getattr(again, name)), name
    assert not torch.equal(first.images, other.images)


def test_one_generator_goes_on_to_new_clips() -> None:
    generator = SceneGenerator("cpu", 5)
    one, two = (generator.render(clips=1, frames=1, height=14, width=14) for _ in range(2))
    assert not torch.equal(one.T_world_camera, two.T_world_camera)


@pytest.mark.parametrize(("height", "width"), [(14, 56), (56, 28), (30, 30), (17, 41)])
def test_every_aspect_works(height: int, width: int) -> None:
    batch = SceneGenerator("cpu", 9).render(clips=2, frames=2, height=height, width=width)
    assert batch.images.shape == (2, 2, 3, height, width)
    assert batch.depth.shape == (2, 2, height, width)
    fx, fy, cx, cy = batch.intrinsics.unbind(1)
    assert (cx == width / 2).all() and (cy == height / 2).all()
    assert ((fx / fy - 1).abs() <= 0.055).all()
    longer = fx if width >= height else fy
    field = 2 * torch.atan(0.5 * max(height, width) / longer) * 180 / math.pi
    assert ((field > 19) & (field < 114)).all()


def test_fields_of_view_vary_widely() -> None:
    from training.synthetic.cameras import draw_focal
    from training.synthetic.draws import Draws

    focal = draw_focal(Draws(torch.device("cpu"), 0), 400, 168, 224)
    field = 2 * torch.atan(112 / focal[:, 0]) * 180 / math.pi
    assert field.quantile(0.05) < 45 and field.quantile(0.95) > 85


def test_cameras_stay_out_of_everything() -> None:
    generator = SceneGenerator("cpu", 2, degrade=False)
    frames = 16
    world, poses = generator.build(generator.draw_layouts([0] * 8 + [1] * 8 + [2] * 4, frames))
    scene = world.scene
    assert (scene.count > 10).all() and (scene.count <= SLOTS).all()
    A = scene.primitives[..., :9].view(20, SLOTS, 3, 3)
    local = torch.einsum("bnij,bsj->bnsi", A, poses[..., :3, 3]) + scene.primitives[..., None, 9:12]
    inside = (local.abs() < 1).all(-1).any(-1)
    used = torch.arange(SLOTS) < scene.count[:, None]
    assert not (inside & used).any()
    # Rooms contain their cameras.
    low, high = scene.air[:8, 0, None, :3], scene.air[:8, 0, None, 3:6]
    position = poses[:8, :, :3, 3]
    assert ((position > low) & (position < high)).all()


@pytest.mark.parametrize("frames", [8, 64])
def test_cars_are_slow_and_fast_and_stay_on_their_street(frames: int) -> None:
    from training.synthetic.cameras import DRIVE, draw_path
    from training.synthetic.draws import Draws

    path = draw_path(Draws(torch.device("cpu"), 2), {DRIVE: 1.0}, frames, torch.full((300,), 8.0))
    step = path.position.diff(dim=1).norm(dim=-1).mean(1)
    assert step.quantile(0.1) < 0.2 and step.quantile(0.9) > min(1.8, 95 / frames)
    assert (path.position[:, -1] - path.position[:, 0]).norm(dim=-1).max() < 103


def test_motion_is_slow_and_fast_and_smooth() -> None:
    from training.synthetic.cameras import PAN, SCAN, STATIC, WALK, draw_path
    from training.synthetic.draws import Draws

    depth = torch.full((300,), 3.0)
    path = draw_path(Draws(torch.device("cpu"), 1), {WALK: 1.0, SCAN: 1.0}, 32, depth)
    move = path.position.diff(dim=1)
    share = move.norm(dim=-1).mean(1) / 3.0
    assert 0.01 < share.median() < 0.04
    assert share.quantile(0.05) < 0.006 and share.quantile(0.95) > 0.06
    towards = torch.nn.functional.cosine_similarity(move[:, 1:], move[:, :-1], dim=-1)
    assert towards.mean() > 0.7
    still = draw_path(Draws(torch.device("cpu"), 1), {STATIC: 1.0}, 32, depth)
    assert still.position.diff(dim=1).norm(dim=-1).mean() < 1e-3
    pan = draw_path(Draws(torch.device("cpu"), 1), {PAN: 1.0}, 32, depth)
    assert pan.position.diff(dim=1).norm(dim=-1).mean() < 0.01
    assert pan.yaw.diff(dim=1).abs().mean() > 0.01


def test_sharp_turns_are_sharp_and_leave_standing_cameras_alone() -> None:
    from training.synthetic.cameras import SCAN, STATIC, WALK, draw_path
    from training.synthetic.draws import Draws

    def turns(modes: dict[int, float], share: float) -> torch.Tensor:
        path = draw_path(Draws(torch.device("cpu"), 1), modes, 16, torch.full((400,), 3.0), turning=share)
        return path.yaw.diff(dim=1).abs().mean(1) * 180 / math.pi

    sharp = turns({WALK: 1.0, SCAN: 1.0}, 1.0)
    assert 10 < sharp.median() < 17 and sharp.quantile(0.05) > 5 and sharp.quantile(0.95) < 26
    usual, some = turns({WALK: 1.0}, 0.0), turns({WALK: 1.0}, 0.2)
    assert 0.15 < (some > 6).float().mean() - (usual > 6).float().mean() < 0.25
    assert turns({STATIC: 1.0}, 1.0).max() < 1


def test_extreme_lenses_are_narrower_and_wider_than_the_others() -> None:
    from training.synthetic.cameras import draw_focal
    from training.synthetic.draws import Draws

    focal = draw_focal(Draws(torch.device("cpu"), 0), 4000, 168, 224, 0.06, 0.04)
    field = 2 * torch.atan(112 / focal[:, 0]) * 180 / math.pi
    assert 0.04 < (field < 33).float().mean() < 0.09 and 0.02 < (field > 102.5).float().mean() < 0.06
    assert field.min() < 22 and field.max() > 110


def test_usual_lenses_are_nearer_to_the_middle() -> None:
    from training.synthetic.cameras import draw_focal
    from training.synthetic.draws import Draws

    focal = draw_focal(Draws(torch.device("cpu"), 0), 20000, 168, 224)
    field = 2 * torch.atan(112 / focal[:, 0]) * 180 / math.pi
    near = float(((field > 53) & (field < 79)).float().mean())
    assert near == pytest.approx(0.8 * 26 / 67 + 0.2 * 0.68, abs=0.015)


@pytest.mark.slow
def test_batches_built_ahead_mix_all_kinds() -> None:
    generator = SceneGenerator("cpu", 5)
    world, poses = generator.build(generator.draw_layouts([0] * 4 + [1] * 4, 2))
    part = world.part(slice(1, None, 4))
    assert torch.equal(part.scene.primitives, world.scene.primitives[[1, 5]])
    focal = torch.full((2, 2), 20.0)
    _, depth = generator.renderer.render(part, poses[1::4], focal, 14, 28)
    _, whole = generator.renderer.render(world, poses, focal[:1].expand(8, 2), 14, 28)
    assert torch.equal(depth, whole[1::4])


def test_named_motions_are_what_they_say() -> None:
    from training.synthetic.cameras import MOTIONS, draw_path
    from training.synthetic.draws import Draws

    def path(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        drawn = draw_path(Draws(torch.device("cpu"), 3), {MOTIONS[name]: 1.0}, 16, torch.full((300,), 3.0))
        move = drawn.position.diff(dim=1)
        return move.norm(dim=-1).mean(1), drawn.position[:, -1, 2].abs(), drawn.pitch.mean(1)

    assert path("still")[0].max() < 3e-3
    assert path("rotation")[0].median() < 5e-3
    length, rise, _ = path("stairs")
    assert (rise > 0.2 * 15 * length).float().mean() > 0.5
    assert path("nadir")[2].quantile(0.95) < -1.15
    length, rise, _ = path("orbit")
    assert (rise < 5 * length).float().mean() > 0.8


@pytest.mark.slow
def test_clips_of_one_motion_alone() -> None:
    down = SceneGenerator("cpu", 1, shares=SceneShares(turning=0.0, motion="nadir")).render(3, 2, 14, 28)
    assert down.kind.tolist() == [1, 1, 1]
    assert (down.T_world_camera[:, :, 2, 2] < -0.9).all()
    stairs = SceneGenerator("cpu", 1, shares=SceneShares(turning=0.0, motion="stairs")).render(4, 8, 14, 28)
    assert stairs.images.isfinite().all() and (stairs.depth >= 0).all()
    room = stairs.kind == 0
    assert room.any() and (stairs.depth[room] > 0).float().mean() > 0.5
