import pytest
import torch
from torch import Tensor

from stream_recon.models.odometry.pnp import eliminate, solve_pnp, solve_small
from stream_recon.models.pose import so3_exp


def scene(count: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Points, a motion for each of four cameras, and where the points show after it."""
    torch.manual_seed(0)
    points = torch.rand(4, count, 3) * torch.tensor([2.0, 1.5, 2.0]) + torch.tensor([-1.0, -0.75, 0.5])
    motion = torch.cat([so3_exp(torch.randn(4, 3) * 0.05), torch.randn(4, 3, 1) * 0.05], dim=-1)
    moved = points @ motion[..., :3].transpose(1, 2) + motion[:, None, :, 3]
    return points, motion, moved[..., :2] / moved[..., 2:]


def test_the_motion_is_found_that_points_and_their_places_say() -> None:
    points, motion, target = scene()
    solved, support = solve_pnp(points, target, torch.ones(4, 200))
    torch.testing.assert_close(solved, motion, atol=1e-4, rtol=0)
    assert (support > 0.99).all()


def test_wrong_matches_hardly_move_it_and_lower_its_support() -> None:
    points, motion, target = scene()
    target[:, :50] += torch.randn(4, 50, 2) * 0.3
    solved, support = solve_pnp(points, target, torch.ones(4, 200))
    torch.testing.assert_close(solved, motion, atol=3e-3, rtol=0)
    assert (support < 0.9).all()
    assert (solve_pnp(points, torch.randn_like(target), torch.ones(4, 200))[1] < 0.4).all()


def test_wrong_depths_move_it_less_than_if_they_were_believed() -> None:
    points, motion, target = scene()
    # Depths that err to one side alike make a shift look like a turn.
    points = points * (1 + 0.15 * points[..., :1].sign())
    off = []
    for sigma in (0.0, 0.2):
        solved, _ = solve_pnp(points, target, torch.ones(4, 200), sigma)
        off.append((solved - motion)[..., :3].norm(dim=(1, 2)))
    assert (off[1] < 0.7 * off[0]).all()


def test_points_that_count_for_nothing_give_rest_and_finite_gradients() -> None:
    points, _, target = scene()
    weight = torch.full((4, 200), 1e-8, requires_grad=True)
    behind = torch.tensor([1.0, 1.0, -1.0])
    solved, _ = solve_pnp(points * behind, target, weight)
    torch.testing.assert_close(solved[..., :3], torch.eye(3).expand(4, 3, 3))
    solve_pnp(points, target, weight)[0].sum().backward()
    assert weight.grad is not None and weight.grad.isfinite().all()


def test_its_gradient_by_the_matches_is_that_of_the_solution() -> None:
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
