"""Outdoor layouts: trees hold together, winters change what they should, lanes stay free, looks are shared."""

import math

import torch

from training.synthetic import SceneGenerator
from training.synthetic.cameras import DRIVE, WALK, draw_focal, draw_path
from training.synthetic.draws import Draws
from training.synthetic.layout_outdoor import draw_outdoors
from training.synthetic.layout_paths import avenue
from training.synthetic.layout_trees import bare_trees
from training.synthetic.roadside import LEAFLESS, UNDER_SNOW


def test_branches_begin_on_what_they_grow_from() -> None:
    generator = SceneGenerator("cpu", 1, degrade=False)
    draws, clips, trees = generator.draws, 20, 3
    path = draw_path(draws, {WALK: 1.0}, 4, torch.full((clips,), 5.0))
    foot = torch.cat([draws.uniform(20.0, 30.0, clips, trees, 2), torch.zeros(clips, trees, 1)], -1)
    present = torch.ones(clips, trees, dtype=torch.bool)
    objects = bare_trees(draws, generator.catalogue, foot, path, torch.ones(clips), present)
    assert objects.present.all()
    R = objects.rotation
    torch.testing.assert_close(R @ R.transpose(-1, -2), torch.eye(3).expand_as(R), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.det(R), torch.ones(R.shape[:2]), atol=1e-5, rtol=0)
    # Distance of each branch's foot from the axes of the thicker ones of its tree.
    axis, long = R[..., :, 2], objects.size[..., 2]
    offset = objects.position[:, :, None] - objects.position[:, None]
    t = (offset * axis[:, None]).sum(-1)
    t = torch.minimum(t.clamp_min(0.0), long[:, None])
    away = (offset - t[..., None] * axis[:, None]).norm(dim=-1)
    itself = torch.eye(away.shape[1], dtype=torch.bool)
    nearest = away.masked_fill(itself, 99.0).amin(-1)[:, trees:]
    assert (nearest < 1e-3).all()
    assert (objects.look < trees).all()


def test_trees_keep_off_cameras() -> None:
    generator = SceneGenerator("cpu", 1, degrade=False)
    path = draw_path(generator.draws, {WALK: 1.0}, 4, torch.full((8,), 5.0))
    foot = torch.cat([path.position[:, 2:3, :2], torch.zeros(8, 1, 1)], -1)
    objects = bare_trees(
        generator.draws, generator.catalogue, foot, path, torch.ones(8), torch.ones(8, 1, dtype=torch.bool)
    )
    assert not objects.present.any()


def test_outdoors_are_finite_and_wintry_now_and_then() -> None:
    generator = SceneGenerator("cpu", 2, degrade=False)
    names = generator.catalogue.names
    layout = draw_outdoors(generator.draws, generator.catalogue, 200, 4, False)
    for tensor in (layout.objects.position, layout.objects.size, layout.objects.rotation, layout.lights):
        assert torch.isfinite(tensor).all()
    assert (layout.objects.size > 0).all()

    def shows(options: list[str]) -> torch.Tensor:
        index = torch.tensor([names.index(name) for name in options])
        return (torch.isin(layout.objects.template, index) & layout.objects.present).any(1)

    snow = shows(list(UNDER_SNOW.values()))
    bare = shows(list(LEAFLESS.values()))
    assert 0.1 < snow.float().mean() < 0.5
    assert not (snow & shows(list(UNDER_SNOW))).any()
    assert 0.1 < (bare & ~snow).float().mean() + (bare & snow).float().mean() < 0.7


def test_lanes_of_avenues_stay_free() -> None:
    generator = SceneGenerator("cpu", 3, degrade=False)
    clips = 40
    path = draw_path(generator.draws, {DRIVE: 1.0}, 16, torch.full((clips,), 8.0))
    groups = avenue(generator.draws, generator.catalogue, path, torch.ones(clips, dtype=torch.bool))
    cars, houses = groups[1], groups[-1]
    ahead = torch.stack([path.yaw[:, 0].cos(), path.yaw[:, 0].sin()], -1)
    for group in (cars, houses):
        offset = group.position[..., :2] - path.position[:, None, 0, :2]
        along = (offset * ahead[:, None]).sum(-1)
        across = (offset[..., 1] * ahead[:, None, 0] - offset[..., 0] * ahead[:, None, 1]).abs()
        close = group.present & (along > 0) & (along < 10)
        assert close.any()
        assert (across[close] > 1.3).all()
    assert (houses.present.sum(1) > 2).float().mean() > 0.8


def test_things_of_one_look_share_their_materials() -> None:
    generator = SceneGenerator("cpu", 5, degrade=False)
    layout = generator.draw_layouts([0] * 6, 2)[0]
    look = torch.zeros_like(layout.objects.look)
    layout.objects.look = look  # all like the first
    world, _ = generator.build([layout])
    count = int(world.scene.count[0])
    seeds = world.materials[0, :count, 35]  # of the noise: one for each of three groups
    assert len(set(seeds.tolist())) <= 3


def test_all_fields_of_view_are_frequent() -> None:
    draws = Draws(torch.device("cpu"), 0)
    for height, width in ((168, 224), (308, 168), (112, 392)):
        focal = draw_focal(draws, 4000, height, width)
        longer = focal[:, 0] if width > height else focal[:, 1]
        field = 2 * torch.atan(max(height, width) / 2 / longer) * 180 / math.pi
        shares = torch.histc(field, bins=6, min=34, max=101) / 4000
        assert (shares > 0.12).all(), shares
        assert ((focal[:, 0] / focal[:, 1] - 1).abs() < 0.0205).float().mean() > 0.9
