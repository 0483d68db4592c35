"""A pose settled on several frames at once, with depths that err."""

import torch
from torch import Tensor

from stream_recon.models.odometry.pose_only_ba import pose_only_ba
from stream_recon.models.pose import pose_to_matrix, so3_exp

POINTS, FRAMES = 300, 3


def pose(turn: Tensor, shift: Tensor) -> Tensor:
    """[N, 4, 4]"""
    T = pose_to_matrix(torch.tensor([[0, 0, 0, 0, 0, 0, 1.0, 1, 1]])).repeat(len(turn), 1, 1)
    T[:, :3, :3], T[:, :3, 3] = so3_exp(turn), shift
    return T


def scene(depth_error: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Points as said (depths off by so much), their true places in the other frames, those frames, the true pose, one
    to begin with, and by how much each log depth is off."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    true = torch.rand(1, POINTS, 3, generator=generator) * torch.tensor([2.0, 1.5, 2.0]) + torch.tensor([-1, -0.75, 1])
    T_world_camera = pose(some(1, 3) * 0.1, some(1, 3) * 0.1)
    T_other_world = torch.linalg.inv(pose(some(FRAMES, 3) * 0.1, some(FRAMES, 3) * 0.2))[None]
    motion = T_other_world @ T_world_camera[:, None]
    there = true[:, None] @ motion[..., :3, :3].transpose(-1, -2) + motion[..., None, :3, 3]
    begin = T_world_camera @ pose(some(1, 3) * 0.02, some(1, 3) * 0.02)
    off = some(1, POINTS) * depth_error
    return true * off.exp()[..., None], there[..., :2] / there[..., 2:], T_other_world, T_world_camera, begin, off


def test_the_pose_is_found_that_all_frames_agree_on() -> None:
    points, target, others, truth, begin, _ = scene()
    settled = pose_only_ba(points, target, torch.full((1, FRAMES, POINTS), 1e5), others, begin)
    torch.testing.assert_close(settled.T_world_camera, truth, atol=2e-4, rtol=0)
    assert float(settled.support) > 0.95


def test_depths_that_err_hardly_move_it_and_are_told() -> None:
    points, target, others, truth, begin, off = scene(0.1)
    settled = pose_only_ba(points, target, torch.full((1, FRAMES, POINTS), 1e5), others, begin)
    torch.testing.assert_close(settled.T_world_camera, truth, atol=6e-3, rtol=0)
    pull, information = settled.evidence.unbind(1)
    told = pull / information
    assert float((told + off).abs().median()) < 0.3 * float(off.abs().median())


def test_wrong_matches_hardly_move_it_and_lower_its_support() -> None:
    points, target, others, truth, begin, _ = scene()
    target[:, :, :60] += 0.2
    settled = pose_only_ba(points, target, torch.full((1, FRAMES, POINTS), 1e5), others, begin)
    torch.testing.assert_close(settled.T_world_camera, truth, atol=3e-3, rtol=0)
    assert float(settled.support) < 0.9


def test_without_matches_it_stays() -> None:
    points, target, others, _, begin, _ = scene()
    settled = pose_only_ba(points, target, torch.zeros(1, FRAMES, POINTS), others, begin)
    torch.testing.assert_close(settled.T_world_camera, begin)
    assert float(settled.support) == 0 and not settled.evidence.any()
