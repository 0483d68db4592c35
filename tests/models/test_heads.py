import pytest
import torch
import torch.nn.functional as F
from torch import nn

from stream_recon.models.heads import NEIGHBOURS, ConvexUpsampling, position_grid, project_channels, resize_bilinear


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("outputs", [2, 4])
def test_a_projection_of_channels_is_a_1x1_convolution_and_so_are_its_gradients(device: str, outputs: int) -> None:
    torch.manual_seed(outputs)
    conv = nn.Conv2d(32, outputs, 1).double().to(device)
    x = torch.randn(3, 32, 5, 7, dtype=torch.float64, device=device).to(memory_format=torch.channels_last)
    x.requires_grad_()
    weights = torch.randn(3, outputs, 5, 7, dtype=torch.float64, device=device)

    def outcome(y: torch.Tensor) -> list[torch.Tensor]:
        return [y, *torch.autograd.grad((y * weights).sum(), [x, *conv.parameters()])]

    for got, expected in zip(outcome(project_channels(x, conv)), outcome(conv(x)), strict=True):
        torch.testing.assert_close(got, expected)


def test_convex_upsampling_mixes_what_is_around_and_nothing_else() -> None:
    torch.manual_seed(0)
    upsample = ConvexUpsampling(8).requires_grad_(False)
    x, features = torch.randn(2, 3, 5, 7), torch.randn(2, 8, 5, 7) * 5
    y = upsample(x, features)
    assert y.shape == (2, 3, 10, 14)
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
    low, high = -F.max_pool2d(-padded, 3, 1), F.max_pool2d(padded, 3, 1)
    low, high = (F.interpolate(z, scale_factor=2, mode="nearest") for z in (low, high))
    assert ((y >= low - 1e-5) & (y <= high + 1e-5)).all()
    torch.testing.assert_close(upsample(torch.full_like(x, 2.5), features), torch.full_like(y, 2.5))


def test_where_one_neighbour_has_all_the_weight_it_is_copied() -> None:
    upsample = ConvexUpsampling(1).requires_grad_(False)
    upsample.mixture.weight.zero_()
    assert upsample.mixture.bias is not None
    upsample.mixture.bias.fill_(-50).view(4, NEIGHBOURS)[[0, 1, 2, 3], [4, 5, 7, 8]] = 50
    x = torch.arange(12.0).view(1, 1, 3, 4)
    y = upsample(x, torch.zeros(1, 1, 3, 4))
    own, right, below, beyond = (y[0, 0, i::2, j::2] for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)))
    torch.testing.assert_close(own, x[0, 0])
    torch.testing.assert_close(right[:, :-1], x[0, 0, :, 1:])
    torch.testing.assert_close(below[:-1], x[0, 0, 1:])
    torch.testing.assert_close(beyond[:-1, :-1], x[0, 0, 1:, 1:])


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("size", [(14, 21), (5, 4)])
def test_resizing_has_the_values_and_gradients_of_interpolation(size: tuple[int, int], align_corners: bool) -> None:
    x = torch.randn(2, 3, 7, 9, dtype=torch.float64, requires_grad=True)
    ours, theirs = (
        resize_bilinear(x, size, align_corners=align_corners),
        F.interpolate(x, size=size, mode="bilinear", align_corners=align_corners),
    )
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(ours.shape, dtype=torch.float64)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)


def test_rows_are_coded_as_the_columns_of_the_turned_image() -> None:
    where = 8, torch.device("cpu"), torch.float32, False
    code, turned = (position_grid(size, where[0], size[1] / size[0], *where[1:])[0] for size in ((3, 5), (5, 3)))
    torch.testing.assert_close(code, turned.mT.roll(4, 0), rtol=0, atol=1e-6)
