"""Whole clips at once under the visibility that a stream gives frame by frame: the memory of training.

Frame t attends to the patch tokens of the scale frames, of the ``window`` frames before it and of itself, and to
the special tokens of all frames up to it. Scale frames attend to one another in both directions.

Block-sparse attention of whole clips, with keys laid out so that the blocks are few and mostly seen whole.

Special tokens are visible for ever. Where they lie between the patches of their frames, each drags the whole block
around it into the sum: at 64 frames, twice the pairs that are visible. So keys are sorted: the patches of all frames,
frame after frame, then the special tokens of all frames. Queries need no order, since both kinds see the same.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

BLOCK = 128
"""Queries and keys of a block of the mask. The tiles of the kernels have to divide it, and those that torch takes for
the backward pass on Hopper are of 128 (torch 2.13 refuses other blocks before it reads the options)."""
KERNEL_OPTIONS: dict[str, Any] = {
    "fwd_BLOCK_M": 64,
    "fwd_BLOCK_N": 64,
    "fwd_num_warps": 4,
    "fwd_num_stages": 3,
    "bwd_BLOCK_M1": 32,
    "bwd_BLOCK_N1": 64,
    "bwd_BLOCK_M2": 64,
    "bwd_BLOCK_N2": 32,
    "bwd_num_warps": 4,
    "bwd_num_stages": 3,
}
"""The fastest tiles of nine on an H200 at 24 clips of 16 frames: 0.87 ms forward and 2.17 ms backward a layer, where
torch's own take 1.00 and 2.63."""


@lru_cache(maxsize=256)
def clip_block_mask(
    frames: int, tokens: int, special: int, scale_frames: int, window: int, device: torch.device
) -> BlockMask:
    """Which keys, sorted, each query sees; both filled up to whole blocks."""
    # Tensors, so that other numbers do not compile another kernel; arithmetic, not a table: a gathered table
    # would be staged through shared memory for every pair of tokens.
    scale, reach = torch.tensor(scale_frames, device=device), torch.tensor(window, device=device)
    patches = tokens - special
    first_special = frames * patches

    def visible(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_special = key >= first_special
        # Keys that fill up belong to frames after the last, which no frame sees.
        t, s = query // tokens, torch.where(is_special, (key - first_special) // special, key // patches)
        past = s <= t
        full = ((t < scale) & (s < scale)) | (past & ((s < scale) | (s >= t - reach)))
        return full | (past & is_special)

    length = _filled(frames * tokens)
    return create_block_mask(visible, None, None, length, length, device=str(device), BLOCK_SIZE=BLOCK)


def _filled(length: int) -> int:
    return length + -length % BLOCK


def attend_in_blocks(
    q: Tensor, k: Tensor, v: Tensor, frames: int, special: int, block_mask: BlockMask, options: dict[str, Any] | None
) -> Tensor:
    """q, k, v [B, S*P, H, D], special tokens first in a frame, under a mask of `clip_block_mask` -> the same shape.

    All are filled up to whole blocks: without that, the forward kernel checks every pair against the ends.
    """
    length = q.shape[1]
    filling = (0, 0, 0, 0, 0, _filled(length) - length)
    k, v = (F.pad(_patches_first(x, frames, special), filling) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (F.pad(q, filling), k, v))
    y = flex_attention(q, k, v, block_mask=block_mask, kernel_options=options)  # type: ignore[arg-type]
    return y.transpose(1, 2)[:, :length].contiguous()  # type: ignore[union-attr]


def _patches_first(x: Tensor, frames: int, special: int) -> Tensor:
    by_frame = x.unflatten(1, (frames, -1))
    special_tokens, patches = by_frame.split([special, by_frame.shape[2] - special], dim=2)
    return torch.cat([patches.flatten(1, 2), special_tokens.flatten(1, 2)], dim=1)


@lru_cache(maxsize=1)
def compiled_attention() -> Callable[..., Tensor]:
    """`attend_in_blocks`, compiled: sorting, filling up and their gradients then cost one pass over each tensor."""
    return torch.compile(attend_in_blocks, dynamic=False)


HIDDEN, SPECIAL_ONLY, FULL = 0, 1, 2


def frame_visibility(frames: int, scale_frames: int, window: int, device: torch.device) -> Tensor:
    """int32 [S, S]: what row t sees of column s: nothing, its special tokens, or all its tokens."""
    t = torch.arange(frames, device=device)[:, None]
    s = torch.arange(frames, device=device)[None]
    past = s <= t
    among_scale = (t < scale_frames) & (s < scale_frames)
    full = among_scale | (past & ((s < scale_frames) | (s >= t - window)))
    seen = torch.where(past, SPECIAL_ONLY, HIDDEN)
    return torch.where(full, FULL, seen).int()


@lru_cache(maxsize=64)
def _dense_mask(frames: int, tokens: int, special: int, scale_frames: int, window: int, device: torch.device) -> Tensor:
    """bool [S*P, S*P]"""
    seen = frame_visibility(frames, scale_frames, window, device)
    seen = seen.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
    is_special = torch.arange(frames * tokens, device=device) % tokens < special
    return (seen == FULL) | ((seen == SPECIAL_ONLY) & is_special)


class ClipVisibility:
    """A `Memory` over B whole clips of S frames; nothing is kept.

    Args:
        frames: S.
        tokens: tokens of a frame, special ones included.
        special: special tokens of a frame.
        times: int64 [B, S] or [1, S], the frames' time coordinates; None: 0 .. S-1.
        flex: use compiled block-sparse attention (CUDA) instead of a dense mask.
    """

    def __init__(
        self,
        *,
        frames: int,
        tokens: int,
        special: int,
        scale_frames: int,
        window: int,
        camera_window: int,
        device: torch.device,
        times: Tensor | None = None,
        flex: bool = False,
    ) -> None:
        scale_frames = min(scale_frames, frames)
        self._flex = flex
        self._key = (frames, tokens, special, scale_frames, window, device)
        self._camera_mask = frame_visibility(frames, scale_frames, camera_window, device) == FULL
        index = torch.arange(frames, device=device)
        self.times = index[None] if times is None else times
        self.is_later_frame = (index > 0).long()
        self.is_streamed_frame = (index >= scale_frames).long()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._flex:
            frames, _, special, *_ = self._key
            return compiled_attention()(q, k, v, frames, special, clip_block_mask(*self._key), KERNEL_OPTIONS)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=_dense_mask(*self._key)).transpose(1, 2)

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self._camera_mask).transpose(1, 2)
