"""Depth maps of a stream that agree with one another: each is drawn towards the one before it, as it is seen from here.

A network says each frame's depth nearly for itself. Its unit drifts, outdoors by a third within fifty frames, and its
shape is off by something else each time. The step head knows how the camera moved, so the map of the last cached frame
can be laid over the next one's: by how much the two differ on the whole is a change of unit, by how much they differ
apart from that are errors of either.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.rigid import MIN_DEPTH, SUPPORTED

KEPT = 0.95
"""Of a correction of the unit, from one cached frame to the next: the rest is the network's. Units that are compared
step by step drift, too."""
APART = 0.3
"""In logarithms: depths so far apart, after the units were made equal, are hardly of one surface."""
STILL = 0.03
"""In logarithms: changes of unit from frame to frame that are this small are mostly errors of measuring, and what is
left of them adds up."""
SURE = 0.3
"""Share of the median confidence; what is less sure says nothing of the unit."""
SPACING = 4
"""One pixel in so many along each axis is asked for the unit."""
SEEN = 0.05
"""Share of these that has to be in view of the frame before."""


@dataclass(frozen=True)
class KeptDepth:
    """Of the last cached frame of each of B streams."""

    maps: Tensor
    """[B, 2, H, W]: log depth, in the unit that the network gave it in, and log confidence."""
    unit: Tensor
    """[B]: what is to be added to that log depth."""

    @staticmethod
    def of(maps: Tensor) -> "KeptDepth":
        return KeptDepth(maps, maps.new_zeros(len(maps)))

    def at(self, rows: slice | Tensor) -> "KeptDepth":
        """Of these streams: a slice gives views, an index on the device copies."""
        return KeptDepth(self.maps[rows], self.unit[rows])


def carry(
    maps: Tensor, motion: Tensor, support: Tensor, lengths: tuple[Tensor, Tensor], last: KeptDepth | None
) -> tuple[Tensor, Tensor, KeptDepth]:
    """Draw each frame's depth towards that of the frame before.

    Args:
        maps: [B, S, 2, H, W]: log depth and log confidence, as the network says them.
        motion, support: [B, S, 3, 4] and [B, S], as `solve` gives them, since the frame before, in the unit of a
            frame's own depth.
        lengths: focal lengths (x, y) in pixels [B, S] each.
        last: of the cached frame before the first; None: there is none, and the first frame's is as said.

    Returns:
        log depth [B, S, H, W]; the logarithms of the units [B, S] that are part of it; what is to be kept of the last
        frame.
    """
    depths, units = [], []
    for frame in range(maps.shape[1]):
        own = maps[:, frame]
        if last is None:
            last = KeptDepth.of(own)
        else:
            focal = lengths[0][:, frame], lengths[1][:, frame]
            last = _next(own, motion[:, frame], support[:, frame], focal, last)
        units.append(last.unit)
        depths.append(last.maps[:, 0] + last.unit[:, None, None])
    assert last is not None
    return torch.stack(depths, dim=1), torch.stack(units, dim=1), last


def _next(own: Tensor, motion: Tensor, support: Tensor, focal: tuple[Tensor, Tensor], last: KeptDepth) -> KeptDepth:
    log_depth, log_confidence = own.unbind(1)
    apart, before = _difference(log_depth, motion, focal, last.maps)
    trusted = (support > SUPPORTED)[:, None, None]
    change = torch.where(trusted[:, 0, 0], _damped(_middle(apart, log_confidence, before)), 0)
    rest = apart - change[:, None, None]
    # Confidence weighs as precision does; what is out of view, NaN, has no say.
    share = torch.sigmoid(before - log_confidence) * torch.exp(-0.5 * (rest / APART).square())
    drawn = torch.where(trusted & rest.isfinite(), share * rest, 0)
    return KeptDepth(torch.stack([log_depth + drawn, log_confidence], dim=1), KEPT * last.unit + change)


def _difference(
    log_depth: Tensor, motion: Tensor, focal: tuple[Tensor, Tensor], before: Tensor
) -> tuple[Tensor, Tensor]:
    """By how much [B, H, W] the log depth would have to grow to be that of the frame before, NaN where that does not
    see it; and how sure that one is there, a log confidence."""
    height, width = log_depth.shape[-2:]
    fx, fy = (x[:, None, None] for x in focal)
    u, v = _pixels(height, width, log_depth.device)
    R, t = motion[..., :3, None, None], motion[..., 3, None, None]
    rays = R[:, :, 0] * (u / fx)[:, None] + R[:, :, 1] * (v / fy)[:, None] + R[:, :, 2]
    x, y, z = (rays * log_depth.exp()[:, None] + t).unbind(1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    places = torch.stack([x * inverse * fx * (2 / width), y * inverse * fy * (2 / height)], dim=-1)
    # Nearest, not between: across an edge what lies between is neither surface.
    there = F.grid_sample(before, places, mode="nearest", align_corners=False)
    seen = (places.abs() < 1).all(-1) & (z > MIN_DEPTH)
    as_seen_here = (there[:, 0].exp() - t[:, 2]) / rays[:, 2]
    seen = seen & (as_seen_here > MIN_DEPTH)
    apart = as_seen_here.clamp_min(MIN_DEPTH).log() - log_depth
    return torch.where(seen, apart, torch.nan), there[:, 1]


@lru_cache(maxsize=32)
def _pixels(height: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Centres (x, y) of all pixels, [H, W] each, from the middle of the image."""
    v, u = torch.meshgrid(
        torch.arange(height, device=device) + 0.5 - height / 2,
        torch.arange(width, device=device) + 0.5 - width / 2,
        indexing="ij",
    )
    return u, v


def _middle(apart: Tensor, log_confidence: Tensor, before: Tensor) -> Tensor:
    """The median [B] over what both frames are sure of; 0 where that is too little."""
    apart, own, before = (x[:, ::SPACING, ::SPACING].flatten(1) for x in (apart, log_confidence, before))
    floor = own.median(dim=1, keepdim=True).values + math.log(SURE)
    asked = torch.where(torch.minimum(own, before) > floor, apart, torch.nan)
    enough = asked.isfinite().float().mean(1) > SEEN
    return torch.where(enough, asked.nanmedian(dim=1).values.nan_to_num(), 0)


def _damped(change: Tensor) -> Tensor:
    """Nearly all of a change beside which `STILL` is small, nearly nothing of one that is small itself."""
    return change * change.square() / (change.square() + STILL**2)
