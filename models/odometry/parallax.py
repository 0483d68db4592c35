"""What matches say of the depth of their points, once the motion of the camera is known."""

import torch
import torch.nn.functional as F
from torch import Tensor

from stream_recon.models.odometry.pnp import MIN_DEPTH, ROBUST_ANGLE, TINY

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
