"""Matches with keyframes further back, found from where geometry expects them.

The step head compares a frame with the last cached frame alone, and what it gets wrong adds up. Further back the
camera has moved more, so a match says more of the motion and of the depth, but tokens hardly tell where it lies.
Geometry does: depth and the motion so far lead each point to a place near by. From there features of both images are
compared around it, from coarse to fine (as RAFT does, Teed & Deng 2020), and each match gets a precision, learned as
that of Student's distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.dpt_head import project_channels
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.layers import in_fp32
from stream_recon.models.odometry.pnp import MIN_DEPTH
from stream_recon.models.odometry.sampling import SAMPLES, far_corner, per_point, sample_places

KEPT = 4
"""Cached frames that may be looked back at."""
TAPS = (1, 3)
"""Of the aggregator's outputs."""
CONTEXT = 16
FEATURES = 24
HIDDEN = 64
REACH = 2
"""Features are compared so many places to each side of where a match is looked for."""
LEVELS = (2, 4, 8)
"""Pixels from one place of features to the next, in each of their levels."""
ROUNDS = (8, 4, 2, 2)
"""The level that each round compares."""
SHARPNESS = 5.0
"""Factor on products of features."""
HEAVIEST = 8.0
"""Logarithm of the largest precision; the smallest is as far below 1."""


@dataclass(frozen=True)
class MatchingFeatures:
    """What is compared of B clips: of all S frames, and of the D frames that look back."""

    features: Tensor
    """[B, S, M, 24]: `KeyframeMatcher.describe`."""
    context: Tensor
    """[B, D, 2*gh, 2*gw, 16]: `KeyframeMatcher.read`."""

    def first_clips(self, count: int) -> "MatchingFeatures":
        """Of the first ``count`` clips; views."""
        return MatchingFeatures(self.features[:count], self.context[:count])


@dataclass(frozen=True)
class MatchingHistory:
    """The last K cached frames of each of B streams, the latest one first."""

    features: Tensor
    """[B, K, M, 24]: `KeyframeMatcher.describe`."""
    poses: Tensor
    """[B, K, 9]: pose codes."""
    count: Tensor
    """[B]: so many there are, at most K."""

    @staticmethod
    def none(clips: int, size: tuple[int, int], device: torch.device) -> "MatchingHistory":
        """``size``: of images (height, width)."""
        features = torch.zeros(clips, KEPT, _places(_levels(size)), FEATURES, device=device)
        return MatchingHistory(features, torch.zeros(clips, KEPT, 9, device=device), torch.zeros(clips, device=device))

    def at(self, rows: slice | Tensor) -> "MatchingHistory":
        """Of these streams: a slice gives views, an index on the device copies."""
        return MatchingHistory(self.features[rows], self.poses[rows], self.count[rows])

    def followed_by(self, features: Tensor, pose: Tensor) -> "MatchingHistory":
        """With one more frame: features [B, M, 24] and pose code [B, 9]."""
        return MatchingHistory(
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


class KeyframeMatcher(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2 * config.dim)
        self.project = nn.Linear(len(TAPS) * 2 * config.dim, SAMPLES * SAMPLES * CONTEXT)
        self.features1 = nn.Conv2d(STEM_CHANNELS, STEM_CHANNELS, 3, padding=1)
        self.features2 = nn.Conv2d(STEM_CHANNELS, FEATURES, 1)
        self.rounds = nn.ModuleList(MatchIteration() for _ in ROUNDS)
        self.weigh = nn.Linear(CONTEXT, 1)

    def describe(self, detail: Tensor) -> Tensor:
        """The stem's detail [N, 32, H/2, W/2] -> what is compared, [N, M, 24]: places of each of `LEVELS`, row by row,
        one level after the other; of length 1 at those of the first, means of these at others."""
        x = project_channels(F.gelu(self.features1(detail)), self.features2)
        x = F.normalize(x.float(), dim=1)
        levels = [x if cell == LEVELS[0] else F.avg_pool2d(x, cell // LEVELS[0], ceil_mode=True) for cell in LEVELS]
        return torch.cat([level.permute(0, 2, 3, 1).flatten(1, 2) for level in levels], dim=1)

    def read(self, taps: Sequence[Tensor], grid: tuple[int, int]) -> Tensor:
        """What tokens, [N, gh*gw, 2*dim] each, say of their points: [N, 2*gh, 2*gw, 16]."""
        said = self.project(torch.cat([self.norm(taps[i]) for i in TAPS], dim=-1)).float()
        return per_point(said, grid)

    def forward(
        self,
        own: Tensor,
        others: Tensor,
        context: Tensor,
        points: Tensor,
        motion: Tensor,
        lengths: Tensor,
        size: tuple[int, int],
    ) -> Matches:
        """own [B, M, 24] of frames and others [B, L, M, 24] of those that each is matched with, from `describe`;
        context [B, 2*gh, 2*gw, 16]; points [B, 2*gh, 2*gw, 3] in a frame's space; motion [B, L, 3, 4] from there to the
        other frame's, as far as it is known; focal lengths (x, y) in pixels [B, 2]; ``size`` of images
        (height, width)."""
        clips, looks = motion.shape[:2]
        with in_fp32(points):
            expected, along, in_view = (x.flatten(0, 1) for x in expect(points, motion, lengths, size))
        at = sample_places(size, (points.shape[1], points.shape[2]), own.device).flatten(0, 1).expand(clips, -1, -1)
        described = {cell: _for_each(between(own, at, cell, size), looks) for cell in LEVELS}
        others, context, places = others.flatten(0, 1), _for_each(context, looks), [expected]
        for cell, update in zip(ROUNDS, self.rounds, strict=True):
            # As in RAFT: each round learns its own correction, so no gradient through where it looks.
            place = places[-1].detach()
            with in_fp32(points):
                alike = compare(described[cell], others, place.flatten(1, 2), cell, size) * SHARPNESS
            alike = alike.unflatten(1, place.shape[1:3])
            change = update(torch.cat([alike, context, (place - expected) / ROUNDS[0], along], dim=-1)).float()
            places.append(place + change[..., :2] * cell)
            context = context + change[..., 2:]
        log_precision = self.weigh(context).float()[..., 0].clamp(-HEAVIEST, HEAVIEST)
        found = torch.stack(places).unflatten(1, (clips, looks))
        return Matches(found, *(x.unflatten(0, (clips, looks)) for x in (log_precision, in_view)))


class MatchIteration(nn.Module):
    """One correction of matches, by what is alike around each and what the neighbours found."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear((2 * REACH + 1) ** 2 + CONTEXT + 4, HIDDEN)
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
    limits = far_corner(size, lengths.device)
    places = torch.stack([u, v], dim=-1) * focal + limits / 2
    # How the place changes with the logarithm of the depth, in pixels.
    going = torch.stack([turned[..., 0] - u * turned[..., 2], turned[..., 1] - v * turned[..., 2]], dim=-1)
    going = going * inverse[..., None] * focal
    along = going / (going.norm(dim=-1, keepdim=True) + ROUNDS[0])
    in_view = ((places > 0) & (places < limits)).all(-1) & (z > MIN_DEPTH)
    return torch.minimum(places.clamp_min(0), limits), torch.where(in_view[..., None], along, 0), in_view


def compare(described: Tensor, features: Tensor, places: Tensor, cell: int, size: tuple[int, int]) -> Tensor:
    """Products of ``described`` [N, P, 24] with features [N, M, 24] of another image at and around ``places``
    [N, P, 2], pixels (x, y), ``REACH`` cells to each side: [N, P, places around], row by row.

    A product with what lies between four places is what lies between four products. So these are taken at places, one
    more along each axis, and features are read in whole rows.
    """
    rows, (x, y) = _around(places, cell, size, range(-REACH, REACH + 2))
    read = _read_rows(features, rows).flatten(2, 3)
    # A row times a matrix: a matrix times a column takes four times as long on a CPU.
    products = (described[:, :, None] @ read.transpose(2, 3)).unflatten(3, rows.shape[2:])[:, :, 0]
    across = torch.lerp(products[..., :-1], products[..., 1:], x[..., None, None])
    return torch.lerp(across[..., :-1, :], across[..., 1:, :], y[..., None, None]).flatten(2)


def between(features: Tensor, places: Tensor, cell: int, size: tuple[int, int]) -> Tensor:
    """Features [N, M, 24] between the four places around each of ``places`` [N, P, 2], pixels (x, y): [N, P, 24]."""
    rows, (x, y) = _around(places, cell, size, range(2))
    read = _read_rows(features, rows)
    across = torch.lerp(read[..., 0, :], read[..., 1, :], x[..., None, None])
    return torch.lerp(across[..., 0, :], across[..., 1, :], y[..., None])


def level_of(features: Tensor, cell: int, size: tuple[int, int]) -> Tensor:
    """Of features [N, M, 24] those of one level, [N, rows, columns, 24]; a view."""
    first, rows, columns = _level(cell, size)
    return features.narrow(1, first, rows * columns).view(len(features), rows, columns, -1)


def _levels(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Rows and columns of each level."""
    fine = (size[0] // LEVELS[0], size[1] // LEVELS[0])
    return [(-(-fine[0] * LEVELS[0] // cell), -(-fine[1] * LEVELS[0] // cell)) for cell in LEVELS]


def _places(levels: Sequence[tuple[int, int]]) -> int:
    """So many they have together."""
    return sum(rows * columns for rows, columns in levels)


def _level(cell: int, size: tuple[int, int]) -> tuple[int, int, int]:
    """Which of the M places is the first of a level, and its rows and columns."""
    levels, number = _levels(size), LEVELS.index(cell)
    return _places(levels[:number]), *levels[number]


def _around(places: Tensor, cell: int, size: tuple[int, int], steps: range) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Which of all N * M features lie around places [N, P, 2], int32 [N, P, down, across], beyond the border what is on
    it; and how far the place is past the one at step 0, in [0, 1), along x and y [N, P]."""
    _, height, width = _level(cell, size)
    step, first = _cells(len(places), cell, size, steps, places.device)
    at = places / cell - 0.5
    corner = at.floor()
    x, y = (at - corner).unbind(-1)
    across, down = corner.int()[..., None].unbind(-2)
    column, row = (across + step).clamp(0, width - 1), (down + step).clamp(0, height - 1)
    return (row * width + first)[..., :, None] + column[..., None, :], (x, y)


@cache
def _cells(images: int, cell: int, size: tuple[int, int], steps: range, device: torch.device) -> tuple[Tensor, Tensor]:
    """``steps``, and which of all features is the first of a level in each of ``images``, [N, 1, 1]. Made once: on a
    GPU each costs a launch."""
    step = torch.arange(steps.start, steps.stop, device=device, dtype=torch.int32)
    image = torch.arange(images, device=device, dtype=torch.int32) * _places(_levels(size)) + _level(cell, size)[0]
    return step, image[:, None, None]


def _read_rows(features: Tensor, rows: Tensor) -> Tensor:
    """features [N, M, C], ``rows`` of all N * M, int32 -> [*rows.shape, C]"""
    return features.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, -1)


def _for_each(x: Tensor, looks: int) -> Tensor:
    """[B, ...] -> [B * looks, ...]"""
    return x[:, None].expand(-1, looks, *x.shape[1:]).flatten(0, 1)
