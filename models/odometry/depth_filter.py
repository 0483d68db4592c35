"""Depth maps of a stream that agree with one another: each is drawn towards the one before it, as it is seen from here.

A network says each frame's depth nearly for itself. Its unit drifts, outdoors by a third within fifty frames, and its
shape is off by something else each time. The step head knows how the camera moved, so the map of the last cached frame
can be laid over the next one's: by how much the two differ on the whole is a change of unit, by how much they differ
apart from that are errors of either. Its matches say more: where the camera moved, how far a point did in the image
tells how far it is (`parallax`). What they have told is kept as a coarse correction of the map, and carried along.

What matches say of the depth of their points, once the motion of the camera is known.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.pnp import MIN_DEPTH, ROBUST_ANGLE, SUPPORTED, TINY
from stream_recon.models.odometry.sampling import at_places, sample_places

KEPT = 0.975
"""Of a correction of the unit, from one cached frame to the next that sees all of it: the rest is the network's. Units
that are compared step by step drift, too, and faster where less is seen of both."""
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
DOUBT = 0.12
"""In logarithms: what a map is taken to be off by where no parallax was seen."""
REMEMBERED = 0.8
"""Of what parallax told before, from one cached frame to the next: errors of matches are not independent."""
LARGEST = 0.4
"""In logarithms: a correction by parallax is at most so large."""


@dataclass(frozen=True)
class DepthState:
    """Of the last cached frame of each of B streams."""

    maps: Tensor
    """[B, 2, H, W]: log depth, in the unit that the network gave it in, and log confidence."""
    unit: Tensor
    """[B]: what is to be added to that log depth, ..."""
    correction: Tensor
    """[B, 2, Y, X]: ... and, evenly over the image, what parallax adds; and the information (1 / variance) in it."""

    @staticmethod
    def of(maps: Tensor, grid: Sequence[int]) -> "DepthState":
        """``grid``: rows and columns of the correction."""
        return DepthState(maps, maps.new_zeros(len(maps)), maps.new_zeros(len(maps), 2, *grid))

    def at(self, rows: slice | Tensor) -> "DepthState":
        """Of these streams: a slice gives views, an index on the device copies."""
        return DepthState(self.maps[rows], self.unit[rows], self.correction[rows])

    @property
    def log_depth_at_places(self) -> Tensor:
        """[B, Y, X]: log depth in the middles of the correction's cells, with all that is known."""
        return at_places(self.maps[:, 0], self.correction.shape[-2:]) + self.unit[:, None, None] + self.correction[:, 0]

    @property
    def log_depth(self) -> Tensor:
        """[B, H, W], with all that is known."""
        return self.maps[:, 0] + self.unit[:, None, None] + _enlarged(self.correction[:, :1], self.maps)[:, 0]


def propagate_depth(
    maps: Tensor,
    motion: Tensor,
    support: Tensor,
    parallax: Tensor,
    lengths: tuple[Tensor, Tensor],
    last: DepthState | None,
) -> tuple[Tensor, Tensor, DepthState]:
    """Draw each frame's depth towards that of the frame before.

    Args:
        maps: [B, S, 2, H, W]: log depth and log confidence, as the network says them.
        motion, support: [B, S, 3, 4] and [B, S], as `solve` gives them, since the frame before, in the unit of a
            frame's own depth.
        parallax: [B, S, 2, Y, X], as `parallax` gives it, of points in the middles of Y x X equal cells.
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
            last = DepthState.of(own, parallax.shape[-2:])
        else:
            focal = lengths[0][:, frame], lengths[1][:, frame]
            last = _next(own, motion[:, frame], support[:, frame], parallax[:, frame], focal, last)
        units.append(last.unit)
        depths.append(last.log_depth)
    assert last is not None
    return torch.stack(depths, dim=1), torch.stack(units, dim=1), last


def _next(
    own: Tensor, motion: Tensor, support: Tensor, parallax: Tensor, focal: tuple[Tensor, Tensor], last: DepthState
) -> DepthState:
    log_depth, log_confidence = own.unbind(1)
    apart, before = _difference(log_depth, motion, focal, last.maps)
    seen = apart.isfinite().float().mean((1, 2))
    trusted = (support > SUPPORTED)[:, None, None]
    change = torch.where(trusted[:, 0, 0], _damped(_middle(apart, log_confidence, before)), 0)
    rest = apart - change[:, None, None]
    # Confidence weighs as precision does; what is out of view, NaN, has no say.
    share = torch.sigmoid(before - log_confidence) * torch.exp(-0.5 * (rest / APART).square())
    drawn = torch.where(trusted & rest.isfinite(), share * rest, 0)
    grid = parallax.shape[-2:]
    added, information = _enlarged(last.correction, own).unbind(1)
    known = torch.stack([last.maps[:, 0] + added, information], dim=1)
    apart, information = _difference(at_places(log_depth, grid), motion, focal, known)
    drawn_there = at_places(drawn, grid)
    rest = apart - change[:, None, None] - drawn_there
    correction = _corrected(rest, information, drawn_there, parallax * trusted[:, None])
    maps = torch.stack([log_depth + drawn, log_confidence], dim=1)
    unit = KEPT ** (1 / seen.clamp_min(SEEN)) * last.unit + change
    return DepthState(maps, unit, torch.where(trusted[:, None], correction, 0))


def _corrected(rest: Tensor, information: Tensor, drawn: Tensor, parallax: Tensor) -> Tensor:
    """A correction [B, 2, Y, X] from the one before, which says ``rest`` (NaN where it was out of view) with
    ``information``, and from what parallax says of the depth as it was before it was ``drawn``."""
    agreeing = torch.exp(-0.5 * (rest / APART).square())
    information = torch.where(rest.isfinite(), REMEMBERED * information * agreeing, 0)
    pull, seen = parallax.unbind(1)
    correction = (information * rest.nan_to_num() + pull - seen * drawn) / (information + seen + DOUBT**-2)
    return _balanced(correction, information + seen)


def amend(kept: DepthState, evidence: Tensor) -> DepthState:
    """What is known of a frame's depth, after more evidence [B, 2, Y, X], as `parallax` gives it, of points as they lie
    by what was known."""
    correction, information = kept.correction.unbind(1)
    pull, seen = evidence.unbind(1)
    information = information + seen
    correction = _balanced(correction + pull / (information + DOUBT**-2), information)
    return DepthState(kept.maps, kept.unit, correction)


def _balanced(correction: Tensor, information: Tensor) -> Tensor:
    """A correction [B, Y, X] that is none on the whole, and the information in it: [B, 2, Y, X]. The unit is not told
    by parallax, which only knows depth beside the step's length."""
    share = information / (information + DOUBT**-2)
    middle = (correction * share).sum((1, 2)) / share.sum((1, 2)).clamp_min(TINY)
    correction = (correction - middle[:, None, None]).clamp(-LARGEST, LARGEST)
    return torch.stack([correction, information], dim=1)


def _difference(
    log_depth: Tensor, motion: Tensor, focal: tuple[Tensor, Tensor], before: Tensor
) -> tuple[Tensor, Tensor]:
    """By how much [B, Y, X] the log depth, in the middles of Y x X equal cells, would have to grow to be that of the
    frame before, NaN where that does not see it; and the other channel of the map before, [B, 2, H, W], there."""
    height, width = before.shape[-2:]
    fx, fy = (x[:, None, None] for x in focal)
    places = sample_places((height, width), (log_depth.shape[-2], log_depth.shape[-1]), log_depth.device)
    u, v = places[..., 0] - width / 2, places[..., 1] - height / 2
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


def _enlarged(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)


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


MATCH_SIGMA = 0.006
"""Radians: what a match of weight 1 is taken to be off by; larger than where motion is solved, since neighbours err
alike."""
AROUND = 3
"""Points along each side of the square of neighbours that a point's evidence is the mean of."""


@torch.no_grad()
def disparity_evidence(points: Tensor, target: Tensor, weight: Tensor, motion: Tensor) -> Tensor:
    """Evidence of matches for the logarithm of each point's depth, to first order.

    A point moves along a line in the image as its depth changes. How far its match lies along that line says by how
    much the depth is off; the more the camera moved beside the depth, the more exactly. A match that lies off the line
    is likely a wrong one, and counts less.

    Args:
        points: [N, Y, X, 3], in space, by the depth as it is said.
        target: [N, Y, X, 2], where they are seen in the other image (x / z, y / z).
        weight: [N, Y, X], above 0.
        motion: [N, 3, 4], as `solve` gives it.

    Returns:
        [N, 2, Y, X]: information (1 / variance) times what is to be added to the log depth, and the information.
    """
    turned = torch.einsum("nij,nyxj->nyxi", motion[:, :, :3], points)
    x, y, z = (turned + motion[:, None, None, :, 3]).unbind(-1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    u, v = x * inverse, y * inverse
    off_u, off_v = u - target[..., 0], v - target[..., 1]
    # How u and v change with the logarithm of the depth, as in `solve`.
    g_u, g_v = (turned[..., 0] - u * turned[..., 2]) * inverse, (turned[..., 1] - v * turned[..., 2]) * inverse
    squared = g_u * g_u + g_v * g_v
    beside = (off_u * g_v - off_v * g_u).square() / squared.clamp_min(TINY)
    precision = weight * (z > MIN_DEPTH) / (1 + beside / ROBUST_ANGLE**2) / MATCH_SIGMA**2
    evidence = torch.stack([-precision * (off_u * g_u + off_v * g_v), precision * squared], dim=1)
    return box_filter(evidence)


def box_filter(evidence: Tensor) -> Tensor:
    """Evidence [N, 2, Y, X] of points as the mean over their neighbours."""
    return F.avg_pool2d(evidence, AROUND, 1, AROUND // 2, count_include_pad=False)
