import pytest
import torch

from training.mask import (
    FULL,
    HIDDEN,
    SPECIAL_ONLY,
    ClipLayout,
    TrainingMask,
    attend_in_blocks,
    clip_block_mask,
    dense_mask,
    frame_visibility,
)

CPU = torch.device("cpu")
SPECIAL = 6


def test_a_frame_sees_scale_frames_window_itself_and_all_past_special_tokens() -> None:
    seen = frame_visibility(8, 2, 3, CPU)
    assert seen[0].tolist() == [FULL, FULL] + [HIDDEN] * 6
    assert seen[7].tolist() == [FULL, FULL, SPECIAL_ONLY, SPECIAL_ONLY, FULL, FULL, FULL, FULL]
    assert (seen.triu(1)[2:] == HIDDEN).all()


def clip(frames: int, patches: int, *, heads: int, channels: int, seed: int) -> list[torch.Tensor]:
    """q, k, v and weights for a sum over the output."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, frames * (patches + SPECIAL), heads, channels)
    return [torch.randn(shape, generator=generator) for _ in range(4)]


def layout(frames: int, patches: int, scale_frames: int, window: int) -> ClipLayout:
    return ClipLayout(frames, patches + SPECIAL, SPECIAL, scale_frames, window)


CLIPS = [(6, 12, 1, 1), (6, 12, 2, 3), (4, 64, 3, 1), (5, 30, 4, 2), (2, 45, 2, 8), (1, 9, 1, 4)]


@pytest.mark.parametrize(("frames", "patches", "scale_frames", "window"), CLIPS)
def test_attention_in_blocks_is_dense_attention(frames: int, patches: int, scale_frames: int, window: int) -> None:
    q, k, v, _ = (x.double() for x in clip(frames, patches, heads=2, channels=8, seed=frames))
    sizes = layout(frames, patches, scale_frames, window)
    got = attend_in_blocks(q, k, v, frames, SPECIAL, clip_block_mask(sizes, CPU))
    expected = TrainingMask(sizes, 4, CPU).attend(0, q, k, v)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize(("frames", "patches", "scale_frames", "window"), [*CLIPS, (16, 192, 4, 8), (8, 180, 2, 4)])
def test_compiled_attention_and_its_gradient_are_those_of_dense_attention(
    frames: int, patches: int, scale_frames: int, window: int
) -> None:
    *inputs, weights = (x.cuda() for x in clip(frames, patches, heads=6, channels=64, seed=frames))

    def outcome(dtype: torch.dtype, flex: bool) -> list[torch.Tensor]:
        own = [x.bfloat16().to(dtype).requires_grad_() for x in inputs]
        sizes, device = layout(frames, patches, scale_frames, window), torch.device("cuda:0")
        y = TrainingMask(sizes, 4, device, flex=flex).attend(0, *own)
        return [x.float() for x in (y, *torch.autograd.grad((y * weights.to(dtype)).sum(), own))]

    for got, expected in zip(outcome(torch.bfloat16, True), outcome(torch.float32, False), strict=True):
        assert (got - expected).norm() / expected.norm() < 1e-2


def test_most_pairs_of_a_long_clip_lie_in_blocks_that_need_no_mask() -> None:
    sizes = layout(32, 192, 4, 8)
    mask = clip_block_mask(sizes, CPU)
    visible = int(dense_mask(sizes, CPU).sum())
    assert mask.full_kv_num_blocks is not None
    full, partial = (int(n.sum()) * 128 * 128 for n in (mask.full_kv_num_blocks, mask.kv_num_blocks))
    assert full > 0.8 * visible and full + partial < 1.2 * visible
