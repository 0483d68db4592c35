import math

import pytest
import torch
from torch import Tensor

from stream_recon.models.odometry.depth_filter import DepthState, disparity_evidence
from stream_recon.models.odometry.depth_filter import propagate_depth as propagate
from stream_recon.models.odometry.pnp import RelativeMotion

HEIGHT, WIDTH, FOCAL = 48, 64, 60.0
CELL = 8
GRID = (HEIGHT // CELL, WIDTH // CELL)


def propagate_depth(
    maps: Tensor,
    motion: Tensor,
    support: Tensor,
    evidence: Tensor,
    focal: tuple[Tensor, Tensor],
    last: DepthState | None,
) -> tuple[Tensor, Tensor, DepthState]:
    """`propagate` by motions that no flow is known of."""
    return propagate(maps, RelativeMotion(torch.empty(0), motion, support, evidence, torch.stack(focal, dim=-1)), last)


def surface(shift: float) -> Tensor:
    """Log depth [H, W] of a slanted wall, seen from a camera that has gone ``shift`` to the right."""
    u = torch.arange(WIDTH) + 0.5 - WIDTH / 2
    depth = (3 + 0.5 * shift) / (1 - 0.5 * u / FOCAL)
    return depth.log().expand(HEIGHT, WIDTH)


def walk(frames: int, step: float) -> tuple[Tensor, Tensor, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Maps, motions, supports, no evidence of parallax, and focal lengths of one stream that goes along the wall."""
    log_depth = torch.stack([surface(step * frame) for frame in range(frames)])
    maps = torch.stack([log_depth, torch.ones_like(log_depth)], dim=1)[None]
    motion = torch.cat([torch.eye(3), torch.tensor([[step], [0.0], [0.0]])], dim=1).expand(1, frames, 3, 4)
    focal = torch.full((1, frames), FOCAL)
    return maps, motion.clone(), torch.ones(1, frames), torch.zeros(1, frames, 2, *GRID), (focal, focal)


def test_depths_that_agree_stay_as_they_are() -> None:
    maps, *rest = walk(5, 0.1)
    log_depth, units, _ = propagate_depth(maps, *rest, None)
    torch.testing.assert_close(log_depth, maps[:, :, 0], atol=0.02, rtol=0)
    assert float(units.abs().max()) < 0.01


@pytest.mark.parametrize("jump", [0.4, -0.3])
def test_a_jump_of_the_unit_is_undone(jump: float) -> None:
    """Depth and motion of later frames are in another unit; what comes out is in the first one's."""
    maps, motion, support, none, focal = walk(4, 0.1)
    off = maps.clone()
    off[:, 2:, 0] += jump
    motion[:, 2:, :, 3] *= math.exp(jump)
    log_depth, units, _ = propagate_depth(off, motion, support, none, focal, None)
    assert float(units[0, 2]) == pytest.approx(-jump, abs=0.03)
    assert float((log_depth - maps[:, :, 0])[:, 2].abs().mean()) < 0.03
    left, before = (log_depth - maps[:, :, 0])[:, 3].abs().mean(), abs(jump)
    assert float(left) < 0.15 * before


def test_errors_that_change_from_frame_to_frame_are_halved() -> None:
    maps, *rest = walk(12, 0.02)
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(12, 1, 6, 8, generator=generator) * 0.1
    noise = torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear")[None, :, 0]
    noise = noise - noise.mean((-2, -1), keepdim=True)
    noisy = maps.clone()
    noisy[:, :, 0] += noise
    log_depth, _, _ = propagate_depth(noisy, *rest, None)
    off = log_depth - maps[:, :, 0]
    off = off - off.mean((-2, -1), keepdim=True)
    assert float(off[:, 6:].square().mean()) < 0.5 * float(noise[:, 6:].square().mean())


def test_a_surface_that_comes_into_view_is_not_mixed_with_the_one_behind() -> None:
    """Something stands in front that the frame before did not see: its depth is as said."""
    maps, *rest = walk(2, 0.1)
    maps[:, 1, 0, 10:30, 20:40] -= 1.5
    log_depth, _, _ = propagate_depth(maps, *rest, None)
    torch.testing.assert_close(log_depth[:, 1, 12:28, 22:38], maps[:, 1, 0, 12:28, 22:38], atol=0.02, rtol=0)


def test_without_support_or_view_a_frame_is_as_said() -> None:
    maps, motion, support, none, focal = walk(3, 0.1)
    maps[:, 1:, 0] += 0.2
    lost = propagate_depth(maps, motion, torch.zeros_like(support), torch.ones_like(none), focal, None)
    torch.testing.assert_close(lost[0], maps[:, :, 0])
    away = motion.clone()
    away[:, 1:, :, 3] = torch.tensor([100.0, 0, 0])
    elsewhere = propagate_depth(maps, away, support, none, focal, None)
    torch.testing.assert_close(elsewhere[0], maps[:, :, 0])


def misjudged(frames: int, step: float) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """True log depth [1, S, H, W] of a walk; maps that are wrong by a bump; and the other inputs of `propagate_depth`,
    with the evidence of exact matches."""
    maps, motion, support, _, focal = walk(frames, step)
    truth = maps[:, :, 0].clone()
    bumps = 0.1 * torch.sin(torch.arange(WIDTH) * (2 * math.pi / WIDTH))
    maps[:, :, 0] += bumps
    middles = maps[0, :, 0, CELL // 2 :: CELL, CELL // 2 :: CELL]
    true_middles = truth[0, :, CELL // 2 :: CELL, CELL // 2 :: CELL]
    v, u = torch.meshgrid(torch.arange(GRID[0]), torch.arange(GRID[1]), indexing="ij")
    at = ((u + 0.5) * CELL + 0.5 - WIDTH / 2) / FOCAL, ((v + 0.5) * CELL + 0.5 - HEIGHT / 2) / FOCAL
    rays = torch.stack([*at, torch.ones(GRID)], dim=-1)
    target = rays * true_middles.exp()[..., None] + motion[0, :, None, None, :, 3]
    points, target = rays * middles.exp()[..., None], target[..., :2] / target[..., 2:]
    evidence = disparity_evidence(points, target, torch.ones(frames, *GRID), motion[0])[None]
    return truth, maps, (motion, support, evidence, focal)


def off(log_depth: Tensor, truth: Tensor) -> Tensor:
    """Mean error [S] of the shape, away from the borders."""
    apart = (log_depth - truth)[..., CELL:-CELL, CELL:-CELL]
    return (apart - apart.mean((-2, -1), keepdim=True)).abs().mean((0, 2, 3))


def test_parallax_mends_depth_and_is_remembered() -> None:
    truth, maps, rest = misjudged(8, 0.15)
    log_depth, units, _ = propagate_depth(maps, *rest, None)
    before, after = off(maps[:, :, 0], truth), off(log_depth, truth)
    assert float(after[0]) == pytest.approx(float(before[0]))  # nothing lies before the first frame
    assert float(after[4:].mean()) < 0.6 * float(before.mean())
    assert float(units.abs().max()) < 0.02
    motion, support, evidence, focal = rest
    evidence[:, 5:] = 0
    log_depth, _, _ = propagate_depth(maps, motion, support, evidence, focal, None)
    assert float(off(log_depth, truth)[5]) < 0.75 * float(before[5])


def test_without_parallax_nothing_is_known() -> None:
    """A camera that only turns sees all points move alike, whatever their depth."""
    points = torch.randn(1, 5, 6, 3).abs() + 1
    motion = torch.eye(3, 4)[None]
    evidence = disparity_evidence(points, points[..., :2] / points[..., 2:] + 0.01, torch.ones(1, 5, 6), motion)
    torch.testing.assert_close(evidence, torch.zeros(1, 2, 5, 6), atol=1e-3, rtol=0)


def test_frames_together_are_frames_one_by_one_and_leave_what_was_kept() -> None:
    _, maps, (motion, support, evidence, focal) = misjudged(6, 0.1)
    maps[:, 3:, 0] += 0.3
    whole, units, end = propagate_depth(maps, motion, support, evidence, focal, None)
    kept: DepthState | None = None
    for frame in range(6):
        part = slice(frame, frame + 1)
        before = None if kept is None else [x.clone() for x in (kept.maps, kept.log_scale, kept.correction)]
        given = (x[:, part] for x in (maps, motion, support, evidence))
        log_depth, unit, following = propagate_depth(*given, (focal[0][:, part], focal[1][:, part]), kept)
        torch.testing.assert_close(log_depth, whole[:, part])
        torch.testing.assert_close(unit, units[:, part])
        if kept is not None and before is not None:
            after = (kept.maps, kept.log_scale, kept.correction)
            assert all(torch.equal(x, y) for x, y in zip(after, before, strict=True))
        kept = following
    assert kept is not None
    torch.testing.assert_close(kept.maps, end.maps)
    torch.testing.assert_close(kept.correction, end.correction)
