import torch
from torch import Tensor

from stream_recon.models.odometry.fusion import LastPose, fuse_poses
from stream_recon.models.pose import matrix_to_quaternion, pose_to_matrix, so3_exp


def codes(frames: int, seed: int = 0) -> Tensor:
    """Pose codes [2, frames, 9] of two walks."""
    generator = torch.Generator().manual_seed(seed)
    vectors, places = (torch.randn(2, frames, 3, generator=generator).cumsum(1) * 0.1 for _ in range(2))
    quaternion = matrix_to_quaternion(so3_exp(vectors.flatten(0, 1))).unflatten(0, (2, frames))
    return torch.cat([places, quaternion, torch.ones(2, frames, 2)], dim=-1)


def steps_of(code: Tensor) -> Tensor:
    """The motions [B, S, 3, 4] since the frame before; the first frame's is none."""
    T = pose_to_matrix(code)
    before = torch.cat([T[:, :1], T[:, :-1]], dim=1)
    return (torch.linalg.inv(before) @ T)[..., :3, :]


def test_where_steps_and_head_say_the_same_so_do_the_poses() -> None:
    said = codes(6)
    followed = fuse_poses(said, steps_of(said), torch.ones(2, 6), torch.zeros(2, 6), None)
    torch.testing.assert_close(pose_to_matrix(followed), pose_to_matrix(said), atol=1e-5, rtol=0)


def test_steps_without_support_leave_the_heads_motion() -> None:
    said, other = codes(6), codes(6, seed=1)
    followed = fuse_poses(said, steps_of(other), torch.zeros(2, 6), torch.zeros(2, 6), None)
    torch.testing.assert_close(pose_to_matrix(followed), pose_to_matrix(said), atol=1e-5, rtol=0)


def test_a_heads_error_is_held_off_and_a_steps_forgotten() -> None:
    true = codes(60)
    noisy = true.clone()
    noisy[:, 30, :3] += 0.5
    support, units = torch.ones(2, 60), torch.zeros(2, 60)
    off = (fuse_poses(noisy, steps_of(true), support, units, None) - true)[..., :3].norm(dim=-1)
    assert float(off[:, 30].max()) < 0.1 * 0.87
    longer = codes(300)
    slipped = steps_of(longer)
    slipped[:, 10, :, 3] *= 3
    off = (fuse_poses(longer, slipped, torch.ones(2, 300), torch.zeros(2, 300), None) - longer)[..., :3].norm(dim=-1)
    assert float((off[:, 299] / off[:, 10]).max()) < 0.1


def test_steps_are_in_the_unit_of_the_depths() -> None:
    """A head and motions whose unit shrinks, and the factors that say so, give the path as it is."""
    true, motion = codes(8), steps_of(codes(8))
    unit = torch.linspace(0, 0.3, 8).expand(2, -1)
    motion[..., 3] *= (-unit).exp()[..., None]
    said = [true[:, 0]]
    for frame in range(1, 8):
        step = (true[:, frame, :3] - true[:, frame - 1, :3]) * (-unit[:, frame, None]).exp()
        said.append(torch.cat([said[-1][:, :3] + step, true[:, frame, 3:]], dim=-1))
    off = fuse_poses(torch.stack(said, dim=1), motion, torch.ones(2, 8), unit, None) - true
    plain = fuse_poses(torch.stack(said, dim=1), motion, torch.ones(2, 8), torch.zeros(2, 8), None) - true
    assert float(off[..., :3].norm(dim=-1).max()) < 0.2 * float(plain[..., :3].norm(dim=-1).max())


def test_frames_together_are_frames_one_by_one() -> None:
    said, motion = codes(5), steps_of(codes(5, seed=2))
    support, units = torch.ones(2, 5), torch.linspace(-0.2, 0.1, 5).expand(2, -1)
    whole = fuse_poses(said, motion, support, units, None)
    last: LastPose | None = None
    for frame in range(5):
        part = slice(frame, frame + 1)
        followed = fuse_poses(said[:, part], motion[:, part], support[:, part], units[:, part], last)
        torch.testing.assert_close(followed, whole[:, part])
        last = LastPose(followed[:, 0], said[:, frame])
