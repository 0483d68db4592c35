"""Camera motion: smooth velocity with jitter, in metres and radians. World: z up. Cameras: x right, y down."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.draws import Draws, wave

WALK, STRAFE, ORBIT, SCAN, PAN, STATIC, DRIVE, DRONE, STAIRS, NADIR = range(10)
_HIGHEST = 0.45  # radians that a camera looks up at most
_FURTHEST = 5.0  # depths of the scene that a hand-held camera travels at most
_SHARP_ROTATIONS = (6.0, 20.0)  # degrees a frame
MOTIONS = {
    "rotation": PAN, "still": STATIC, "orbit": ORBIT, "stairs": STAIRS, "nadir": NADIR, "walk": WALK, "drive": DRIVE,
}  # fmt: skip
"""Motions that can be asked for by name, in clips of their own."""
_FIELDS, _NARROW_FIELDS, _WIDE_FIELDS = (34.0, 101.0), (20.0, 34.0), (101.0, 112.0)  # degrees
_USUAL_SHARE, _USUAL_FIELD, _USUAL_DEVIATION = 0.2, 66.0, 13.0


@dataclass
class Path:
    """position [B, S, 3] in metres (z relative to the eye's height of the first frame), yaw, pitch, roll [B, S] in
    radians, step [B]: the mean translation of a frame in metres."""

    position: Tensor
    yaw: Tensor
    pitch: Tensor
    roll: Tensor
    step: Tensor

    def rotation(self) -> Tensor:
        """R_world_camera [B, S, 3, 3]."""
        cy, sy = self.yaw.cos(), self.yaw.sin()
        cp, sp = self.pitch.cos(), self.pitch.sin()
        forward = torch.stack([cp * cy, cp * sy, sp], -1)
        right = torch.stack([sy, -cy, torch.zeros_like(cy)], -1)
        down = torch.linalg.cross(forward, right)
        cr, sr = self.roll.cos()[..., None], self.roll.sin()[..., None]
        return torch.stack([right * cr + down * sr, down * cr - right * sr, forward], -1)

    def poses(self) -> Tensor:
        """T_world_camera [B, S, 4, 4]."""
        clips, frames = self.yaw.shape
        T = torch.eye(4, device=self.yaw.device).repeat(clips, frames, 1, 1)
        T[..., :3, :3] = self.rotation()
        T[..., :3, 3] = self.position
        return T


def _rescale(signal: Tensor, step: Tensor) -> Tensor:
    """The signal [B, S] scaled so that its mean absolute change from frame to frame is step [B, 1]."""
    if signal.shape[1] == 1:
        return signal * step
    change = signal.diff(dim=1).abs().mean(1, keepdim=True)
    return signal * (step / change.clamp_min(1e-4))


def _speeds(draws: Draws, clips: int, frames: int, modes: Tensor, turning: float) -> tuple[Tensor, Tensor]:
    """Translation in depths of the scene and rotation in radians, per frame, [B, 1] each.

    turning: share of clips with independent rotations by `_SHARP_ROTATIONS` between frames.
    """
    # Few frames are what is left of a video with large gaps between them.
    wide = 2.2 if frames <= 4 else 1.0
    # Rooms are built around their paths: long and fast ones would end up in halls.
    fastest = min(0.2, _FURTHEST / frames)
    share = (draws.normal(clips, 1, deviation=1.1).exp() * 0.02).clamp(0.0015, fastest) * wide
    turn = (draws.normal(clips, 1, deviation=1.15).exp() * 1.3).clamp(0.04, 12.0) * wide * math.pi / 180
    m = modes[:, None]
    # From a turn on the spot to one at arm's length.
    share = torch.where(m == PAN, share * draws.log_uniform(0.0005, 0.05, clips, 1), share)
    share = torch.where(m == STAIRS, share.clamp_max(0.08), share)
    turn = torch.where(m == PAN, turn * draws.uniform(1.0, 2.5, clips, 1), turn)
    sharp = draws.uniform(*_SHARP_ROTATIONS, clips, 1) * math.pi / 180
    turn = torch.where(draws.chance(turning, clips, 1), sharp, turn)
    share = torch.where(m == STATIC, share * 0.002, share)
    turn = torch.where(m == STATIC, turn * 0.01, turn)
    turn = torch.where((m == DRIVE) | (m == DRONE) | (m == NADIR), turn * 0.35, turn)
    return share, turn


def _speed_of_cars(draws: Draws, clips: int, frames: int) -> Tensor:
    """Metres a frame, [B, 1]: from a slow car at 30 frames a second to a fast one at 10, in any scene.

    Straight ahead, a wide view looks like a fast drive. So speeds are log-uniform: from usual speeds a network would
    infer the field of view, and fail at others. Long clips stay on their street.
    """
    return draws.log_uniform(0.1, 3.2, clips, 1).clamp_max(100.0 / frames)


def draw_path(
    draws: Draws, weights: dict[int, float], frames: int, depth: Tensor, close: float = 0.0, turning: float = 0.0
) -> Path:
    """Paths of clips whose scenes are about depth [B] metres deep. weights: probability of each mode; close:
    probability of handheld motion by a few centimetres a frame that looks down on near objects; turning: probability
    of sharp rotations."""
    clips = depth.shape[0]
    modes = draws.constant(list(weights), torch.int64)[draws.choice(list(weights.values()), clips)]
    m = modes[:, None]
    share, turn = _speeds(draws, clips, frames, modes, turning)
    down = draws.chance(close, clips, 1)
    share = torch.where(down, share * draws.log_uniform(0.2, 0.7, clips, 1), share)
    step = torch.where(m == DRIVE, _speed_of_cars(draws, clips, frames), share * depth[:, None])
    time = torch.arange(frames, device=draws.device, dtype=torch.float32)[None]

    def slow(parts: int = 3) -> Tensor:
        return wave(draws, clips, frames, 0.02, 0.35, parts)

    # Rotation: drift, slow wandering, and a shaking hand.
    drift = draws.normal(clips, 1) * time * draws.chance(0.5, clips, 1)
    shake = draws.log_uniform(0.02, 0.35, clips, 1) * wave(draws, clips, frames, 0.5, 2.5)
    yaw = draws.uniform(0, 2 * math.pi, clips, 1) + _rescale(drift + 3 * slow() + shake, turn)
    tilt = _rescale(slow() + 0.3 * shake, turn * draws.uniform(0.1, 0.6, clips, 1))
    pitch = tilt + draws.normal(clips, 1, deviation=0.15) - 0.1
    pitch = torch.where(down, pitch - draws.uniform(0.1, 0.5, clips, 1), pitch)
    pitch = torch.where(m == DRONE, tilt - draws.uniform(0.15, 1.25, clips, 1), pitch)
    pitch = torch.where(m == NADIR, 0.3 * tilt - draws.uniform(1.2, 1.45, clips, 1), pitch)
    climb = draws.sign(clips, 1) * draws.uniform(0.35, 0.75, clips, 1) * (m == STAIRS)
    pitch = pitch + climb * draws.uniform(-0.2, 0.6, clips, 1)
    pitch = torch.where(m == DRIVE, 0.1 * tilt + draws.normal(clips, 1, deviation=0.03), pitch)
    lean = torch.where(draws.chance(0.1, clips, 1), draws.normal(clips, 1, deviation=0.35), 0.0)
    sway = _rescale(slow() + 0.5 * shake, turn * draws.uniform(0.05, 0.4, clips, 1))
    roll = draws.normal(clips, 1, deviation=0.035) + lean + sway * (m != DRIVE)

    # Translation along a heading that follows the view.
    side = torch.where(m == STRAFE, draws.sign(clips, 1) * math.pi / 2, 0.0)
    side = torch.where((m == WALK) & draws.chance(0.15, clips, 1), math.pi, side)
    heading = yaw + side + draws.normal(clips, 1, deviation=0.25) + 0.3 * slow()
    heading = torch.where(m == DRIVE, yaw, heading)
    heading = torch.where((m == DRONE) | (m == NADIR), draws.uniform(0, 2 * math.pi, clips, 1) + 0.3 * slow(), heading)
    pace = (1 + 0.4 * slow()).clamp_min(0.05)
    travel = torch.stack([pace * heading.cos(), pace * heading.sin()], -1).cumsum(1)
    rise = draws.uniform(0.0, 0.4, clips, 1) * 3 * slow() + 0.25 * shake
    rise = rise + climb * pace.cumsum(1)
    position = torch.cat([travel, torch.where(m == DRIVE, 0.02 * rise, rise)[..., None]], -1)
    # A hand that scans: three waves, so that it comes back to where it was.
    scan = 6 * torch.stack([slow(), slow(), 0.6 * slow()], -1)
    position = torch.where((m == SCAN)[..., None], scan, position)
    orbit, orbit_yaw = _orbit(draws, depth, step, pace, slow())
    position = torch.where((m == ORBIT)[..., None], orbit, position)
    yaw = torch.where(m == ORBIT, orbit_yaw + 0.3 * sway, yaw)
    position = position - position[:, :1]
    length = position.diff(dim=1).norm(dim=-1).mean(1) if frames > 1 else torch.ones_like(depth)
    position = position * (step[:, 0] / length.clamp_min(1e-5))[:, None, None]

    path = Path(position, yaw, pitch, roll, step[:, 0])
    return _jitter(draws, _revisit(draws, path), turn)


def _orbit(draws: Draws, depth: Tensor, step: Tensor, pace: Tensor, wander: Tensor) -> tuple[Tensor, Tensor]:
    """A circle about something at the scene's depth, looked at."""
    clips = depth.shape[0]
    radius = depth[:, None] * draws.uniform(0.5, 1.2, clips, 1) * (1 + 0.1 * wander)
    start = draws.uniform(0, 2 * math.pi, clips, 1)
    angle = start + draws.sign(clips, 1) * torch.cumsum(pace * step / (depth[:, None] * 0.85), 1)
    position = torch.stack([radius * angle.cos(), radius * angle.sin(), 0.05 * depth[:, None] * wander], -1)
    return position, angle + math.pi


def _revisit(draws: Draws, path: Path) -> Path:
    """Some clips turn back half-way and see the same places again."""
    frames = path.yaw.shape[1]
    if frames < 8:
        return path
    back = draws.chance(0.15, path.yaw.shape[0], 1)
    time = torch.arange(frames, device=path.yaw.device)
    mirrored = torch.minimum(time, frames - 1 - time)
    angles = [torch.where(back, x[:, mirrored], x) for x in (path.yaw, path.pitch, path.roll)]
    position = torch.where(back[..., None], path.position[:, mirrored], path.position)
    return Path(position, angles[0], angles[1], angles[2], path.step)


def _jitter(draws: Draws, path: Path, turn: Tensor) -> Path:
    """Jitter, independent from frame to frame."""
    clips, frames = path.yaw.shape
    size = turn * draws.log_uniform(0.01, 0.3, clips, 1)
    yaw, pitch, roll = (
        x + size * weight * draws.normal(clips, frames)
        for x, weight in ((path.yaw, 1.0), (path.pitch, 1.0), (path.roll, 0.6))
    )
    shift = path.step[:, None, None] * draws.log_uniform(0.01, 0.15, clips, 1, 1)
    position = path.position + shift * draws.normal(clips, frames, 3)
    # Hardly anybody films the ceiling or the sky alone.
    pitch = torch.where(pitch > 0, _HIGHEST * torch.tanh(pitch / _HIGHEST), pitch.clamp_min(-1.45))
    return Path(position, yaw, pitch, roll, path.step)


def draw_focal(draws: Draws, clips: int, height: int, width: int, narrow: float = 0.0, wide: float = 0.0) -> Tensor:
    """Focal lengths fx, fy in pixels [B, 2]: 34 to 101 degrees over the longer side, of the share ``narrow`` of clips
    20 to 34 (zoomed in), of the share ``wide`` 101 to 112.

    A fifth of the others are spread as those of most cameras, about the middle, and the rest evenly.
    Pixels are square within 2 %, which is what fitting videos to patch grids bends them by; a few clips are bent by
    more.
    """
    middle = draws.normal(clips, deviation=_USUAL_DEVIATION) + _USUAL_FIELD
    even = draws.uniform(*_FIELDS, clips)
    field = torch.where(draws.chance(_USUAL_SHARE, clips), middle, even).clamp(*_FIELDS)
    quantile = draws.uniform(0.0, 1.0, clips)
    field = torch.where(quantile < narrow, draws.uniform(*_NARROW_FIELDS, clips), field)
    field = torch.where(quantile >= 1 - wide, draws.uniform(*_WIDE_FIELDS, clips), field)
    focal = 0.5 * max(height, width) / torch.tan(field * (math.pi / 360))
    limit = torch.where(draws.chance(0.08, clips), 0.05, 0.02)
    squeeze = limit * draws.uniform(-1.0, 1.0, clips) * draws.chance(0.7, clips)
    return torch.stack([focal * (1 + squeeze / 2), focal * (1 - squeeze / 2)], -1)
