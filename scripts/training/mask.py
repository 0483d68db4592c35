"""Attention of training: full clips at once, under the visibility that a stream gives frame by frame.

Frame t attends to the patch tokens of the scale frames, of the ``window`` frames before it and of itself, and to
the special tokens of all frames up to it. Scale frames attend to one another in both directions.

On a GPU attention is block-sparse, with keys sorted so that few blocks are partly visible. Special tokens stay visible
for ever: between the patches of their frames, each would make a full block visible, at 64 frames twice the visible
pairs. So keys are the patches of all frames, then the special tokens of all frames. Queries keep their order, as both
kinds see the same keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

BLOCK = 128
"""Queries and keys of a block of the mask. The kernels' tiles have to divide it, and torch's backward tiles on Hopper
are of 128 (torch 2.13 refuses other blocks before it reads the options)."""
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
"""Fastest of nine tilings on an H200 at 24 clips of 16 frames: 0.87 ms forward and 2.17 ms backward per layer; torch's
defaults take 1.00 and 2.63."""
HIDDEN, SPECIAL_ONLY, FULL = 0, 1, 2
"""How much of one frame another one sees: nothing, its special tokens, all its tokens."""


@dataclass(frozen=True)
class ClipLayout:
    """Sizes of a clip and its visibility."""

    frames: int
    """S."""
    tokens: int
    """Tokens per frame (P), special ones included."""
    special: int
    """Special tokens per frame."""
    scale_frames: int
    window: int


@lru_cache(maxsize=256)
def clip_block_mask(clip: ClipLayout, device: torch.device) -> BlockMask:
    """Which sorted keys each query sees, both padded to full blocks."""
    # Tensors, so that other numbers do not compile another kernel. Arithmetic rather than a table: a gathered table
    # would be staged through shared memory for every pair of tokens.
    scale, reach = torch.tensor(clip.scale_frames, device=device), torch.tensor(clip.window, device=device)
    tokens, special = clip.tokens, clip.special
    patches = tokens - special
    first_special = clip.frames * patches

    def visible(_b: Tensor, _h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        is_special = key >= first_special
        # Padding keys belong to frames after the last, which no frame sees.
        t, s = query // tokens, torch.where(is_special, (key - first_special) // special, key // patches)
        past = s <= t
        full = ((t < scale) & (s < scale)) | (past & ((s < scale) | (s >= t - reach)))
        return full | (past & is_special)

    length = _padded(clip.frames * tokens)
    return create_block_mask(visible, None, None, length, length, device=str(device), BLOCK_SIZE=BLOCK)


def _padded(length: int) -> int:
    return length + -length % BLOCK


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, frames: int, special: int, block_mask: BlockMask) -> Tensor:
    """q, k, v [B, S*P, H, D], special tokens first in a frame, under a mask of `clip_block_mask` -> the same shape.

    All are padded to full blocks: otherwise the forward kernel checks every pair against the ends.
    """
    length = q.shape[1]
    padding = (0, 0, 0, 0, 0, _padded(length) - length)
    options = KERNEL_OPTIONS if q.is_cuda else None
    k, v = (F.pad(_patches_first(x, frames, special), padding) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (F.pad(q, padding), k, v))
    y = flex_attention(q, k, v, block_mask=block_mask, kernel_options=options)  # type: ignore[arg-type]
    return y.transpose(1, 2)[:, :length].contiguous()  # type: ignore[union-attr]


def _patches_first(x: Tensor, frames: int, special: int) -> Tensor:
    by_frame = x.unflatten(1, (frames, -1))
    special_tokens, patches = by_frame.split([special, by_frame.shape[2] - special], dim=2)
    return torch.cat([patches.flatten(1, 2), special_tokens.flatten(1, 2)], dim=1)


@lru_cache(maxsize=1)
def compiled_attention() -> Callable[..., Tensor]:
    """`attend_in_blocks`, compiled: sorting, padding and their gradients then cost one pass over each tensor."""
    return torch.compile(attend_in_blocks, dynamic=False)


def frame_visibility(frames: int, scale_frames: int, window: int, device: torch.device) -> Tensor:
    """How much row t sees of column s, int32 [S, S] of `HIDDEN`, `SPECIAL_ONLY` and `FULL`."""
    t = torch.arange(frames, device=device)[:, None]
    s = torch.arange(frames, device=device)[None]
    past = s <= t
    among_scale = (t < scale_frames) & (s < scale_frames)
    full = among_scale | (past & ((s < scale_frames) | (s >= t - window)))
    visibility = torch.where(past, SPECIAL_ONLY, HIDDEN)
    return torch.where(full, FULL, visibility).int()


@lru_cache(maxsize=64)
def dense_mask(clip: ClipLayout, device: torch.device) -> Tensor:
    """Which keys each query sees, unsorted, bool [S*P, S*P]."""
    visibility = frame_visibility(clip.frames, clip.scale_frames, clip.window, device)
    visibility = visibility.repeat_interleave(clip.tokens, 0).repeat_interleave(clip.tokens, 1)
    is_special = torch.arange(clip.frames * clip.tokens, device=device) % clip.tokens < clip.special
    return (visibility == FULL) | ((visibility == SPECIAL_ONLY) & is_special)


class TrainingMask:
    """A `KVCache` over B full clips of S frames, which stores nothing.

    Args:
        times: int64 [B, S] or [1, S], the frames' time coordinates; None: 0 .. S-1.
        flex: use compiled block-sparse attention (CUDA) instead of a dense mask.
    """

    def __init__(
        self,
        clip: ClipLayout,
        camera_window: int,
        device: torch.device,
        times: Tensor | None = None,
        *,
        flex: bool = False,
    ) -> None:
        scale_frames = min(clip.scale_frames, clip.frames)
        self._clip = replace(clip, scale_frames=scale_frames)
        self._device = device
        self._flex = flex
        self._camera_mask = frame_visibility(clip.frames, scale_frames, camera_window, device) == FULL
        index = torch.arange(clip.frames, device=device)
        self.times = index[None] if times is None else times
        self.is_later_frame = (index > 0).long()
        self.is_streamed_frame = (index >= scale_frames).long()

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._flex:
            block_mask = clip_block_mask(self._clip, self._device)
            return compiled_attention()(q, k, v, self._clip.frames, self._clip.special, block_mask)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = dense_mask(self._clip, self._device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    def attend_camera(self, slot: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self._camera_mask).transpose(1, 2)
