"""Temporal depth fusion: depth maps of a stream in one scale, consistent with each other and with matches.

A network estimates the depth of each frame nearly independently. Its scale drifts, outdoors by a third within fifty
frames, and its shape has another error each time. The motion between two keyframes is known, so the map of the last
keyframe can be warped to the next frame. The common difference of the two is a change of scale; the remaining
differences are errors of either. Where the camera translated, matches also measure depth (`disparity_evidence`). That
evidence is kept as a coarse correction of the map and propagated from keyframe to keyframe.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.pnp import MIN_DEPTH, ROBUST_ANGLE, SUPPORTED, RelativeMotion
from stream_recon.models.odometry.sampling import at_centers, cell_centers
from stream_recon.models.pose import TINY

SCALE_DECAY = 0.975
"""Share of a scale correction that remains from one keyframe to the next that sees all of it. Scales compared step by
step drift too, faster where the two frames overlap less."""
SAME_SURFACE = 0.3
"""Standard deviation of log depth between two maps of one surface; larger differences are of different surfaces."""
SMALL_CHANGE = 0.03
"""Log scale: changes from frame to frame below this are mostly measurement errors, and would add up."""
MIN_CONFIDENCE = 0.3
"""Share of the median confidence; pixels below it are left out of the scale."""
SPACING = 4
"""Every fourth pixel along each axis is enough for the scale's median."""
MIN_OVERLAP = 0.05
"""Share of these pixels that the keyframe before has to see for a measured scale."""
DEPTH_SIGMA = 0.12
"""Standard deviation of log depth where there is no evidence from matches."""
EVIDENCE_DECAY = 0.8
"""Share of the evidence that remains from one keyframe to the next: errors of matches are correlated in time."""
MAX_CORRECTION = 0.4
"""Largest correction of log depth by evidence."""


@dataclass(frozen=True)
class DepthState:
    """Fused depth of the last keyframe of each of B streams."""

    maps: Tensor  # [B, 2, H, W]: log depth in the network's own scale, and log confidence
    log_scale: Tensor  # [B]: added to that log depth
    correction: Tensor
    """[B, 2, Y, X]: from evidence, a correction added to that log depth, upsampled; and its information
    (1 / variance)."""

    @staticmethod
    def from_maps(maps: Tensor, cells: Sequence[int]) -> "DepthState":
        """``maps`` without any correction; ``cells``: rows and columns of the correction."""
        return DepthState(maps, maps.new_zeros(len(maps)), maps.new_zeros(len(maps), 2, *cells))

    @property
    def log_depth_at_centers(self) -> Tensor:
        """[B, Y, X]: fused log depth in the middle of the correction's cells."""
        coarse = at_centers(self.maps[:, 0], self.correction.shape[-2:])
        return coarse + self.log_scale[:, None, None] + self.correction[:, 0]

    @property
    def log_depth(self) -> Tensor:
        """[B, H, W]: fused log depth."""
        return self.maps[:, 0] + self.log_scale[:, None, None] + _upsample(self.correction[:, :1], self.maps)[:, 0]


def propagate_depth(
    maps: Tensor, measured: RelativeMotion, last: DepthState | None
) -> tuple[Tensor, Tensor, DepthState]:
    """Fuse each frame's depth with that of the keyframe before.

    Args:
        maps: [B, S, 2, H, W]: log depth and log confidence, as the depth head gives them.
        measured: motion and evidence of the same frames.
        last: state of the keyframe before the first frame; None: the first frame's depth stays the head's.

    Returns fused log depth [B, S, H, W]; the log scales [B, S] that are part of it; the state after the last frame.
    """
    depths, scales = [], []
    for frame in range(maps.shape[1]):
        own = maps[:, frame]
        if last is None:
            last = DepthState.from_maps(own, measured.evidence.shape[-2:])
        else:
            last = _fuse_frame(own, measured, frame, last)
        scales.append(last.log_scale)
        depths.append(last.log_depth)
    assert last is not None
    return torch.stack(depths, dim=1), torch.stack(scales, dim=1), last


def _fuse_frame(own: Tensor, measured: RelativeMotion, frame: int, last: DepthState) -> DepthState:
    motion, evidence = measured.motion[:, frame], measured.evidence[:, frame]
    focal = measured.focal[:, frame].unbind(-1)
    log_depth, log_confidence = own.unbind(1)
    difference, last_confidence = _warped_difference(log_depth, motion, focal, last.maps)
    overlap = difference.isfinite().float().mean((1, 2))
    trusted = (measured.support[:, frame] > SUPPORTED)[:, None, None]
    median = _median_difference(difference, log_confidence, last_confidence)
    change = torch.where(trusted[:, 0, 0], _shrink(median), 0)
    residual = difference - change[:, None, None]
    # Confidence weighs as precision does. Pixels out of view are NaN and stay as they are.
    share = torch.sigmoid(last_confidence - log_confidence) * torch.exp(-0.5 * (residual / SAME_SURFACE).square())
    update = torch.where(trusted & residual.isfinite(), share * residual, 0)
    cells = evidence.shape[-2:]
    added, information = _upsample(last.correction, own).unbind(1)
    corrected = torch.stack([last.maps[:, 0] + added, information], dim=1)
    difference, information = _warped_difference(at_centers(log_depth, cells), motion, focal, corrected)
    coarse_update = at_centers(update, cells)
    residual = difference - change[:, None, None] - coarse_update
    correction = _next_correction(residual, information, coarse_update, evidence * trusted[:, None])
    maps = torch.stack([log_depth + update, log_confidence], dim=1)
    log_scale = SCALE_DECAY ** (1 / overlap.clamp_min(MIN_OVERLAP)) * last.log_scale + change
    return DepthState(maps, log_scale, torch.where(trusted[:, None], correction, 0))


def _next_correction(residual: Tensor, information: Tensor, update: Tensor, evidence: Tensor) -> Tensor:
    """The correction [B, 2, Y, X] from the one before and new evidence.

    ``residual`` [B, Y, X] is the correction before, warped, NaN where it was out of view, with ``information``.
    Evidence is relative to the depth before its ``update``.
    """
    agreement = torch.exp(-0.5 * (residual / SAME_SURFACE).square())
    information = torch.where(residual.isfinite(), EVIDENCE_DECAY * information * agreement, 0)
    weighted, new = evidence.unbind(1)
    correction = (information * residual.nan_to_num() + weighted - new * update) / (information + new + DEPTH_SIGMA**-2)
    return _zero_mean(correction, information + new)


def add_evidence(state: DepthState, evidence: Tensor) -> DepthState:
    """The state after more evidence [B, 2, Y, X], as `disparity_evidence` gives it, relative to its fused depth."""
    correction, information = state.correction.unbind(1)
    weighted, new = evidence.unbind(1)
    information = information + new
    correction = _zero_mean(correction + weighted / (information + DEPTH_SIGMA**-2), information)
    return DepthState(state.maps, state.log_scale, correction)


def _zero_mean(correction: Tensor, information: Tensor) -> Tensor:
    """A correction [B, Y, X] without its weighted mean, and its information: [B, 2, Y, X].

    Evidence measures depth relative to the length of the motion, so it cannot determine the scale.
    """
    share = information / (information + DEPTH_SIGMA**-2)
    mean = (correction * share).sum((1, 2)) / share.sum((1, 2)).clamp_min(TINY)
    correction = (correction - mean[:, None, None]).clamp(-MAX_CORRECTION, MAX_CORRECTION)
    return torch.stack([correction, information], dim=1)


def _warped_difference(
    log_depth: Tensor, motion: Tensor, focal: Sequence[Tensor], last: Tensor
) -> tuple[Tensor, Tensor]:
    """The last keyframe's log depth, warped to this frame, minus ``log_depth`` [B, Y, X]; NaN where out of view.

    ``log_depth`` is of the centres of Y x X equal cells. The second result is the other channel of the last keyframe's
    map [B, 2, H, W] at the same points, [B, Y, X].
    """
    height, width = last.shape[-2:]
    fx, fy = (x[:, None, None] for x in focal)
    pixels = cell_centers((height, width), (log_depth.shape[-2], log_depth.shape[-1]), log_depth.device)
    u, v = pixels[..., 0] - width / 2, pixels[..., 1] - height / 2
    R, t = motion[..., :3, None, None], motion[..., 3, None, None]
    rays = R[:, :, 0] * (u / fx)[:, None] + R[:, :, 1] * (v / fy)[:, None] + R[:, :, 2]
    x, y, z = (rays * log_depth.exp()[:, None] + t).unbind(1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    projected = torch.stack([x * inverse * fx * (2 / width), y * inverse * fy * (2 / height)], dim=-1)
    # Nearest, not interpolated: across an edge a value in between is neither surface.
    sampled = F.grid_sample(last, projected, mode="nearest", align_corners=False)
    in_view = (projected.abs() < 1).all(-1) & (z > MIN_DEPTH)
    warped = (sampled[:, 0].exp() - t[:, 2]) / rays[:, 2]
    in_view = in_view & (warped > MIN_DEPTH)
    difference = warped.clamp_min(MIN_DEPTH).log() - log_depth
    return torch.where(in_view, difference, torch.nan), sampled[:, 1]


def _upsample(x: Tensor, like: Tensor) -> Tensor:
    return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)


def _median_difference(difference: Tensor, log_confidence: Tensor, last_confidence: Tensor) -> Tensor:
    """The median [B] over pixels that are confident in both frames; 0 where these are too few."""
    maps = (difference, log_confidence, last_confidence)
    difference, own, last = (x[:, ::SPACING, ::SPACING].flatten(1) for x in maps)
    floor = own.median(dim=1, keepdim=True).values + math.log(MIN_CONFIDENCE)
    chosen = torch.where(torch.minimum(own, last) > floor, difference, torch.nan)
    enough = chosen.isfinite().float().mean(1) > MIN_OVERLAP
    return torch.where(enough, chosen.nanmedian(dim=1).values.nan_to_num(), 0)


def _shrink(change: Tensor) -> Tensor:
    """Changes much larger than `SMALL_CHANGE` nearly unchanged, much smaller ones nearly 0."""
    return change * change.square() / (change.square() + SMALL_CHANGE**2)


EVIDENCE_SIGMA = 0.006
"""Radians: standard deviation of a match of weight 1. Larger than `pnp.MATCH_SIGMA`: errors of neighbours correlate."""
NEIGHBOURHOOD = 3
"""Cells along each side of the square over which evidence is averaged."""


@torch.no_grad()
def disparity_evidence(points: Tensor, target: Tensor, weight: Tensor, motion: Tensor) -> Tensor:
    """Evidence of matches for the logarithm of each point's depth, to first order.

    A point moves along its epipolar line as its depth changes. The residual along that line measures the depth's
    error, more precisely for a longer translation. A match off the line is likely an outlier, and counts less.

    Args:
        points: [N, Y, X, 3], by the estimated depth.
        target: [N, Y, X, 2], their matches in the other image (x / z, y / z).
        weight: [N, Y, X], above 0.
        motion: [N, 3, 4], as `solve_pnp` gives it.

    Returns [N, 2, Y, X]: information (1 / variance) times the correction of the log depth, and the information.
    """
    rotated = torch.einsum("nij,nyxj->nyxi", motion[:, :, :3], points)
    x, y, z = (rotated + motion[:, None, None, :, 3]).unbind(-1)
    inverse = 1 / z.clamp_min(MIN_DEPTH)
    u, v = x * inverse, y * inverse
    residual_u, residual_v = u - target[..., 0], v - target[..., 1]
    # Derivatives of u and v by the logarithm of the depth, as in `solve_pnp`.
    g_u, g_v = (rotated[..., 0] - u * rotated[..., 2]) * inverse, (rotated[..., 1] - v * rotated[..., 2]) * inverse
    squared = g_u * g_u + g_v * g_v
    across = (residual_u * g_v - residual_v * g_u).square() / squared.clamp_min(TINY)
    precision = weight * (z > MIN_DEPTH) / (1 + across / ROBUST_ANGLE**2) / EVIDENCE_SIGMA**2
    evidence = torch.stack([-precision * (residual_u * g_u + residual_v * g_v), precision * squared], dim=1)
    return average_neighbours(evidence)


def average_neighbours(evidence: Tensor) -> Tensor:
    """Evidence [N, 2, Y, X] as the mean over neighbouring cells (box filter)."""
    return F.avg_pool2d(evidence, NEIGHBOURHOOD, 1, NEIGHBOURHOOD // 2, count_include_pad=False)
