"""Casts one small scene of each kind with the Triton kernels and with torch; exits non-zero where they differ."""

import sys

import torch

from training.synthetic.generator import SceneGenerator
from training.synthetic.raycast import TILE, cast, shadows
from training.synthetic.renderer import make_views


def compare(seed: int, kinds: list[int]) -> None:
    height, width, frames = 8, 32, 1
    generator = SceneGenerator("cpu", seed, degrade=False)
    world, poses = generator.build(generator.draw_layouts(kinds, frames))
    scene, lights = world.scene, world.lights
    focal = torch.full((len(kinds), 2), 20.0)
    views = make_views(poses, focal, height, width)
    one, two = cast(scene, views, "torch"), cast(scene, views, "triton")
    assert two.key.shape == one.key.shape and two.key.numel() % TILE == 0
    same = one.key == two.key
    print("same first surface", float(same.float().mean()))
    assert same.float().mean() > 0.98
    hit = same & (one.key >= 0) & (one.share == two.share)
    assert hit.sum() > 60
    error = ((one.depth - two.depth).abs() / one.depth)[hit]
    print("depth error", float(error.quantile(0.99)))
    assert error.quantile(0.98) < 1e-3
    assert (one.second_key == two.second_key).float().mean() > 0.97
    assert (one.share == two.share).float().mean() > 0.97
    clips = views.table[:, 14].to(torch.int32).repeat_interleave(one.depth.numel() // len(kinds))
    points = torch.rand(3, clips.numel()) * torch.tensor([[2.0], [2.0], [1.5]])
    lamps = torch.stack([lights[:, 0:4], lights[:, 8:12]], 1)
    a, b = shadows(scene, lamps, points, clips, "torch"), shadows(scene, lamps, points, clips, "triton")
    assert 0 < a.mean() < 1
    print("same shadow", float((a == b).float().mean()))
    assert (a == b).float().mean() > 0.98


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for number, kinds in enumerate([[0], [1, 1], [2]]):
        compare(number + 4, kinds)
    sys.exit(0)
