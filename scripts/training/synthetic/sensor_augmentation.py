"""Camera and sensor augmentation: motion blur, rolling shutter, lens, exposure, local contrast, colour, blur,
sharpening, noise, coarser colour than brightness, black borders, JPEG.

Labels stay those of the ideal pinhole at the middle of the exposure; what moves pixels is kept small and to a
minority of clips.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from training.synthetic.draws import Draws, SamplingProbability, wave
from training.synthetic.style_augmentation import apply_style, draw_style

_TAPS = 7  # of a motion blur
_PART = 8  # pixels along a part of an image whose brightness is evened out
_FAR_AWAY = 200.0  # metres, where there is no surface


@dataclass
class LensDistortion:
    """Geometric defects of clips [B]: radial distortion at the corners, readout of the rolling shutter and
    exposure, both in frame intervals; offset of the optical axis from the centre [B, 2], in image widths."""

    distortion: Tensor
    readout: Tensor
    exposure: Tensor
    shift: Tensor


@dataclass
class Tone:
    """Photometric defects of frames: gain [F, 3], all others [F].

    lift: stray light, the value of black. local: share of coarse brightness differences that is removed, as by phones.
    blur: pixels. detail: share of the detail lost by blur that is added back (0 blurs, 1 changes nothing, more
    sharpens). smear: pixels by which colour and its noise are blurred.
    """

    gain: Tensor
    saturation: Tensor
    contrast: Tensor
    gamma: Tensor
    lift: Tensor
    vignette: Tensor
    local: Tensor
    blur: Tensor
    detail: Tensor
    noise: Tensor
    shot: Tensor
    smear: Tensor


class SensorAugmentation:
    """Random defects of cameras: geometry on every second clip, JPEG on every third, tone on all, borders on some.

    plain: share of clips with small defects, as in most videos; odd_looks: share with style augmentation first.
    """

    def __init__(self, draws: Draws, compile: bool, plain: float = 0.0, odd_looks: float = 0.0) -> None:
        self._draws = draws
        self._plain = plain
        self._odd = SamplingProbability(draws, odd_looks)
        # JPEG is not compiled: that takes most of a minute for each image size.
        self._tone: Callable[..., Tensor] = torch.compile(apply_tone, dynamic=False) if compile else apply_tone

    def __call__(self, images: Tensor, depth: Tensor, poses: Tensor, intrinsics: Tensor) -> Tensor:
        """Augmented images [B, S, 3, H, W] of clean ones."""
        clips, frames, _, height, width = images.shape
        images = images.clone()
        odd = self._odd.some(clips)
        if odd is not None:
            images[odd] = apply_style(images[odd], draw_style(self._draws, len(odd)))
        plain = self._draws.chance(self._plain, clips)
        some = slice(0, None, 2)
        lens = draw_lens(self._draws, plain[some])
        images[some] = apply_lens(images[some], depth[some], poses[some], intrinsics[some], lens)
        tone = draw_tone(self._draws, images.mean((2, 3, 4)), plain)
        flat = images.view(clips * frames, 3, height, width)
        noise = self._draws.normal(*flat.shape)
        images = self._tone(flat, tone, noise).view(images.shape)
        images = images * draw_borders(self._draws, clips, height, width)[:, None, None]
        some = slice(0, None, 3)
        part = images[some]
        quality = self._draws.uniform(15.0, 95.0, part.shape[0])
        # Videos downscaled for the network have smaller blocks.
        quality = torch.where(plain[some], 70 + 0.25 * quality, quality)
        flat = part.reshape(-1, 3, height, width)
        images[some] = apply_jpeg(flat, quality.repeat_interleave(frames), self._draws.constant(LUMA)).view(part.shape)
        return images


def draw_lens(draws: Draws, plain: Tensor) -> LensDistortion:
    """A lens for each clip; many have no distortion, no rolling shutter, or no blur. Exposures of ``plain`` ones
    (bool [B]) are short."""
    clips = plain.shape[0]
    return LensDistortion(
        draws.uniform(-0.03, 0.03, clips) * draws.chance(0.4, clips),
        draws.uniform(-0.35, 0.35, clips) * draws.chance(0.4, clips),
        draws.uniform(0.1, 0.7, clips) * draws.chance(0.6, clips) * torch.where(plain, 0.4, 1.0),
        draws.uniform(-0.02, 0.02, clips, 2) * draws.chance(0.3, clips, 1),
    )


def apply_lens(images: Tensor, depth: Tensor, poses: Tensor, intrinsics: Tensor, lens: LensDistortion) -> Tensor:
    """Images [B, S, 3, H, W] resampled along the motion of their pixels."""
    clips, _, _, height, width = images.shape
    flow = pixel_velocity(depth, poses, intrinsics)
    x = torch.arange(width, device=images.device) + 0.5 - width / 2
    y = torch.arange(height, device=images.device)[:, None] + 0.5 - height / 2
    square = (x * x + y * y) / (0.25 * (height * height + width * width))

    def per_clip(value: Tensor) -> Tensor:
        return value.view(clips, 1, 1, 1)

    radial = 1 + per_clip(lens.distortion) * square
    late = per_clip(lens.readout) * (y / height)
    across, down = (per_clip(lens.shift[:, i]) * width for i in (0, 1))
    base_x, base_y = x * radial + flow[..., 0] * late + across, y * radial + flow[..., 1] * late + down
    flat = images.reshape(-1, 3, height, width)
    total = torch.zeros_like(flat)
    for tap in range(_TAPS):
        when = per_clip(lens.exposure) * (tap / (_TAPS - 1) - 0.5)
        u = (base_x + flow[..., 0] * when) * (2 / width)
        v = (base_y + flow[..., 1] * when) * (2 / height)
        grid = torch.stack([u, v], -1).view(-1, height, width, 2)
        total += torch.nn.functional.grid_sample(flat, grid, padding_mode="border", align_corners=False)
    return (total / _TAPS).view(images.shape)


def pixel_velocity(depth: Tensor, poses: Tensor, intrinsics: Tensor) -> Tensor:
    """Motion of pixels over one frame interval [B, S, H, W, 2], at most a tenth of the width."""
    clips, frames, height, width = depth.shape
    if frames == 1:
        return depth.new_zeros(clips, 1, height, width, 2)
    R, t = poses[..., :3, :3], poses[..., :3, 3]
    # Camera of the next frame, seen from this one; the last frame moves as the one before.
    R_rel = R[:, 1:].transpose(-1, -2) @ R[:, :-1]
    t_rel = (R[:, 1:].transpose(-1, -2) @ (t[:, :-1] - t[:, 1:])[..., None])[..., 0]
    R_rel, t_rel = (torch.cat([x, x[:, -1:]], 1) for x in (R_rel, t_rel))
    fx, fy = (intrinsics[:, i].view(clips, 1, 1, 1) for i in (0, 1))
    x = torch.arange(width, device=depth.device) + 0.5 - width / 2
    y = torch.arange(height, device=depth.device)[:, None] + 0.5 - height / 2
    z = torch.where(depth > 0, depth, _FAR_AWAY)
    rays = (x / fx, y / fy, torch.ones_like(z))
    moved = [
        sum((R_rel[..., i, j, None, None] * rays[j] for j in range(3)), torch.zeros_like(z)) * z
        + t_rel[..., i, None, None]
        for i in range(3)
    ]
    ahead = moved[2].clamp_min(0.05)
    flow = torch.stack([moved[0] / ahead * fx - x, moved[1] / ahead * fy - y], -1)
    return flow.clamp(-0.1 * width, 0.1 * width)


def draw_tone(draws: Draws, brightness: Tensor, plain: Tensor) -> Tone:
    """Tone of frames, from their mean brightness [B, S]; that of ``plain`` clips (bool [B]) is in the range of well
    exposed videos, downscaled for the network."""
    clips, frames = brightness.shape

    def either(usual: Tensor, any_strength: Tensor) -> Tensor:
        return torch.where(plain.view(-1, *[1] * (any_strength.dim() - 1)), usual, any_strength)

    # Automatic exposure mostly succeeds. Some are overexposed: light walls then lose their texture, and must not be
    # occupied for sky.
    target = (0.45 + draws.normal(clips, deviation=0.08)).clamp(0.25, 0.62)
    target = torch.where(draws.chance(0.2, clips), draws.uniform(0.15, 0.58, clips), target)
    target = torch.where(draws.chance(0.12, clips), draws.uniform(0.58, 0.8, clips), target)
    target = either((0.48 + draws.normal(clips, deviation=0.06)).clamp(0.34, 0.6), target)
    drift = draws.log_uniform(0.003, 0.08, clips, 1) * wave(draws, clips, frames, 0.05, 0.6)
    flicker = draws.log_uniform(0.001, 0.02, clips, 1) * draws.normal(clips, frames)
    # Exposure follows the image with a delay, and only in part.
    seen = brightness.clamp_min(0.04).log()
    late = torch.nn.functional.avg_pool1d(seen[:, None], 5, 1, 2, count_include_pad=False)[:, 0]
    follows = draws.uniform(0.0, 0.9, clips, 1)
    seen = follows * late + (1 - follows) * seen.mean(1, keepdim=True)
    exposure = (target[:, None] / seen.exp()).clamp(0.3, 5.0) * (drift + flicker).exp()
    white = 1 + draws.normal(clips, 1, 3, deviation=0.06)
    white = white + draws.log_uniform(0.001, 0.02, clips, 1, 1) * draws.normal(clips, frames, 3)

    def per_frame(value: Tensor) -> Tensor:
        return value[:, None].expand(clips, frames).reshape(-1)

    grey = draws.chance(0.1, clips)
    # Defocused, unchanged or sharpened, as by many cameras: sharpness must not indicate the field of view.
    detail = torch.where(draws.chance(0.45, clips), draws.uniform(1.0, 2.6, clips), draws.uniform(0.0, 0.9, clips))
    detail = torch.where(draws.chance(0.2, clips), 1.0, detail)
    detail = either(draws.uniform(0.7, 1.7, clips), detail)
    noise, shot = draws.log_uniform(0.0007, 0.018, clips), draws.log_uniform(0.0007, 0.03, clips)
    return Tone(
        gain=(exposure[..., None] * white).reshape(-1, 3),
        saturation=per_frame(
            torch.where(grey, 0.0, either(draws.uniform(0.2, 0.9, clips), draws.uniform(0.35, 1.6, clips)))
        ),
        contrast=per_frame(either(draws.uniform(1.0, 1.45, clips), draws.uniform(0.8, 1.55, clips))),
        gamma=per_frame(either(draws.log_uniform(0.8, 1.25, clips), draws.log_uniform(0.65, 1.5, clips))),
        lift=per_frame(draws.uniform(0.0, 0.14, clips) * draws.chance(0.6, clips)),
        vignette=per_frame(draws.uniform(0.0, 0.4, clips) * draws.chance(0.4, clips)),
        local=per_frame(draws.uniform(0.05, 0.35, clips) * draws.chance(0.6, clips)),
        blur=per_frame(draws.uniform(0.4, 1.2, clips)),
        detail=per_frame(detail),
        noise=per_frame(either(0.3 * noise, noise)),
        shot=per_frame(either(0.3 * shot, shot)),
        smear=per_frame(draws.uniform(0.7, 2.0, clips) * draws.chance(0.9, clips)),
    )


def draw_borders(draws: Draws, clips: int, height: int, width: int) -> Tensor:
    """Weight of images [B, H, W] inside black borders, 0..1. Most clips have none.

    Borders are those of players, and curved ones of undistortion.
    """
    some = draws.chance(0.1, clips, 1) & draws.chance(0.7, clips, 4)
    border = draws.uniform(0.0, 0.06, clips, 4) * some
    bow = draws.uniform(-1.0, 1.0, clips, 1) * draws.chance(0.5, clips, 1)
    x = torch.arange(width, device=draws.device) + 0.5
    y = torch.arange(height, device=draws.device) + 0.5
    # [B, W], [B, H]: a border's width along it.
    across, down = (1 + bow * (2 * (2 * p / size - 1) ** 2 - 1) for p, size in ((x, width), (y, height)))
    left, right, top, bottom = (border[:, i, None] for i in range(4))
    # Pixels from each border, with a soft edge of one.
    sides = torch.minimum(x - width * (left * down)[..., None], width - x - width * (right * down)[..., None])
    ends = torch.minimum(
        y[:, None] - height * (top * across)[:, None], height - y[:, None] - height * (bottom * across)[:, None]
    )
    return (torch.minimum(sides, ends) + 0.5).clamp(0, 1)


def apply_tone(images: Tensor, tone: Tone, noise: Tensor) -> Tensor:
    """Images [F, 3, H, W] with tone, blur and noise (standard normal [F, 3, H, W]), 8 bits deep, in 0..1."""
    height, width = images.shape[-2:]

    def per_frame(value: Tensor) -> Tensor:
        return value.view(-1, 1, 1, 1)

    x = images * tone.gain[:, :, None, None]
    grey = x.mean(1, keepdim=True)
    x = grey + (x - grey) * per_frame(tone.saturation)
    u = torch.linspace(-1, 1, width, device=x.device)
    v = torch.linspace(-1, 1, height, device=x.device)[:, None]
    x = x * (1 - per_frame(tone.vignette) * 0.5 * (u * u + v * v))
    x = _evened(x, per_frame(tone.local))
    x = 0.4 + (x - 0.4) * per_frame(tone.contrast)
    # Highlights roll off instead of clipping at once.
    x = x.clamp_min(1e-4)
    x = torch.where(x > 0.8, 0.8 + 0.2 * torch.tanh((x - 0.8) / 0.2), x)
    x = x ** per_frame(tone.gamma)
    x = x + per_frame(tone.lift) * (1 - x)
    soft = _blur(x, per_frame(tone.blur))
    x = (soft + per_frame(tone.detail) * (x - soft)).clamp_min(0)
    x = x + noise * (per_frame(tone.noise) + per_frame(tone.shot) * x.sqrt())
    # Sensors see one colour a pixel, and codecs keep colour at half the resolution.
    grey = x.mean(1, keepdim=True)
    x = grey + _blur(x - grey, per_frame(tone.smear))
    return (x.clamp(0, 1) * 255).round() * (1 / 255)


def _evened(x: Tensor, share: Tensor) -> Tensor:
    """Images with a share [F, 1, 1, 1] of the differences in brightness between their parts occupied out: dark parts
    gain, bright ones lose, and what is finer stays as it was."""
    height, width = x.shape[-2:]
    grey = x.mean(1, keepdim=True).clamp_min(0.02).log()
    coarse = torch.nn.functional.avg_pool2d(grey, _PART, ceil_mode=True, count_include_pad=False)
    coarse = _blur(coarse, torch.full_like(share, 1.5))
    coarse = torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
    # Only in part: sharp borders would glow.
    part = 0.6 * coarse + 0.4 * grey
    return x * torch.exp(share * (coarse.mean((2, 3), keepdim=True) - part))


def _blur(x: Tensor, sigma: Tensor) -> Tensor:
    """Separable Gaussian of 5 taps, sigma [F, 1, 1, 1] in pixels (0: none)."""
    near = torch.exp(-0.5 / (sigma * sigma + 1e-3))
    wide = near**4
    scale = 1 / (1 + 2 * near + 2 * wide)
    near, wide = near * scale, wide * scale
    for axis in (2, 3):
        size = x.shape[axis]
        pad = (0, 0, 2, 2) if axis == 2 else (2, 2, 0, 0)
        p = torch.nn.functional.pad(x, pad, mode="replicate")
        shifts = [p.narrow(axis, i, size) for i in range(5)]
        x = scale * shifts[2] + near * (shifts[1] + shifts[3]) + wide * (shifts[0] + shifts[4])
    return x


# The quantisation of luma of ITU-T T.81, annex K.
LUMA = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56,
    14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip


def _cosines(device: torch.device) -> Tensor:
    """The DCT of blocks of 8x8 pixels as one orthogonal matrix [64, 64]: row by row, spectrum = matrix @ block."""
    k = torch.arange(8, device=device, dtype=torch.float32)[:, None]
    x = torch.arange(8, device=device, dtype=torch.float32)[None]
    basis = torch.cos((2 * x + 1) * k * (math.pi / 16)) * 0.5
    basis = torch.where(k == 0, basis * math.sqrt(0.5), basis)
    return torch.kron(basis, basis)


def _quantise(plane: Tensor, table: Tensor, D: Tensor) -> Tensor:
    """Planes [F, H, W] (0..255 around 0) through the blockwise DCT ``D`` [64, 64] and tables [F, 64]."""
    frames, height, width = plane.shape
    pad = (0, -width % 8, 0, -height % 8)
    padded = torch.nn.functional.pad(plane[:, None], pad, mode="replicate")[:, 0] if any(pad) else plane
    rows, columns = padded.shape[1] // 8, padded.shape[2] // 8
    blocks = padded.view(frames, rows, 8, columns, 8).transpose(2, 3).reshape(frames, -1, 64)
    steps = table[:, None]
    spectrum = (blocks @ D.T).div_(steps).round_().mul_(steps)
    blocks = (spectrum @ D).view(frames, rows, columns, 8, 8).transpose(2, 3)
    return blocks.reshape(padded.shape)[:, :height, :width]


def apply_jpeg(images: Tensor, quality: Tensor, luma_table: Tensor) -> Tensor:
    """Images [F, 3, H, W] in 0..1 with the artefacts of JPEG (quality 1..100 [F], chroma at half resolution).

    luma_table: LUMA as a tensor [64] on the images' device.
    """
    height, width = images.shape[-2:]
    scale = torch.where(quality < 50, 5000 / quality, 200 - 2 * quality) / 100
    table = (luma_table * scale[:, None]).clamp(1, 255)
    r, g, b = (images * 255).unbind(1)
    luma = 0.299 * r + 0.587 * g + 0.114 * b
    chroma = torch.stack([0.564 * (b - luma), 0.713 * (r - luma)], 1)
    half = torch.nn.functional.avg_pool2d(chroma, 2, ceil_mode=True)
    chroma_table = torch.maximum(table, table[:, 2 * 8 + 2, None] * 1.5).clamp(1, 255)
    D = _cosines(images.device)
    half = torch.stack([_quantise(half[:, i], chroma_table, D) for i in range(2)], 1)
    blue, red = torch.nn.functional.interpolate(half, size=(height, width), mode="bilinear").unbind(1)
    luma = _quantise(luma - 128, table, D) + 128
    result = torch.stack([luma + 1.402 * red, luma - 0.344 * blue - 0.714 * red, luma + 1.772 * blue], 1)
    return (result * (1 / 255)).clamp(0, 1)
