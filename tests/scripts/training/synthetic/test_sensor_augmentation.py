"""Each defect changes an image, keeps its range, and is absent when its strength is zero."""

import pytest
import torch
from torch import Tensor

from training.synthetic import ClipBatch, SceneGenerator
from training.synthetic.draws import Draws
from training.synthetic.sensor_augmentation import (
    LUMA,
    LensDistortion,
    Tone,
    apply_jpeg,
    apply_lens,
    apply_tone,
    draw_borders,
    draw_tone,
    pixel_velocity,
)


def neutral(frames: int) -> Tone:
    return Tone(
        gain=torch.ones(frames, 3),
        saturation=torch.ones(frames),
        contrast=torch.ones(frames),
        gamma=torch.ones(frames),
        lift=torch.zeros(frames),
        vignette=torch.zeros(frames),
        local=torch.zeros(frames),
        blur=torch.full((frames,), 0.8),
        detail=torch.ones(frames),
        noise=torch.zeros(frames),
        shot=torch.zeros(frames),
        smear=torch.zeros(frames),
    )


@pytest.fixture()
def frames(clean: ClipBatch) -> Tensor:
    return (clean.images[:, 0] * 0.75).clamp(0.01, 0.75)


def test_neutral_tone_changes_nothing(frames: Tensor) -> None:
    result = apply_tone(frames, neutral(len(frames)), torch.randn_like(frames))
    torch.testing.assert_close(result, frames, atol=0.5 / 255 + 1e-3, rtol=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gain", 1.5),
        ("saturation", 0.0),
        ("contrast", 1.4),
        ("gamma", 0.7),
        ("lift", 0.1),
        ("vignette", 0.4),
        ("local", 0.5),
        ("detail", 0.0),
        ("detail", 2.5),
        ("noise", 0.03),
        ("shot", 0.04),
        ("smear", 1.5),
    ],
)
def test_every_tone_changes_the_image(frames: Tensor, name: str, value: float) -> None:
    tone = neutral(len(frames))
    getattr(tone, name).fill_(value)
    noise = torch.randn(frames.shape, generator=torch.Generator().manual_seed(0))
    result = apply_tone(frames, tone, noise)
    assert result.min() >= 0 and result.max() <= 1
    plain = apply_tone(frames, neutral(len(frames)), noise)
    assert (result - plain).abs().mean() > 2e-3
    if name == "detail":
        steps = [(x[..., 1:] - x[..., :-1]).abs().mean() for x in (result, plain)]
        assert (steps[0] > steps[1]) == (value > 1)
    if name == "saturation":
        assert (result.amax(1) - result.amin(1)).max() <= 1 / 255 + 1e-6


def test_plain_clips_have_smaller_defects_than_others() -> None:
    clips, frames = 300, 2
    brightness = torch.full((clips, frames), 0.4)
    plain = torch.arange(clips) % 2 == 0
    tone = draw_tone(Draws(torch.device("cpu"), 0), brightness, plain)
    of_plain = plain.repeat_interleave(frames)
    for name in ("noise", "shot", "contrast", "gamma", "detail", "gain", "saturation"):
        value = getattr(tone, name).view(clips * frames, -1).mean(1)
        assert value[of_plain].std() < 0.75 * value[~of_plain].std(), name
    assert tone.noise[of_plain].median() < 0.5 * tone.noise[~of_plain].median()


def test_a_wider_blur_leaves_less_detail(frames: Tensor) -> None:
    steps = []
    for blur in (0.4, 1.2):
        tone = neutral(len(frames))
        tone.blur.fill_(blur)
        tone.detail.fill_(0.0)
        result = apply_tone(frames, tone, torch.zeros_like(frames))
        steps.append((result[..., 1:] - result[..., :-1]).abs().mean())
    assert steps[1] < 0.9 * steps[0]


def test_borders_are_black_at_the_edges_of_few_clips_and_leave_the_middle() -> None:
    clips, height, width = 400, 42, 56
    inside = draw_borders(Draws(torch.device("cpu"), 1), clips, height, width)
    assert inside.shape == (clips, height, width) and inside.min() >= 0 and inside.max() <= 1
    middle = inside[:, height // 7 : -(height // 7), width // 7 : -(width // 7)]
    assert torch.equal(middle, torch.ones_like(middle))
    bordered = (inside < 1).flatten(1).any(1)
    assert 0.04 < bordered.float().mean() < 0.2
    assert (inside[bordered] == 0).flatten(1).any(1).float().mean() > 0.5


def test_jpeg_gets_worse_with_lower_quality(frames: Tensor) -> None:
    errors = [
        (apply_jpeg(frames, torch.full((len(frames),), quality), torch.tensor(LUMA).float()) - frames).abs().mean()
        for quality in (95.0, 50.0, 10.0)
    ]
    assert 0 < errors[0] < errors[1] < errors[2] < 0.1


def lens(
    clips: int, distortion: float = 0.0, readout: float = 0.0, exposure: float = 0.0, shift: float = 0.0
) -> LensDistortion:
    values = [torch.full((clips,), value) for value in (distortion, readout, exposure)]
    return LensDistortion(*values, torch.full((clips, 2), shift))


def test_no_lens_defect_changes_nothing(clean: ClipBatch) -> None:
    result = apply_lens(clean.images, clean.depth, clean.T_world_camera, clean.intrinsics, lens(9))
    torch.testing.assert_close(result, clean.images, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("distortion", "readout", "exposure", "shift"), [(0.03, 0, 0, 0), (0, 0.35, 0, 0), (0, 0, 0.7, 0), (0, 0, 0, 0.02)]
)
def test_every_lens_defect_changes_the_image(
    clean: ClipBatch, distortion: float, readout: float, exposure: float, shift: float
) -> None:
    defect = lens(9, distortion, readout, exposure, shift)
    result = apply_lens(clean.images, clean.depth, clean.T_world_camera, clean.intrinsics, defect)
    assert result.min() >= 0 and result.max() <= 1 + 1e-5
    assert (result - clean.images).abs().mean() > 1e-3


def test_pixel_velocity_is_where_pixels_go(clean: ClipBatch) -> None:
    flow = pixel_velocity(clean.depth, clean.T_world_camera, clean.intrinsics)
    clip, y, x = 0, 20, 30
    fx, fy, cx, cy = clean.intrinsics[clip]
    z = clean.depth[clip, 0, y, x]
    point = torch.stack([(x + 0.5 - cx) / fx * z, (y + 0.5 - cy) / fy * z, z, torch.tensor(1.0)])
    moved = torch.linalg.inv(clean.T_world_camera[clip, 1]) @ clean.T_world_camera[clip, 0] @ point
    expected = torch.stack([moved[0] / moved[2] * fx + cx - x - 0.5, moved[1] / moved[2] * fy + cy - y - 0.5])
    torch.testing.assert_close(flow[clip, 0, y, x], expected.clamp(-5.6, 5.6), atol=1e-3, rtol=1e-3)


def test_degraded_clips_differ_from_clean_ones_and_keep_their_range() -> None:
    clean = SceneGenerator("cpu", 4, degrade=False).render(clips=3, frames=2, height=28, width=28)
    real = SceneGenerator("cpu", 4, degrade=True).render(clips=3, frames=2, height=28, width=28)
    assert torch.equal(clean.depth, real.depth)
    assert real.images.min() >= 0 and real.images.max() <= 1
    assert ((real.images - clean.images).abs().flatten(1).mean(1) > 5e-3).all()


def test_evening_out_brings_dark_and_light_parts_nearer_and_keeps_what_is_fine() -> None:
    image = torch.full((1, 3, 64, 64), 0.05)
    image[..., 32:] = 0.7
    image[..., ::2, :] *= 1.1
    tone = neutral(1)
    tone.local.fill_(0.4)
    evened = apply_tone(image, tone, torch.zeros_like(image))
    dark, light = evened[..., 4:16], evened[..., -16:-4]
    assert 2 < light.mean() / dark.mean() < 10
    assert 1.07 < light[..., ::2, :].mean() / light[..., 1::2, :].mean() < 1.12


def test_cameras_follow_the_brightness_they_see() -> None:
    brightness = torch.tensor([0.2] * 8 + [0.6] * 8).expand(200, 16)
    tone = draw_tone(Draws(torch.device("cpu"), 0), brightness, torch.ones(200, dtype=torch.bool))
    gain = tone.gain.mean(1).view(200, 16)
    share = gain[:, -1] / gain[:, 0]
    assert 0.5 < share.median() < 0.8 and (share < 1).float().mean() > 0.9
