"""Matches with keyframes further back, found from where geometry expects them.

The step head compares a frame with the last cached frame alone, and what it gets wrong adds up. Further back the
camera has moved more, so a match says more of the motion and of the depth, but tokens hardly tell where it lies.
Geometry does: depth and the motion so far lead each point to a place near by. From there features of both images are
compared around it, from coarse to fine (as RAFT does, Teed & Deng 2020), and each match gets a precision, learned as
that of Student's distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.dpt_head import project_channels
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.layers import in_fp32
from stream_recon.models.rigid import MIN_DEPTH
from stream_recon.models.sampling import SAMPLES, look_up, per_point, sample_places, window

KEPT = 4
"""Cached frames that may be looked back at."""
TAPS = (1, 3)
"""Of the aggregator's outputs."""
CONTEXT = 16
FEATURES = 24
HIDDEN = 64
REACH = 2
"""Features are compared so many places to each side of where a match is looked for."""
SPACINGS = (8, 4, 2, 2)
"""Pixels from one place to the next, in each round. Features have one for every two, and are averaged for more."""
SHARPNESS = 5.0
"""Factor on products of features."""
HEAVIEST = 8.0
"""Logarithm of the largest precision; the smallest is as far below 1."""


@dataclass(frozen=True)
class Sight:
    """What is compared of B clips: of all S frames, and of the D frames that look back."""

    features: Tensor
    """[B, S, 24, H/2, W/2]: `LookBack.describe`."""
    context: Tensor
    """[B, D, 2*gh, 2*gw, 16]: `LookBack.read`."""

    def first_clips(self, count: int) -> "Sight":
        """Of the first ``count`` clips; views."""
        return Sight(self.features[:count], self.context[:count])


@dataclass(frozen=True)
class Past:
    """The last K cached frames of each of B streams, the latest one first."""

    features: Tensor
    """[B, K, 24, H/2, W/2]: `LookBack.describe`."""
    poses: Tensor
    """[B, K, 9]: pose codes."""
    count: Tensor
    """[B]: so many there are, at most K."""

    @staticmethod
    def none(clips: int, size: tuple[int, int], device: torch.device) -> "Past":
        """``size``: of images (height, width)."""
        features = torch.zeros(clips, KEPT, FEATURES, size[0] // 2, size[1] // 2, device=device)
        return Past(features, torch.zeros(clips, KEPT, 9, device=device), torch.zeros(clips, device=device))

    def at(self, rows: slice | Tensor) -> "Past":
        """Of these streams: a slice gives views, an index on the device copies."""
        return Past(self.features[rows], self.poses[rows], self.count[rows])

    def followed_by(self, features: Tensor, pose: Tensor) -> "Past":
        """With one more frame: features [B, 24, H/2, W/2] and pose code [B, 9]."""
        return Past(
            torch.cat([features[:, None], self.features[:, :-1]], dim=1),
            torch.cat([pose[:, None], self.poses[:, :-1]], dim=1),
            (self.count + 1).clamp_max(KEPT),
        )


@dataclass(frozen=True)
class Matches:
    """Of B frames with L other frames each."""

    places: Tensor
    """[R+1, B, L, 2*gh, 2*gw, 2]: pixels (x, y) of the other image: where geometry expects a point, and after each
    round."""
    log_precision: Tensor
    """[B, L, 2*gh, 2*gw]: of the last of these, along either axis, in 1 / pixels^2."""
    in_view: Tensor
    """bool [B, L, 2*gh, 2*gw]: whether geometry expects a point in the other image at all."""


class LookBack(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2 * config.dim)
        self.project = nn.Linear(len(TAPS) * 2 * config.dim, SAMPLES * SAMPLES * CONTEXT)
        self.features1 = nn.Conv2d(STEM_CHANNELS, STEM_CHANNELS, 3, padding=1)
        self.features2 = nn.Conv2d(STEM_CHANNELS, FEATURES, 1)
        self.rounds = nn.ModuleList(Round() for _ in SPACINGS)
        self.weigh = nn.Linear(CONTEXT, 1)

    def describe(self, detail: Tensor) -> Tensor:
        """The stem's detail [N, 32, H/2, W/2] -> what is compared, [N, 24, H/2, W/2], of length 1 at each place."""
        x = project_channels(F.gelu(self.features1(detail)), self.features2)
        return F.normalize(x.float(), dim=1)

    def read(self, taps: Sequence[Tensor], grid: tuple[int, int]) -> Tensor:
        """What tokens, [N, gh*gw, 2*dim] each, say of their points: [N, 2*gh, 2*gw, 16]."""
        said = self.project(torch.cat([self.norm(taps[i]) for i in TAPS], dim=-1)).float()
        return per_point(said, grid)

    def forward(
        self, own: Tensor, others: Tensor, context: Tensor, points: Tensor, motion: Tensor, lengths: Tensor
    ) -> Matches:
        """own [B, 24, H/2, W/2] of frames and others [B, L, 24, H/2, W/2] of those that each is matched with, from
        `describe`; context [B, 2*gh, 2*gw, 16]; points [B, 2*gh, 2*gw, 3] in a frame's space; motion [B, L, 3, 4] from
        there to the other frame's, as far as it is known; focal lengths (x, y) in pixels [B, 2]."""
        clips, looks = motion.shape[:2]
        size = (2 * own.shape[-2], 2 * own.shape[-1])
        with in_fp32(points):
            expected, along, in_view = (x.flatten(0, 1) for x in expect(points, motion, lengths, size))
        at = sample_places(size, (points.shape[1], points.shape[2]), own.device).flatten(0, 1)
        at = at[None, :, None].expand(clips, -1, -1, -1)
        levels, described = {}, {}
        for spacing in set(SPACINGS):
            levels[spacing] = _coarser(others.flatten(0, 1), spacing)
            described[spacing] = _for_each(look_up(_coarser(own, spacing), at, spacing), looks)
        context, places = _for_each(context, looks), [expected]
        for spacing, update in zip(SPACINGS, self.rounds, strict=True):
            # As in RAFT: each round learns its own correction, so no gradient through where it looks.
            place = places[-1].detach()
            looked = place.flatten(1, 2)[:, :, None] + window(REACH, spacing, own.device)
            seen = look_up(levels[spacing], looked, spacing)
            alike = (described[spacing] * seen).sum(1).unflatten(1, place.shape[1:3]) * SHARPNESS
            change = update(torch.cat([alike, context, (place - expected) / SPACINGS[0], along], dim=-1)).float()
            places.append(place + change[..., :2] * spacing)
            context = context + change[..., 2:]
        log_precision = self.weigh(context).float()[..., 0].clamp(-HEAVIEST, HEAVIEST)
        found = torch.stack(places).unflatten(1, (clips, looks))
        return Matches(found, *(x.unflatten(0, (clips, looks)) for x in (log_precision, in_view)))


class Round(nn.Module):
    """One correction of matches, by what is alike around each and what the neighbours found."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(len(window(REACH, 1)) + CONTEXT + 4, HIDDEN)
        self.mix = nn.Conv2d(HIDDEN, HIDDEN, 3, padding=1, groups=HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, 2 + CONTEXT)

    def forward(self, x: Tensor) -> Tensor:
        """[N, Y, X, channels] -> [N, Y, X, 2 + CONTEXT]"""
        x = F.gelu(self.fc1(x))
        mixed = self.mix(x.movedim(-1, 1)).movedim(1, -1)
        return self.fc2(x + F.gelu(mixed))  # type: ignore[no-any-return]


def expect(points: Tensor, motion: Tensor, lengths: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Where points [B, Y, X, 3] are seen after motions [B, L, 3, 4], in images of ``size`` (height, width).

    Returns:
        places [B, L, Y, X, 2], pixels (x, y), of points out of view on the border; which way they go as their depth
        grows, [B, L, Y, X, 2], of a length from 0 to 1 that tells how far; and whether they are in view,
        bool [B, L, Y, X].
    """
    turned = torch.einsum("nlij,nyxj->nlyxi", motion[..., :3], points)
    x, y, z = (turned + motion[:, :, None, None, :, 3]).unbind(-1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    u, v = x * inverse, y * inverse
    focal = lengths[:, None, None, None]
    limits = lengths.new_tensor([size[1], size[0]])
    places = torch.stack([u, v], dim=-1) * focal + limits / 2
    # How the place changes with the logarithm of the depth, in pixels.
    going = torch.stack([turned[..., 0] - u * turned[..., 2], turned[..., 1] - v * turned[..., 2]], dim=-1)
    going = going * inverse[..., None] * focal
    along = going / (going.norm(dim=-1, keepdim=True) + SPACINGS[0])
    in_view = ((places > 0) & (places < limits)).all(-1) & (z > MIN_DEPTH)
    return torch.minimum(places.clamp_min(0), limits), torch.where(in_view[..., None], along, 0), in_view


def _coarser(features: Tensor, spacing: int) -> Tensor:
    return features if spacing <= 2 else F.avg_pool2d(features, spacing // 2, ceil_mode=True)


def _for_each(x: Tensor, looks: int) -> Tensor:
    """[B, ...] -> [B * looks, ...]"""
    return x[:, None].expand(-1, looks, *x.shape[1:]).flatten(0, 1)
