import pytest
import torch
from torch import Tensor

from stream_recon.models.odometry import pnp
from stream_recon.models.odometry.pnp import (
    eliminate,
    fuse_poses,
    rotation_from_vector,
    solve_pnp,
    solve_small,
    vector_from_rotation,
)
from stream_recon.models.pose import matrix_to_quaternion, pose_to_matrix


def scene(count: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Points, a motion for each of four cameras, and where the points show after it."""
    torch.manual_seed(0)
    points = torch.rand(4, count, 3) * torch.tensor([2.0, 1.5, 2.0]) + torch.tensor([-1.0, -0.75, 0.5])
    motion = torch.cat([rotation_from_vector(torch.randn(4, 3) * 0.05), torch.randn(4, 3, 1) * 0.05], dim=-1)
    moved = points @ motion[..., :3].transpose(1, 2) + motion[:, None, :, 3]
    return points, motion, moved[..., :2] / moved[..., 2:]


def codes(frames: int, seed: int = 0) -> Tensor:
    """Pose codes [2, frames, 9] of two walks."""
    generator = torch.Generator().manual_seed(seed)
    vectors, places = (torch.randn(2, frames, 3, generator=generator).cumsum(1) * 0.1 for _ in range(2))
    quaternion = matrix_to_quaternion(rotation_from_vector(vectors.flatten(0, 1))).unflatten(0, (2, frames))
    return torch.cat([places, quaternion, torch.ones(2, frames, 2)], dim=-1)


def steps_of(code: Tensor) -> Tensor:
    """The motions [B, S, 3, 4] since the frame before; the first frame's is none."""
    T = pose_to_matrix(code)
    before = torch.cat([T[:, :1], T[:, :-1]], dim=1)
    return (torch.linalg.inv(before) @ T)[..., :3, :]


def test_the_motion_is_found_that_points_and_their_places_say() -> None:
    points, motion, target = scene()
    found, support = solve_pnp(points, target, torch.ones(4, 200))
    torch.testing.assert_close(found, motion, atol=1e-4, rtol=0)
    assert (support > 0.99).all()


def test_places_that_are_wrong_hardly_move_it_and_lower_its_support() -> None:
    points, motion, target = scene()
    target[:, :50] += torch.randn(4, 50, 2) * 0.3
    found, support = solve_pnp(points, target, torch.ones(4, 200))
    torch.testing.assert_close(found, motion, atol=3e-3, rtol=0)
    assert (support < 0.9).all()
    assert (solve_pnp(points, torch.randn_like(target), torch.ones(4, 200))[1] < 0.4).all()


def test_wrong_depths_move_it_less_than_if_they_were_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    points, motion, target = scene()
    # Depths that err to one side alike make a shift look like a turn.
    points = points * (1 + 0.15 * points[..., :1].sign())
    off = []
    for sigma in (0.0, 0.2):
        monkeypatch.setattr(pnp, "DEPTH_SIGMA", sigma)
        found, _ = solve_pnp(points, target, torch.ones(4, 200))
        off.append((found - motion)[..., :3].norm(dim=(1, 2)))
    assert (off[1] < 0.7 * off[0]).all()


def test_points_that_count_for_nothing_give_rest_and_finite_gradients() -> None:
    points, _, target = scene()
    weight = torch.full((4, 200), 1e-8, requires_grad=True)
    behind = torch.tensor([1.0, 1.0, -1.0])
    found, _ = solve_pnp(points * behind, target, weight)
    torch.testing.assert_close(found[..., :3], torch.eye(3).expand(4, 3, 3))
    solve_pnp(points, target, weight)[0].sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()


def test_its_gradient_by_the_places_is_that_of_the_solution() -> None:
    points, _, target = (x.double() for x in scene(30))
    target = target + torch.randn_like(target) * 1e-4
    nudge = torch.randn_like(target)
    target.requires_grad_()
    weight = torch.ones(4, 30, dtype=torch.float64)
    solve_pnp(points, target, weight)[0].sum().backward()
    assert target.grad is not None
    with torch.no_grad():
        ahead, back = (solve_pnp(points, target + sign * 1e-6 * nudge, weight)[0].sum() for sign in (1, -1))
    assert float((target.grad * nudge).sum()) == pytest.approx(float(ahead - back) / 2e-6, rel=0.02)


def test_small_systems_are_solved_as_the_library_does() -> None:
    torch.manual_seed(1)
    A = torch.randn(5, 6, 9, dtype=torch.float64)
    A = A @ A.transpose(1, 2)
    x = torch.randn(5, 6, dtype=torch.float64)
    b = (A @ x[..., None])[..., 0]
    torch.testing.assert_close(solve_small(A, b), x)
    torch.testing.assert_close(eliminate(A, b), x)
    far_apart = (
        A * torch.logspace(-4, 4, 6, dtype=torch.float64)[:, None] * torch.logspace(-4, 4, 6, dtype=torch.float64)
    )
    scaled = torch.linalg.solve(far_apart, b)
    torch.testing.assert_close(eliminate(far_apart.float(), b.float()).double(), scaled, rtol=2e-2, atol=0)


def test_rotation_vectors_come_back() -> None:
    vector = torch.randn(50, 3) * torch.logspace(-4, 0, 50)[:, None]
    vector = vector * (3.0 / vector.norm(dim=1, keepdim=True)).clamp_max(1)
    torch.testing.assert_close(vector_from_rotation(rotation_from_vector(vector)), vector, atol=2e-5, rtol=1e-3)


def test_where_steps_and_head_say_the_same_so_do_the_poses() -> None:
    said = codes(6)
    followed = fuse_poses(said, steps_of(said), torch.ones(2, 6), torch.zeros(2, 6), None, None)
    torch.testing.assert_close(pose_to_matrix(followed), pose_to_matrix(said), atol=1e-5, rtol=0)


def test_steps_without_support_leave_the_heads_motion() -> None:
    said, other = codes(6), codes(6, seed=1)
    followed = fuse_poses(said, steps_of(other), torch.zeros(2, 6), torch.zeros(2, 6), None, None)
    torch.testing.assert_close(pose_to_matrix(followed), pose_to_matrix(said), atol=1e-5, rtol=0)


def test_a_heads_error_is_held_off_and_a_steps_forgotten() -> None:
    true = codes(60)
    noisy = true.clone()
    noisy[:, 30, :3] += 0.5
    support, units = torch.ones(2, 60), torch.zeros(2, 60)
    off = (fuse_poses(noisy, steps_of(true), support, units, None, None) - true)[..., :3].norm(dim=-1)
    assert float(off[:, 30].max()) < 0.1 * 0.87
    longer = codes(300)
    slipped = steps_of(longer)
    slipped[:, 10, :, 3] *= 3
    off = (fuse_poses(longer, slipped, torch.ones(2, 300), torch.zeros(2, 300), None, None) - longer)[..., :3].norm(
        dim=-1
    )
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
    off = fuse_poses(torch.stack(said, dim=1), motion, torch.ones(2, 8), unit, None, None) - true
    plain = fuse_poses(torch.stack(said, dim=1), motion, torch.ones(2, 8), torch.zeros(2, 8), None, None) - true
    assert float(off[..., :3].norm(dim=-1).max()) < 0.2 * float(plain[..., :3].norm(dim=-1).max())


def test_frames_together_are_frames_one_by_one() -> None:
    said, motion = codes(5), steps_of(codes(5, seed=2))
    support, units = torch.ones(2, 5), torch.linspace(-0.2, 0.1, 5).expand(2, -1)
    whole = fuse_poses(said, motion, support, units, None, None)
    last: tuple[Tensor | None, Tensor | None] = (None, None)
    for frame in range(5):
        part = slice(frame, frame + 1)
        followed = fuse_poses(said[:, part], motion[:, part], support[:, part], units[:, part], *last)
        torch.testing.assert_close(followed, whole[:, part])
        last = (followed[:, 0], said[:, frame])
