"""Style augmentation by random convolutions, which change colours and textures and keep shapes.

Xu et al., Robust and Generalizable Visual Representation Learning via Random Convolutions, ICLR 2021, with its mixing.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.draws import Draws

_SIZES = (1.0, 3.0, 5.0, 7.0)  # pixels along a side of a filter
_WIDEST = 7
_FLAT = 0.02  # a filtered channel that deviates by less is not stretched further


@dataclass
class StyleAugmentation:
    """Filters of clips [B, 3, 3, 7, 7] (to, from channel; zero outside of the smaller ones), and the share of the
    unfiltered image in the mixture of both [B], 0..1."""

    filters: Tensor
    kept: Tensor


def draw_style(draws: Draws, clips: int) -> StyleAugmentation:
    """A style for each clip: sizes of filters and shares of the mixture are uniform."""
    size = draws.pick(_SIZES, clips).view(clips, 1, 1, 1, 1)
    away = (torch.arange(_WIDEST, device=draws.device) - _WIDEST // 2).abs()
    inside = torch.maximum(away[:, None], away) <= size / 2
    weights = draws.normal(clips, 3, 3, _WIDEST, _WIDEST) / (math.sqrt(3) * size)
    return StyleAugmentation(weights * inside, draws.uniform(0.0, 1.0, clips))


def apply_style(images: Tensor, style: StyleAugmentation) -> Tensor:
    """Images [B, S, 3, H, W] in their clips' styles, in 0..1.

    Filtered images get each channel's mean and deviation over the clip. All frames of a clip are changed alike, so
    nothing flickers.
    """
    clips, frames, _, height, width = images.shape
    # One convolution over the channels of all clips, in which each clip is a group.
    flat = images.transpose(0, 1).reshape(frames, clips * 3, height, width)
    flat = torch.nn.functional.pad(flat, [_WIDEST // 2] * 4, mode="replicate")
    filtered = torch.nn.functional.conv2d(flat, style.filters.flatten(0, 1), groups=clips)
    filtered = filtered.view(frames, clips, 3, height, width).transpose(0, 1)
    deviation, mean = torch.std_mean(images, (1, 3, 4), keepdim=True)
    its_deviation, its_mean = torch.std_mean(filtered, (1, 3, 4), keepdim=True)
    filtered = (filtered - its_mean) * (deviation / its_deviation.clamp_min(_FLAT)) + mean
    return torch.lerp(filtered, images, style.kept.view(clips, 1, 1, 1, 1)).clamp(0, 1)
