import pytest
import torch
from torch import nn

from stream_recon.models.dpt_head import project_channels


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
