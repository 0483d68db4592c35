import pytest
import torch
import torch.nn.functional as F

from stream_recon.models.dpt_head import resize_bilinear


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("size", [(14, 21), (5, 4)])
def test_values_and_gradients_are_those_of_interpolation(size: tuple[int, int], align_corners: bool) -> None:
    x = torch.randn(2, 3, 7, 9, dtype=torch.float64, requires_grad=True)
    ours, theirs = (
        resize_bilinear(x, size, align_corners=align_corners),
        F.interpolate(x, size=size, mode="bilinear", align_corners=align_corners),
    )
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(ours.shape, dtype=torch.float64)
    gradients = [torch.autograd.grad((y * weights).sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
