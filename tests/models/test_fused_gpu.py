"""Fused blocks against the plain ones."""

import pytest
import torch

from stream_recon.models.layers import Block, Rotate, attend_within
from stream_recon.models.rope import Rotation, frame_rotation, global_rotation, rotate_frame, rotate_global

pytestmark = pytest.mark.gpu

GRID, SPECIAL, DIM, HEADS = (5, 7), 6, 384, 6


def block(qk_norm: bool) -> Block:
    torch.manual_seed(0)
    made = Block(DIM, HEADS, 4.0, qk_norm=qk_norm, eps=1e-5, layer_scale=0.5).cuda().requires_grad_(False)
    for parameter in made.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.05)
    for module in made.modules():
        if isinstance(module, torch.nn.Linear):
            module.to(torch.bfloat16)
    return made


def rotations() -> list[tuple[Rotate | None, Rotation | None]]:
    cuda, head_dim = torch.device("cuda"), DIM // HEADS
    times = torch.tensor([3, 900], device=cuda)
    return [
        (None, None),
        (rotate_frame, frame_rotation(GRID, SPECIAL, head_dim, cuda)),
        (rotate_global, global_rotation(times, GRID, SPECIAL, head_dim, 20)),
    ]


@pytest.mark.parametrize("turn", [0, 1, 2])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_fused_block_does_what_a_plain_one_does(turn: int, qk_norm: bool) -> None:
    rotate, rotation = rotations()[turn]
    made = block(qk_norm)
    x = torch.randn(2, SPECIAL + GRID[0] * GRID[1], DIM, device="cuda")
    outputs = []
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for fused in (False, True):
            made.fused = fused
            outputs.append((*made.project(x, rotate, rotation), made(x, attend_within, rotate, rotation)))
    for plain, fast in zip(*outputs, strict=True):
        assert plain.shape == fast.shape and plain.dtype == fast.dtype
        assert float((plain - fast).float().norm() / plain.float().norm()) < 4e-3
