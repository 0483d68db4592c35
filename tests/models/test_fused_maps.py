"""The depth head's Triton kernels, under Triton's interpreter, against torch."""

from pathlib import Path

import pytest
import torch

from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.weights import load_network
from tests.interpreted import check_interpreted

_COMPARE = Path(__file__).with_name("compare_maps.py")


@pytest.mark.slow
def test_the_depth_head_by_kernels_says_what_torch_says() -> None:
    check_interpreted(_COMPARE)


@pytest.mark.gpu
def test_on_a_gpu_they_agree_to_the_noise_of_bf16() -> None:
    preset = load_preset(EMBEDDED_PRESET)
    network = load_network(EMBEDDED_WEIGHTS, preset.network).eval().cuda()
    torch.manual_seed(0)
    rows, columns, side = 12, 16, preset.network.patch_size // 2
    taps = [torch.randn(2, rows * columns, 2 * preset.network.dim, device="cuda") for _ in range(4)]
    detail = torch.randn(2, STEM_CHANNELS, side * rows, side * columns, device="cuda", dtype=torch.bfloat16)
    detail = detail.contiguous(memory_format=torch.channels_last)
    head, maps = network.depth_head, []
    with torch.no_grad():
        with torch.backends.cudnn.flags(allow_tf32=False):
            exact = head(taps, (rows, columns), detail.float())
        network.store_matrices_in_half()
        for fused in (False, True):
            head.fused = fused
            with torch.autocast("cuda", torch.bfloat16):
                maps.append(head(taps, (rows, columns), detail).float())
    plain, kernels = (float((x - exact).norm() / exact.norm()) for x in maps)
    assert kernels < 1.2 * plain + 1e-3
