"""Whole clips at once under the visibility that a stream gives frame by frame: the memory of training.

Frame t attends to the patch tokens of the scale frames, of the ``window`` frames before it and of itself, and to
the special tokens of all frames up to it. Scale frames attend to one another in both directions.
"""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.cache.training_mask_blocks import KERNEL_OPTIONS, clip_block_mask, compiled_attention

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
