"""What only a GPU can show: compiled and plain rendering agree, kernels agree with the twin, the host never waits."""

from dataclasses import fields, replace

import pytest
import torch

from training.synthetic import SceneGenerator
from training.synthetic.raycast import cast
from training.synthetic.renderer import make_views

pytestmark = pytest.mark.gpu


def test_compiled_clips_are_the_same() -> None:
    plain, compiled = (
        SceneGenerator("cuda", 1, compile=value, degrade=False).render(6, 4, 84, 112) for value in (False, True)
    )
    assert torch.equal(plain.depth, compiled.depth)
    assert ((plain.images - compiled.images).abs() > 0.02).float().mean() < 0.01


def test_kernels_agree_with_the_twin_on_the_device() -> None:
    generator = SceneGenerator("cuda", 2)
    world, poses = generator.build(generator.draw_layouts([0, 0, 1, 1, 1, 2], 2))
    focal = torch.full((6, 2), 60.0, device="cuda")
    views = make_views(poses, focal, 64, 96)
    device = cast(world.scene, views, "triton")
    scene = replace(world.scene, **{f.name: getattr(world.scene, f.name).cpu() for f in fields(world.scene)})
    host = cast(scene, replace(views, table=views.table.cpu()), "torch")
    same = device.key.cpu() == host.key
    assert same.float().mean() > 0.98
    hit = same & (host.key >= 0) & (device.share.cpu() == host.share)
    error = ((device.depth.cpu() - host.depth).abs() / host.depth)[hit]
    assert error.quantile(0.98) < 1e-3


def test_the_host_never_waits() -> None:
    generator = SceneGenerator("cuda", 3)
    for _ in range(9):  # constants are copied once; the ninth batch is the first of the second lot
        generator.render(50, 2, 56, 84)
    torch.cuda.set_sync_debug_mode("error")
    try:
        generator.render(50, 2, 56, 84)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_building_does_not_wait_either() -> None:
    generator = SceneGenerator("cuda", 3)
    generator.build(generator.draw_layouts([0, 0, 1, 1, 2], 4))
    torch.cuda.set_sync_debug_mode("error")
    try:
        generator.build(generator.draw_layouts([0, 0, 1, 1, 2], 4))
    finally:
        torch.cuda.set_sync_debug_mode("default")
