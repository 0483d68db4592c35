import pytest
import torch
from torch import nn

from stream_recon.models.encoder import unfolded_product


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("channels_last", [True, False])
def test_a_projection_of_patches_is_a_strided_convolution_and_so_are_its_gradients(
    device: str, channels_last: bool
) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(5, 6, 7, stride=7).double().to(device)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(3, 5, 14, 28, dtype=torch.float64, device=device).to(memory_format=layout).requires_grad_()
    weights = torch.randn(3, 8, 6, dtype=torch.float64, device=device)

    def outcome(y: torch.Tensor) -> list[torch.Tensor]:
        return [y, *torch.autograd.grad((y * weights).sum(), [x, *conv.parameters()])]

    expected = outcome(conv(x).flatten(2).transpose(1, 2))
    for got, wanted in zip(outcome(unfolded_product(x, conv)), expected, strict=True):
        torch.testing.assert_close(got, wanted)
