"""Losses, densification, free space and corrections."""

import numpy as np
import pytest
import torch

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.splat.config import DEFAULT_SPLATS
from stream_recon.app.splat.corrections import Corrections, neighbours, small_motion
from stream_recon.app.splat.densification import Densification, divided
from stream_recon.app.splat.film import splat_painter
from stream_recon.app.splat.free_space import in_free_space
from stream_recon.app.splat.losses import depth_loss, image_loss, normal_loss, ssim
from stream_recon.app.splat.model import SplatModel
from tests.app.splat.blobs import blob_splats, tensors
from tests.app.splat.plain import draw_plainly

LOSSES = DEFAULT_SPLATS.losses
CPU = torch.device("cpu")


def model_of(opacity: float = 0.9, count: int = 20) -> SplatModel:
    values = {name: value.detach().clone() for name, value in tensors(blob_splats(count)).items()}
    values["opacities"] = torch.full((count,), float(np.log(opacity / (1 - opacity))))
    return SplatModel(values, CPU, DEFAULT_SPLATS.model)


def test_a_rasterizer_gets_a_camera_in_single_precision() -> None:
    given = []

    def draw(gaussians, T_camera_world, K, size, sh_degree):  # type: ignore[no-untyped-def]
        given.append((T_camera_world.dtype, K.dtype))
        return draw_plainly(gaussians, T_camera_world, K, size, sh_degree)

    paint = splat_painter(blob_splats(5), CPU, draw)
    image = paint(np.eye(4), Intrinsics(*np.array([20.0, 20.0, 8.0, 6.0])), (16, 12))
    assert image.shape == (12, 16, 3)
    assert given == [(torch.float32, torch.float32)]


def densification(most: int) -> Densification:
    return Densification(most, torch.Generator().manual_seed(1), DEFAULT_SPLATS.densification)


def test_similarity_of_images() -> None:
    image = torch.rand(24, 32, 3)
    assert ssim(image, image).item() == pytest.approx(1)
    noise = 0.2 * torch.randn(24, 32, 3)
    assert ssim(image, image + noise).item() > ssim(image, image + 3 * noise).item()


def test_masked_pixels_do_not_change_the_difference_of_images() -> None:
    one, other = torch.rand(24, 32, 3), torch.rand(24, 32, 3)
    kept = torch.ones(24, 32, dtype=torch.bool)
    kept[:, 16:] = False
    spoiled = one.clone()
    spoiled[:, 16:] = 7
    assert image_loss(one, other, kept, LOSSES.ssim_share).item() == pytest.approx(
        image_loss(spoiled, other, kept, LOSSES.ssim_share).item()
    )
    assert image_loss(one, one, kept, LOSSES.ssim_share).item() == pytest.approx(0, abs=1e-6)


def test_depth_counts_by_its_certainty() -> None:
    depth, certainty = torch.full((4, 6), 2.0), torch.full((4, 6), 3)
    assert depth_loss(depth, depth, certainty, LOSSES).item() == 0
    certainty[:, 3:] = 0
    wrong_there = depth.clone()
    wrong_there[:, 3:] = 5
    assert depth_loss(wrong_there, depth, certainty, LOSSES).item() == 0
    certainty[:, 3:] = 1
    unsure = depth_loss(wrong_there, depth, certainty, LOSSES).item()
    certainty[:, 3:] = 3
    assert 0 < unsure < depth_loss(wrong_there, depth, certainty, LOSSES).item()
    assert depth_loss(torch.zeros(4, 6), depth, torch.zeros(4, 6), LOSSES).item() == 0


def test_surfaces_are_compared_by_their_normals_where_confirmed() -> None:
    focal, centre = torch.tensor([20.0, 20.0]), torch.tensor([8.0, 6.0])
    flat = torch.full((12, 16), 2.0)
    x = (torch.arange(16) + 0.5 - 8) / 20
    leaning = (2 / (1 - 0.5 * x)).expand(12, 16)
    sure = torch.full((12, 16), 3)
    assert normal_loss(flat, 2 * flat, sure, focal, centre, LOSSES).item() == pytest.approx(0, abs=1e-6)
    expected = 1 - 1 / np.sqrt(1 + 0.25)  # planes z = 2 and z = 2 + x / 2
    assert normal_loss(leaning, flat, sure, focal, centre, LOSSES).item() == pytest.approx(expected, abs=1e-3)
    assert normal_loss(leaning, flat, sure - 1, focal, centre, LOSSES).item() == 0


def test_parts_of_a_gaussian_cover_what_the_whole_did() -> None:
    opacity, parts = torch.tensor([0.9, 0.5, 0.99]), torch.tensor([2, 3, 51])
    part, factor = divided(opacity, parts, 51)
    assert torch.allclose(1 - (1 - part) ** parts, opacity, atol=1e-5)
    assert ((factor > 0) & (factor <= 1)).all()
    # Opacity along a line through the centre, of one and of two of the new size.
    t = torch.linspace(-6, 6, 4001)
    one = 0.9 * torch.exp(-(t**2) / 2)
    two = 1 - (1 - part[0] * torch.exp(-((t / factor[0]) ** 2) / 2)) ** 2
    assert two.sum().item() == pytest.approx(one.sum().item(), rel=1e-3)


def test_what_shows_nothing_moves_to_what_does() -> None:
    model = model_of()
    with torch.no_grad():
        model.gaussians["opacities"][:5] = -12
    before = model.gaussians["means"].detach().clone()
    densification(20).act(model)
    assert len(model) == 20
    assert (torch.sigmoid(model.gaussians["opacities"]) > DEFAULT_SPLATS.densification.dead).all()
    moved = model.gaussians["means"][:5]
    away = torch.cdist(moved, before[5:]).amin(1)
    assert (away < 1e-6).all()


def test_numbers_that_are_none_are_replaced() -> None:
    model = model_of()
    with torch.no_grad():
        model.gaussians["means"][3] = float("nan")
    densification(20).act(model)
    assert all(torch.isfinite(value).all() for value in model.gaussians.values())


def test_growth_ends_at_the_bound_and_keeps_moments_in_step() -> None:
    model = model_of()
    for value in model.gaussians.values():
        value.grad = torch.ones_like(value)
    model.step(1.0)
    for _ in range(40):
        densification(31).act(model)
    assert len(model) == 31
    for name, optimizer in model.optimizers.items():
        (parameter,) = optimizer.param_groups[0]["params"]
        assert parameter is model.gaussians[name]
        assert optimizer.state[parameter]["exp_avg"].shape == parameter.shape


def test_noise_moves_what_is_transparent_most() -> None:
    faint, opaque = model_of(0.006), model_of(0.9)
    moved = []
    for model in (faint, opaque):
        before = model.gaussians["means"].detach().clone()
        densification(20).add_noise(model, 1.0)
        moved.append((model.gaussians["means"] - before).norm(dim=1).mean().item())
    assert moved[0] > 100 * moved[1]


def test_a_place_that_two_cameras_see_through_is_free() -> None:
    K = torch.tensor([[20.0, 0, 8], [0, 20, 6], [0, 0, 1]])
    cameras = torch.eye(4).repeat(3, 1, 1)
    cameras[:, 0, 3] = torch.tensor([-0.1, 0.0, 0.1])
    depth, sure = torch.full((12, 16), 4.0), torch.full((12, 16), 3)
    means = torch.tensor([[0.0, 0, 2], [0, 0, 4], [0, 0, 6], [50, 0, 2], [0, 0, -2]])

    def free(maps: list[tuple[int, torch.Tensor, torch.Tensor]], sizes: torch.Tensor) -> list[bool]:
        return in_free_space(means, sizes, cameras, K, maps, DEFAULT_SPLATS.floaters).tolist()

    small = torch.zeros(5)
    assert free([(n, depth, sure) for n in range(3)], small) == [True, False, False, False, False]
    assert not any(free([(0, depth, sure)], small)), "one map is not enough"
    assert not any(free([(n, depth, sure - 2) for n in range(3)], small)), "unsure depth says nothing"
    nearby = (2, torch.full((12, 16), 2.0), sure)
    assert not any(free([(0, depth, sure), (1, depth, sure), nearby], small)), "one sees a surface there"
    assert not any(free([(n, depth, sure) for n in range(3)], small + 1)), "it reaches the surface"


def test_an_image_that_is_held_out_gets_the_corrections_between_its_neighbours() -> None:
    trained = np.array([False, True, True, True, False, True, True, False])
    before, after, share = neighbours(trained)
    assert before.tolist() == [1, 1, 2, 3, 3, 5, 6, 6] and after.tolist() == [1, 1, 2, 3, 5, 5, 6, 6]
    assert share[4] == 0.5 and share[0] == share[3] == 0
    corrections = Corrections(8, trained, CPU, DEFAULT_SPLATS.corrections)
    with torch.no_grad():
        corrections.exposure[3, 0], corrections.exposure[5, 0] = 0.2, 0.4
    bright = corrections.expose(4, torch.ones(2, 2, 3))
    assert bright[0, 0].tolist() == pytest.approx([float(np.exp(0.3)), 1, 1])


def test_a_small_motion_is_rigid_and_has_a_gradient_at_rest() -> None:
    twist = torch.zeros(6, requires_grad=True)
    (small_motion(twist)[:3] * torch.arange(12).reshape(3, 4)).sum().backward()  # type: ignore[no-untyped-call]
    assert twist.grad is not None and (twist.grad != 0).all()
    T = small_motion(torch.tensor([0.3, -0.2, 0.5, 1.0, 2.0, 3.0]))
    assert torch.allclose(T[:3, :3] @ T[:3, :3].T, torch.eye(3), atol=1e-6)


def test_focal_length_acts_like_that_of_the_camera() -> None:
    from tests.app.splat.plain import draw_plainly

    corrections = Corrections(1, np.array([True]), CPU, DEFAULT_SPLATS.corrections)
    with torch.no_grad():
        corrections.log_focal.fill_(float(np.log(1.2)))
    gaussians = tensors(blob_splats())
    K = torch.tensor([[28.0, 0, 16], [0, 28, 12], [0, 0, 1]])
    longer = K * torch.tensor([[1.2, 1, 1], [1, 1.2, 1], [1, 1, 1]])
    ours = draw_plainly(gaussians, corrections.pose(0, torch.eye(4)), K, (32, 24), 0)
    right = draw_plainly(gaussians, torch.eye(4), longer, (32, 24), 0)
    assert torch.allclose(ours.rgb, right.rgb, atol=1e-5) and torch.allclose(ours.depth, right.depth, atol=1e-4)
