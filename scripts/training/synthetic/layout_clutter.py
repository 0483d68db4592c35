"""Clutter: shapes of any kind and orientation, so that usual scene layouts give no hints."""

import math

import torch

from stream_recon.models.pose import quaternion_to_matrix
from training.synthetic.cameras import ORBIT, PAN, SCAN, STAIRS, STATIC, STRAFE, WALK, draw_path
from training.synthetic.draws import Draws
from training.synthetic.layout import MAP, Layout, daylight, make_objects, no_air, pick_materials, sized
from training.synthetic.parts import Catalogue
from training.synthetic.shading import LIGHT
from training.synthetic.street_props import CLUTTER

_MODES = {WALK: 0.23, STRAFE: 0.2, ORBIT: 0.2, SCAN: 0.23, PAN: 0.08, STATIC: 0.02, STAIRS: 0.04}
_SHAPES = {template.name: 3.0 for template in CLUTTER} | {
    "chair": 1.5, "table": 1.0, "bookshelf": 0.7, "plant": 1.0, "floor_lamp": 0.7, "ladder": 0.5, "boxes": 1.0,
    "bench": 0.7, "toy": 0.5, "stairs": 0.5, "rock": 0.5, "bush": 0.5,
}  # fmt: skip
_MATERIAL_TYPES = (("wild", "wallpaper", "brick", "paint"),) * 6
_NUMBER = 44


def draw_clutter(
    draws: Draws, catalogue: Catalogue, clips: int, frames: int, turning: float = 0.0, motion: int | None = None
) -> Layout:
    """Layouts of floating objects around camera paths, of one motion if that is given; in half of the clips inside a
    large box."""
    depth = draws.uniform(2.0, 4.5, clips)
    path = draw_path(draws, _MODES if motion is None else {motion: 1.0}, frames, depth, turning=turning)
    frame = draws.integer(frames, clips, _NUMBER)
    front = draws.chance(0.75, clips, _NUMBER)
    yaw = torch.where(
        front,
        path.yaw.gather(1, frame) + draws.normal(clips, _NUMBER, deviation=0.5),
        draws.uniform(0, 2 * math.pi, clips, _NUMBER),
    )
    pitch = torch.where(
        front,
        path.pitch.gather(1, frame) + draws.normal(clips, _NUMBER, deviation=0.4),
        draws.uniform(-1.4, 1.4, clips, _NUMBER),
    )
    distance = draws.log_uniform(0.8, 8.0, clips, _NUMBER)
    toward = torch.stack([pitch.cos() * yaw.cos(), pitch.cos() * yaw.sin(), pitch.sin()], -1)
    origin = path.position.gather(1, frame[..., None].expand(-1, -1, 3))
    template = catalogue.choose(draws, _SHAPES, clips, _NUMBER)
    size = sized(draws, catalogue, template) * distance[..., None].clamp(0.7, 5.0) * 0.6
    rotation = quaternion_to_matrix(draws.normal(clips, _NUMBER, 4).roll(-1, -1))
    middle = torch.cat([torch.zeros_like(size[..., :2]), size[..., 2:] / 2], -1)
    position = origin + toward * distance[..., None] - (rotation @ middle[..., None])[..., 0]
    present = draws.uniform(0, 1, clips, _NUMBER) < draws.uniform(0.35, 1.0, clips, 1)
    objects = make_objects(template, position, size, yaw, present)
    objects.rotation = rotation

    low, high = path.position.amin(1), path.position.amax(1)
    inside = draws.chance(0.6, clips, 1)
    air = no_air(draws, clips)
    box = [low - draws.uniform(1.5, 8.0, clips, 3), high + draws.uniform(1.5, 8.0, clips, 3), inside.float()]
    air[:, 0] = torch.cat(box, 1)
    lights = daylight(draws, clips)
    lights[:, LIGHT["low_x"] : LIGHT["low_x"] + 6] = air[:, 0, :6]
    lights[:, LIGHT["corners"]] = inside[:, 0] * draws.uniform(0.2, 1.0, clips)
    lights[:, LIGHT["fog"]].zero_()
    lamp = inside & draws.chance(0.6, clips, 1)
    spot = low + (high - low) * 0.5 + draws.uniform(-1.2, 1.2, clips, 3)
    lights[:, 0:3] = torch.where(lamp, spot, lights[:, 0:3])
    lights[:, 3:4] = lamp.float()
    return Layout(
        objects=objects,
        air=air,
        ground=torch.zeros(clips, 4, device=draws.device),
        heights=torch.zeros(clips, MAP, MAP, device=draws.device),
        lights=lights,
        material_types=pick_materials(draws, clips, _MATERIAL_TYPES),
        path=path,
        keep_clear=draws.uniform(0.2, 0.5, clips),
    )
