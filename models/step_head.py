"""The motion of each frame since the cached frame before it, solved from matches of the image and the frame's depth.

The camera head says poses from one token a frame; what the patches know of the motion gets there only in part. This
head reads the flow at four points of each patch from the aggregator's tokens, sharpens it by comparing the encoder
stem's features of both images around the matches (as RAFT does, Teed & Deng 2020), and solves for the rigid motion that
moves the points, put into space by the frame's depth, along it: perspective-n-point by Gauss-Newton, weights learned.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.dpt_head import project_channels
from stream_recon.models.encoder import STEM_CHANNELS
from stream_recon.models.layers import Block, Mlp, attend_within
from stream_recon.models.pose import focal_lengths
from stream_recon.models.rope import frame_rotation, rotate_frame

WIDTH, HEADS = 128, 4
TAPS = (1, 3)
"""Of the aggregator's outputs."""
SAMPLES = 2
"""Points along each side of a patch."""
CONTEXT = 16
FEATURES = 16
REACH = 2
"""Features are compared so many places to each side of a match."""
SPACINGS = (4, 2)
"""Pixels from one place to the next, in each round."""
SHARPNESS = 5.0
"""Factor on cosines of features."""
ITERATIONS = 5
ROBUST_FROM = 2
"""Iterations of the solver from which on matches far from the motion count less (Cauchy's weight)."""
ROBUST_ANGLE = 0.008
"""Radians; matches that are farther off count less than half."""
DAMPING = 1e-3
"""Of the mean of the information's diagonal: what no match says anything of stays where it is."""
MIN_DEPTH = 0.01
"""Units of the reconstruction; what comes nearer to the camera before is left out."""
FARTHEST = 100.0
"""Units of the reconstruction; farther points say nothing more of translation."""


@dataclass(frozen=True)
class Step:
    """Of D frames each."""

    flows: Tensor
    """[R, B, D, 2*gh, 2*gw, 2]: motion (x, y) in patches to the cached frame before, from the tokens and then after
    each round."""
    log_weight: Tensor
    """[B, D, 2*gh, 2*gw]: of each match in the solution."""
    motion: Tensor
    """[B, D, 3, 4]: rotation and translation from this camera's frame to the one before."""
    information: Tensor
    """[B, D, 6, 6] of (rotation vector, translation), left multiplied, in radians and the reconstruction's units."""


@lru_cache(maxsize=32)
def sample_places(grid: tuple[int, int], patch: int, device: torch.device) -> Tensor:
    """Pixels (x, y) of the points, [2*gh, 2*gw, 2], pixel centres at .5; as `targets.sample_centres` has them."""
    cell = patch // SAMPLES
    ys = torch.arange(cell // 2, grid[0] * patch, cell, device=device) + 0.5
    xs = torch.arange(cell // 2, grid[1] * patch, cell, device=device) + 0.5
    y, x = torch.meshgrid(ys, xs, indexing="ij")
    return torch.stack([x, y], dim=-1)


def spread(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """What tokens say of their points, [N, gh*gw, 4*C] -> [N, 2*gh, 2*gw, C]."""
    x = x.unflatten(1, grid).unflatten(-1, (SAMPLES, SAMPLES, -1)).transpose(2, 3)
    return x.flatten(3, 4).flatten(1, 2)


class StepHead(nn.Module):
    def __init__(self, config: NetworkConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.norm = nn.LayerNorm(2 * config.dim)
        self.project = nn.Linear(len(TAPS) * 2 * config.dim, WIDTH)
        self.blocks = nn.ModuleList(
            Block(WIDTH, HEADS, 4.0, qk_norm=True, eps=1e-5, layer_scale=0.1) for _ in range(config.step_blocks)
        )
        self.out_norm = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, SAMPLES * SAMPLES * (2 + CONTEXT))
        self.features1 = nn.Conv2d(STEM_CHANNELS, STEM_CHANNELS, 3, padding=1)
        self.features2 = nn.Conv2d(STEM_CHANNELS, FEATURES, 1)
        places = (2 * REACH + 1) ** 2
        self.rounds = nn.ModuleList(Mlp(places + CONTEXT, 64, 2 + CONTEXT) for _ in SPACINGS)
        self.weigh = Mlp(CONTEXT, 32, 1)

    def describe(self, detail: Tensor) -> Tensor:
        """The stem's detail [N, 32, H/2, W/2] -> features [N, 16, H/2, W/2] to be compared, of length 1 at each place."""
        x = project_channels(F.gelu(self.features1(detail)), self.features2)
        return F.normalize(x.float(), dim=1)

    def forward(
        self, taps: list[Tensor], features: Tensor, before: Tensor, log_depth: Tensor, pose: Tensor, clips: int
    ) -> Step:
        """N = clips * D frames: taps [N, gh*gw, 2*dim] each, features and those of the cached frame before
        [N, 16, H/2, W/2] from `describe`, log depth [N, H, W], pose codes [N, 9]."""
        height, width = log_depth.shape[-2:]
        grid = (height // self.patch_size, width // self.patch_size)
        x = self.project(torch.cat([self.norm(taps[i]) for i in TAPS], dim=-1))
        rotation = frame_rotation(grid, 0, WIDTH // HEADS, x.device)
        for block in self.blocks:
            x = block(x, attend_within, rotate_frame, rotation)
        said = spread(self.out(self.out_norm(x)).float(), grid)
        flow, context = said[..., :2], said[..., 2:]
        places = sample_places(grid, self.patch_size, x.device)
        flows = [flow]
        size = (height, width)
        own = _sampled(features, places.flatten(0, 1)[None, :, None].expand(len(x), -1, -1, -1), size)
        pooled = F.avg_pool2d(before, 2)
        for spacing, update in zip(SPACINGS, self.rounds, strict=True):
            # As in RAFT: each round learns its own correction, so no gradient through where it looks.
            flow = flow.detach()
            around = (places + flow * self.patch_size).flatten(1, 2)
            looked = around[:, :, None] + _window(spacing, x.device)
            seen = _sampled(pooled if spacing == SPACINGS[0] else before, looked, size)
            alike = (own * seen).sum(1).unflatten(1, flow.shape[1:3]) * SHARPNESS
            change = update(torch.cat([alike, context], dim=-1)).float()
            flow = flow + change[..., :2] * (spacing / self.patch_size)
            context = context + change[..., 2:]
            flows.append(flow)
        log_weight = self.weigh(context).float()[..., 0].clamp(-8, 8)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            rays, lengths = _rays(places, pose, height, width)
            depth = log_depth.float()[:, places[:, 0, 1].long()][:, :, places[0, :, 0].long()].exp().clamp_max(FARTHEST)
            points = rays * depth[..., None]
            target = rays[..., :2] + flow * (self.patch_size / lengths[:, None, None])
            motion, information = solve(points.flatten(1, 2), target.flatten(1, 2), log_weight.flatten(1).exp())

        def split(t: Tensor) -> Tensor:
            return t.unflatten(0, (clips, -1))

        return Step(torch.stack([split(f) for f in flows]), split(log_weight), split(motion), split(information))


@lru_cache(maxsize=8)
def _window(spacing: int, device: torch.device) -> Tensor:
    """Offsets (x, y) in pixels, [places, 2]."""
    steps = torch.arange(-REACH, REACH + 1, device=device, dtype=torch.float32) * spacing
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    return torch.stack([x, y], dim=-1).flatten(0, 1)


def _sampled(features: Tensor, places: Tensor, size: tuple[int, int]) -> Tensor:
    """features [N, C, h, w] of an image of ``size`` (height, width) at ``places`` [N, P, K, 2], (x, y) in its pixels ->
    [N, C, P, K]; beyond the border what is on it."""
    middle = places.new_tensor((size[1] / 2, size[0] / 2))
    return F.grid_sample(features, places / middle - 1, mode="bilinear", padding_mode="border", align_corners=False)


def _rays(places: Tensor, pose: Tensor, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Rays through places [Y, X, 2] at depth 1, [N, Y, X, 3], and focal lengths (x, y) [N, 2], from pose codes."""
    fx, fy = focal_lengths(pose.float(), height, width)
    lengths = torch.stack([fx, fy], dim=-1)
    middle = places - torch.stack([places.new_full((), width / 2), places.new_full((), height / 2)])
    flat = middle / lengths[:, None, None]
    return torch.cat([flat, torch.ones_like(flat[..., :1])], dim=-1), lengths


def solve(points: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The rigid motion that makes points [N, P, 3] project to ``target`` [N, P, 2] (x / z, y / z), weights [N, P]: [N, 3, 4],
    and its information [N, 6, 6] under the residuals that are left.

    Gauss-Newton from rest. The gradient is that of the last iteration, which is the solution's where it has converged.
    """
    N = len(points)
    R = torch.eye(3, device=points.device).expand(N, 3, 3)
    t = points.new_zeros(N, 3)
    share, H = weight, points.new_zeros(N, 6, 6)
    residual = points.new_zeros(points[..., :2].shape)
    for iteration in range(ITERATIONS):
        last = iteration == ITERATIONS - 1
        with torch.set_grad_enabled(last and torch.is_grad_enabled()):
            moved = points @ R.transpose(1, 2) + t[:, None]
            x, y, z = moved.unbind(-1)
            inverse = 1 / z.clamp_min(MIN_DEPTH)
            u, v = x * inverse, y * inverse
            residual = torch.stack([u, v], dim=-1) - target
            share = weight * (z > MIN_DEPTH)
            if iteration >= ROBUST_FROM:
                squared = residual.detach().square().sum(-1)
                share = share / (1 + squared / ROBUST_ANGLE**2)
            zero = torch.zeros_like(u)
            # Rows of the Jacobian: of u and of v, by rotation (left) and translation.
            of_u = torch.stack([-u * v, 1 + u * u, -v, inverse, zero, -u * inverse], dim=-1)
            of_v = torch.stack([-1 - v * v, u * v, u, zero, inverse, -v * inverse], dim=-1)
            J = torch.stack([of_u, of_v], dim=2).flatten(1, 2)  # [N, 2P, 6]
            w = share.repeat_interleave(2, dim=1)
            H = (J * w[..., None]).transpose(1, 2) @ J
            g = (J * w[..., None]).transpose(1, 2) @ residual.flatten(1)[..., None]
            diagonal = H.diagonal(dim1=1, dim2=2)
            damped = H + torch.diag_embed(DAMPING * diagonal + 1e-6 * diagonal.mean(-1, keepdim=True) + 1e-9)
            change = -torch.linalg.solve_ex(damped, g)[0][..., 0]
            turn = rotation_from_vector(change[:, :3])
            R, t = turn @ R, (turn @ t[..., None])[..., 0] + change[:, 3:]
    spread_squared = (share * residual.square().sum(-1)).sum(1) / share.sum(1).clamp_min(1e-9)
    information = H / spread_squared.clamp_min(1e-8)[:, None, None]
    return torch.cat([R, t[..., None]], dim=-1), information


def rotation_from_vector(vector: Tensor) -> Tensor:
    """Rotation vectors [N, 3] in radians -> matrices [N, 3, 3] (Rodrigues)."""
    x, y, z = vector.unbind(-1)
    zero = torch.zeros_like(x)
    K = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).unflatten(-1, (3, 3))
    squared = vector.square().sum(-1)[:, None, None] + 1e-12
    angle = squared.sqrt()
    return torch.eye(3, device=vector.device) + K * (angle.sin() / angle) + K @ K * ((1 - angle.cos()) / squared)


def vector_from_rotation(R: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3], turned by less than half a turn -> rotation vectors [..., 3] in radians."""
    axis = (
        torch.stack([R[..., 2, 1] - R[..., 1, 2], R[..., 0, 2] - R[..., 2, 0], R[..., 1, 0] - R[..., 0, 1]], dim=-1) / 2
    )
    sine = axis.norm(dim=-1, keepdim=True)
    cosine = (R.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True) - 1) / 2
    return axis * (torch.atan2(sine, cosine) / sine.clamp_min(1e-9))


def follow(T_head: Tensor, motion: Tensor, share: float) -> Tensor:
    """Poses [B, S, 4, 4] that follow each frame's ``motion`` [B, S, 3, 4] since the frame before it, drawn towards those
    of the camera head [B, S, 4, 4] by what is left of ``share``: what the steps lose over time, the head holds."""
    poses = [T_head[:, 0]]
    for frame in range(1, T_head.shape[1]):
        last = poses[-1]
        R = last[:, :3, :3] @ motion[:, frame, :, :3]
        t = last[:, :3, 3] + (last[:, :3, :3] @ motion[:, frame, :, 3:])[..., 0]
        apart = vector_from_rotation(R.transpose(1, 2) @ T_head[:, frame, :3, :3])
        pose = T_head[:, frame].clone()
        pose[:, :3, :3] = R @ rotation_from_vector(apart * (1 - share))
        pose[:, :3, 3] = share * t + (1 - share) * T_head[:, frame, :3, 3]
        poses.append(pose)
    return torch.stack(poses, dim=1)
