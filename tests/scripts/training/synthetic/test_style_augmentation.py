"""Random filters change how clips look, alike in all frames, and nothing else."""

import pytest
import torch
from torch import Tensor

from training.synthetic import ClipBatch, SceneGenerator, SceneShares
from training.synthetic.draws import Draws
from training.synthetic.style_augmentation import StyleAugmentation, apply_style, draw_style


def draws(seed: int = 0) -> Draws:
    return Draws(torch.device("cpu"), seed)


def drawn(clips: int, kept: float | None = None) -> StyleAugmentation:
    style = draw_style(draws(), clips)
    return style if kept is None else StyleAugmentation(style.filters, torch.full((clips,), kept))


def sizes(style: StyleAugmentation) -> Tensor:
    """Pixels along a side of each filter [B]."""
    return (style.filters != 0).flatten(1, 2).any(dim=1).any(dim=1).sum(dim=1)


def render(share: float, degrade: bool = True) -> Tensor:
    shares = SceneShares(odd_looks=share)
    return SceneGenerator("cpu", 4, degrade=degrade, shares=shares).render(3, 2, 28, 28).images


def test_filters_have_all_sizes_and_one_strength() -> None:
    style = drawn(400)
    size = sizes(style)
    assert size.unique().tolist() == [1, 3, 5, 7]
    for side in (1, 3, 5, 7):
        of_size = style.filters[size == side]
        assert 60 < len(of_size) < 140
        assert of_size.square().sum(dim=(2, 3, 4)).mean() == pytest.approx(1, abs=0.15)
    assert style.kept.min() >= 0 and style.kept.max() <= 1 and style.kept.std() > 0.25


def test_nothing_flickers_where_nothing_moves(clean: ClipBatch) -> None:
    still = clean.images[:, :1].expand(-1, 3, -1, -1, -1)
    changed = apply_style(still, drawn(9))
    torch.testing.assert_close(changed, changed[:, :1].expand_as(changed), atol=1e-5, rtol=0)
    assert ((changed - still).abs().flatten(1).mean(dim=1) > 5e-3).sum() >= 7


def test_clips_look_different_from_one_another(clean: ClipBatch) -> None:
    same = clean.images[:1].expand(9, -1, -1, -1, -1)
    changed = apply_style(same, drawn(9, kept=0.0))
    apart = torch.pdist(changed.flatten(1), 1) / changed[0].numel()
    assert apart.min() > 5e-3


def test_each_clip_has_a_filter_to_itself(clean: ClipBatch) -> None:
    style = drawn(9)
    together = apply_style(clean.images, style)
    for i in range(9):
        alone = apply_style(clean.images[i : i + 1], StyleAugmentation(style.filters[i : i + 1], style.kept[i : i + 1]))
        torch.testing.assert_close(together[i : i + 1], alone, atol=1e-4, rtol=0)


def test_brightness_and_contrast_of_channels_stay() -> None:
    torch.manual_seed(0)
    coarse = torch.rand(40 * 2, 3, 6, 8)
    images = torch.nn.functional.interpolate(coarse, (42, 56), mode="bicubic").view(40, 2, 3, 42, 56)
    images = 0.5 + 0.3 * (images.clamp(0, 1) - 0.5)
    changed = apply_style(images, drawn(40, kept=0.0))
    assert changed.min() >= 0 and changed.max() <= 1
    for value, before in zip(torch.std_mean(changed, (1, 3, 4)), torch.std_mean(images, (1, 3, 4)), strict=True):
        torch.testing.assert_close(value, before, atol=0.01, rtol=0.05)


def test_values_stay_in_range_and_even_images_even(clean: ClipBatch) -> None:
    changed = apply_style(clean.images * 1.5, drawn(9, kept=0.0))
    assert changed.min() >= 0 and changed.max() <= 1
    grey = torch.full((9, 2, 3, 28, 28), 0.4)
    torch.testing.assert_close(apply_style(grey, drawn(9)), grey, atol=1e-3, rtol=0)


def test_all_kept_is_as_it_was(clean: ClipBatch) -> None:
    torch.testing.assert_close(apply_style(clean.images, drawn(9, kept=1.0)), clean.images, atol=1e-6, rtol=0)


def test_edges_stay_where_they_are() -> None:
    style = drawn(60, kept=0.0)
    images = torch.full((60, 2, 3, 28, 40), 0.3)
    images[..., 17:] = torch.tensor([0.7, 0.6, 0.5])[:, None, None]
    steps = apply_style(images, style).diff(dim=-1).abs().amax(dim=(1, 2, 3))
    size = sizes(style)
    assert (steps[size == 1].argmax(dim=1) == 16).all() and (steps[size == 1][:, 16] > 0.1).all()
    changing = steps > 1e-4
    for side in (1, 3, 5, 7):
        near = torch.arange(39)[changing[size == side].any(dim=0)]
        assert near.min() == 16 - side // 2 and near.max() == 16 + side // 2


@pytest.mark.slow
def test_a_share_of_the_clips_gets_them() -> None:
    plain = render(0.0)
    assert torch.equal(plain, SceneGenerator("cpu", 4).render(3, 2, 28, 28).images)
    odd = render(1.0)
    assert odd.min() >= 0 and odd.max() <= 1
    assert ((odd - plain).abs().flatten(1).mean(dim=1) > 5e-3).all()


def test_clean_clips_have_none() -> None:
    assert torch.equal(render(1.0, degrade=False), render(0.0, degrade=False))
