"""Recurrent matching of a frame with keyframes further back, guided by geometry.

The flow head compares a frame with the last keyframe alone, and its errors add up. Further back the camera has moved
more, so a match determines motion and depth better, but tokens hardly tell where it is. Depth and the motion known so
far predict each point's position. Around it, features of both images are compared from coarse to fine, as RAFT does
(Teed & Deng 2020). Each match gets a learned precision, that of Student's distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.heads import project_channels
from stream_recon.models.layers import in_fp32
from stream_recon.models.odometry.pnp import MIN_DEPTH
from stream_recon.models.odometry.sampling import SAMPLES, CellPoints, tokens_to_cells, width_height

HISTORY = 4
"""Keyframes that are kept for matching."""
TAPS = (1, 3)
"""Outputs of the aggregator that are read."""
CONTEXT = 16
"""Channels of the recurrent context of each match."""
FEATURES = 24
"""Channels of the compared features."""
HIDDEN = 64
"""Width of a round's hidden layer."""
REACH = 2
"""Features are compared up to this number of cells to each side of a match."""
LEVELS = (2, 4, 8)
"""Pixels per cell of each level of the feature pyramid."""
ROUNDS = (8, 4, 2, 2)
"""The pyramid level, in pixels per cell, that each round compares."""
SHARPNESS = 5.0
"""Factor on products of features, so that they vary as much as other inputs."""
MAX_LOG_PRECISION = 8.0
"""Bound of the logarithm of a match's precision, in either direction."""


@dataclass(frozen=True)
class MatchingHistory:
    """The last K keyframes of each of B streams, latest first."""

    features: Tensor  # [B, K, M, 24]: `KeyframeMatcher.describe`
    poses: Tensor  # [B, K, 9]: pose codes
    count: Tensor  # [B]: number of keyframes there are, at most K

    @staticmethod
    def empty(clips: int, size: tuple[int, int], device: torch.device) -> "MatchingHistory":
        """A history without keyframes; ``size``: of images (height, width)."""
        features = torch.zeros(clips, HISTORY, _cell_count(_level_shapes(size)), FEATURES, device=device)
        poses, count = torch.zeros(clips, HISTORY, 9, device=device), torch.zeros(clips, device=device)
        return MatchingHistory(features, poses, count)

    def followed_by(self, features: Tensor, pose: Tensor) -> "MatchingHistory":
        """The history after one more keyframe: features [B, M, 24] and pose code [B, 9]."""
        return MatchingHistory(
            torch.cat([features[:, None], self.features[:, :-1]], dim=1),
            torch.cat([pose[:, None], self.poses[:, :-1]], dim=1),
            (self.count + 1).clamp_max(HISTORY),
        )


@dataclass(frozen=True)
class Matches:
    """Matches of B frames with L other frames each."""

    pixels: Tensor
    """[R+1, B, L, 2*gh, 2*gw, 2]: pixels (x, y) of the other image, as geometry predicts them and after each round."""
    log_precision: Tensor  # [B, L, 2*gh, 2*gw]: of the last pixels, along either axis, in 1 / pixels^2
    in_view: Tensor  # bool [B, L, 2*gh, 2*gw]: whether geometry predicts the point inside the other image


class KeyframeMatcher(nn.Module):
    """Features of frames, and matches found by comparing them."""

    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2 * config.dim)
        self.project = nn.Linear(len(TAPS) * 2 * config.dim, SAMPLES * SAMPLES * CONTEXT)
        self.features1 = nn.Conv2d(STEM_CHANNELS, STEM_CHANNELS, 3, padding=1)
        self.features2 = nn.Conv2d(STEM_CHANNELS, FEATURES, 1)
        self.rounds = nn.ModuleList(MatchIteration() for _ in ROUNDS)
        self.weigh = nn.Linear(CONTEXT, 1)

    def describe(self, detail: Tensor) -> Tensor:
        """Detail of the encoder's stem [N, 32, H/2, W/2] -> features [N, M, 24].

        M are the cells of all `LEVELS`, level by level, row by row. Features of the first level have length 1; those
        of others are means of them.
        """
        x = project_channels(F.gelu(self.features1(detail)), self.features2)
        x = F.normalize(x.float(), dim=1)
        levels = [x if cell == LEVELS[0] else F.avg_pool2d(x, cell // LEVELS[0], ceil_mode=True) for cell in LEVELS]
        return torch.cat([level.permute(0, 2, 3, 1).flatten(1, 2) for level in levels], dim=1)

    def read_context(self, taps: Sequence[Tensor], grid: tuple[int, int]) -> Tensor:
        """Outputs of the aggregator, [N, gh*gw, 2*dim] each -> context of each match [N, 2*gh, 2*gw, 16]."""
        return self.context_of(torch.cat([self.norm(taps[i]) for i in TAPS], dim=-1), grid)

    def context_of(self, normed: Tensor, grid: tuple[int, int]) -> Tensor:
        """`read_context` from outputs that are normalised and joined, [N, gh*gw, 4*dim]."""
        return tokens_to_cells(self.project(normed).float(), grid)

    def forward(self, own: Tensor, others: Tensor, context: Tensor, points: CellPoints, motion: Tensor) -> Matches:
        """Match B frames with L other frames each.

        Args:
            own, others: features [B, M, 24] of the frames and [B, L, M, 24] of the others, from `describe`.
            context: [B, 2*gh, 2*gw, 16], from `read_context`.
            points: of the B frames, 2*gh x 2*gw cells.
            motion: [B, L, 3, 4], from a frame's camera to the other's, as far as it is known.
        """
        clips, looks = motion.shape[:2]
        size = points.size
        with in_fp32(points.xyz):
            expected, along, in_view = (x.flatten(0, 1) for x in predict_pixels(points, motion))
        centers = points.pixels.flatten(0, 1).expand(clips, -1, -1)
        described = {cell: _repeat(interpolate(own, centers, cell, size), looks) for cell in LEVELS}
        others, context, pixels = others.flatten(0, 1), _repeat(context, looks), [expected]
        for cell, update in zip(ROUNDS, self.rounds, strict=True):
            # As in RAFT, each round learns its own correction: no gradient through the start of the next one.
            current = pixels[-1].detach()
            with in_fp32(points.xyz):
                correlation = correlate(described[cell], others, current.flatten(1, 2), cell, size) * SHARPNESS
            correlation = correlation.unflatten(1, current.shape[1:3])
            inputs = torch.cat([correlation, context, (current - expected) / ROUNDS[0], along], dim=-1)
            change = update(inputs).float()
            pixels.append(current + change[..., :2] * cell)
            context = context + change[..., 2:]
        log_precision = self.weigh(context).float()[..., 0].clamp(-MAX_LOG_PRECISION, MAX_LOG_PRECISION)
        stacked = torch.stack(pixels).unflatten(1, (clips, looks))
        return Matches(stacked, *(x.unflatten(0, (clips, looks)) for x in (log_precision, in_view)))


class MatchIteration(nn.Module):
    """One correction of matches, from correlations around each and from its neighbours."""

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


def predict_pixels(points: CellPoints, motion: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Project points of B frames into other images after motions [B, L, 3, 4].

    Returns pixels (x, y) [B, L, Y, X, 2], clamped to the image; the direction in which they move as the depth grows,
    [B, L, Y, X, 2], with a length from 0 to 1 that grows with the movement; and whether points are in view, bool
    [B, L, Y, X].
    """
    rotated = torch.einsum("nlij,nyxj->nlyxi", motion[..., :3], points.xyz)
    x, y, z = (rotated + motion[:, :, None, None, :, 3]).unbind(-1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    u, v = x * inverse, y * inverse
    focal = points.focal[:, None, None, None]
    limits = width_height(points.size, focal.device)
    pixels = torch.stack([u, v], dim=-1) * focal + limits / 2
    # Derivatives of the pixels by the logarithm of the depth.
    by_depth = torch.stack([rotated[..., 0] - u * rotated[..., 2], rotated[..., 1] - v * rotated[..., 2]], dim=-1)
    by_depth = by_depth * inverse[..., None] * focal
    along = by_depth / (by_depth.norm(dim=-1, keepdim=True) + ROUNDS[0])
    in_view = ((pixels > 0) & (pixels < limits)).all(-1) & (z > MIN_DEPTH)
    return torch.minimum(pixels.clamp_min(0), limits), torch.where(in_view[..., None], along, 0), in_view


def correlate(described: Tensor, features: Tensor, pixels: Tensor, cell: int, size: tuple[int, int]) -> Tensor:
    """Products of features [N, P, 24] with those [N, M, 24] of another image around ``pixels`` (x, y) [N, P, 2].

    The window has ``REACH`` cells to each side: [N, P, cells], row by row. Interpolating products equals multiplying
    interpolated features. So products are taken at cells, one more along each axis, and features are read in rows.
    """
    rows, (x, y) = _neighbour_rows(pixels, cell, size, range(-REACH, REACH + 2))
    read = _read_rows(features, rows).flatten(2, 3)
    # A row times a matrix: a matrix times a column takes four times as long on a CPU.
    products = (described[:, :, None] @ read.transpose(2, 3)).unflatten(3, rows.shape[2:])[:, :, 0]
    across = torch.lerp(products[..., :-1], products[..., 1:], x[..., None, None])
    return torch.lerp(across[..., :-1, :], across[..., 1:, :], y[..., None, None]).flatten(2)


def interpolate(features: Tensor, pixels: Tensor, cell: int, size: tuple[int, int]) -> Tensor:
    """Features [N, M, 24] of one level, bilinear at ``pixels`` (x, y) [N, P, 2] -> [N, P, 24]."""
    rows, (x, y) = _neighbour_rows(pixels, cell, size, range(2))
    read = _read_rows(features, rows)
    across = torch.lerp(read[..., 0, :], read[..., 1, :], x[..., None, None])
    return torch.lerp(across[..., 0, :], across[..., 1, :], y[..., None])


def select_level(features: Tensor, cell: int, size: tuple[int, int]) -> Tensor:
    """One level of features [N, M, 24], as a view [N, rows, columns, 24]."""
    first, rows, columns = level_slice(cell, size)
    return features.narrow(1, first, rows * columns).view(len(features), rows, columns, -1)


def _level_shapes(size: tuple[int, int]) -> list[tuple[int, int]]:
    """Rows and columns of each level."""
    fine = (size[0] // LEVELS[0], size[1] // LEVELS[0])
    return [(-(-fine[0] * LEVELS[0] // cell), -(-fine[1] * LEVELS[0] // cell)) for cell in LEVELS]


def _cell_count(levels: Sequence[tuple[int, int]]) -> int:
    return sum(rows * columns for rows, columns in levels)


def level_slice(cell: int, size: tuple[int, int]) -> tuple[int, int, int]:
    """Index of a level's first cell among all M, and the level's rows and columns."""
    levels, number = _level_shapes(size), LEVELS.index(cell)
    return _cell_count(levels[:number]), *levels[number]


def _neighbour_rows(
    pixels: Tensor, cell: int, size: tuple[int, int], steps: range
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Indices among all N * M features of the cells around ``pixels`` [N, P, 2], int32 [N, P, down, across].

    Beyond the border the border's cell is taken. The second result is the distance in cells past the cell of step 0,
    in [0, 1), along x and y, [N, P] each.
    """
    _, height, width = level_slice(cell, size)
    step, first = _step_indices(len(pixels), cell, size, steps, pixels.device)
    position = pixels / cell - 0.5
    corner = position.floor()
    x, y = (position - corner).unbind(-1)
    across, down = corner.int()[..., None].unbind(-2)
    column, row = (across + step).clamp(0, width - 1), (down + step).clamp(0, height - 1)
    return (row * width + first)[..., :, None] + column[..., None, :], (x, y)


@cache
def _step_indices(
    images: int, cell: int, size: tuple[int, int], steps: range, device: torch.device
) -> tuple[Tensor, Tensor]:
    """``steps``, and the index of a level's first feature in each of ``images``, [N, 1, 1]. Made once: on a GPU each
    constant costs a launch."""
    step = torch.arange(steps.start, steps.stop, device=device, dtype=torch.int32)
    image = torch.arange(images, device=device, dtype=torch.int32) * _cell_count(_level_shapes(size))
    return step, (image + level_slice(cell, size)[0])[:, None, None]


def _read_rows(features: Tensor, rows: Tensor) -> Tensor:
    """features [N, M, C], ``rows`` of all N * M, int32 -> [*rows.shape, C]"""
    return features.flatten(0, 1).index_select(0, rows.flatten()).view(*rows.shape, -1)


def _repeat(x: Tensor, looks: int) -> Tensor:
    """[B, ...] -> [B * looks, ...]"""
    return x[:, None].expand(-1, looks, *x.shape[1:]).flatten(0, 1)
