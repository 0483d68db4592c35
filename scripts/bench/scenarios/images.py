"""Rendered videos with truth: scenes that training never drew, rooms walked twice, and a house.

A `Clip` can be written as a sequence with truth, read from one, and reconstructed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthMap
from stream_recon.app.core.views import ResultListener
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.engine.engine import Engine
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.run.options import RunOptions
from stream_recon.app.run.session import Output, Session
from stream_recon.app.sources.source import open_source
from training.synthetic.generator import ROOM, SceneGenerator, SceneShares
from training.synthetic.renderer import Renderer, World

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

SIZE = (320, 240)
"""Rendering takes about a millisecond for a hundred pixels."""
FOCAL = 270.0
NOISE = 1.5
"""Grey levels."""
CHUNK = 8
"""Images that are rendered at once."""


@dataclass(frozen=True)
class Clip:
    """Frames with truth."""

    images: list[Image]  # [h, w, 3]
    T_world_camera: FloatArray  # [N, 4, 4]
    focal: tuple[float, float]
    depth: list[NDArray[np.floating]] | None = None  # [h, w]

    def take(self, frames: Sequence[int]) -> "Clip":
        depth = None if self.depth is None else [self.depth[k] for k in frames]
        return Clip([self.images[k] for k in frames], self.T_world_camera[list(frames)], self.focal, depth)

    def write(self, folder: Path) -> Scene:
        """As a sequence with truth."""
        (folder / "rgb").mkdir(parents=True)
        (folder / "depth").mkdir()
        for k, image in enumerate(self.images):
            cv2.imwrite(str(folder / "rgb" / f"{k:06d}.png"), image[..., ::-1])
            if self.depth is not None:
                millimetres = np.clip(1e3 * np.nan_to_num(self.depth[k]), 0, 65535).astype(np.uint16)
                cv2.imwrite(str(folder / "depth" / f"{k:06d}.png"), millimetres)
        lines = [" ".join(map(repr, [k, *T.reshape(-1).tolist()])) for k, T in enumerate(self.T_world_camera)]
        (folder / "poses.txt").write_text("\n".join(lines) + "\n")
        height, width = self.images[0].shape[:2]
        fx, fy = self.focal
        (folder / "intrinsics.txt").write_text(f"{fx} {fy} {width / 2} {height / 2} {width} {height}\n")
        return Scene("case", "sequence", folder, None)

    def reconstruct(self, engine: Engine, folder: Path, listeners: Sequence[ResultListener] = ()) -> None:
        """Write the result before refinement to ``folder``, and the images beside it."""
        images = str(self.write(folder.with_name(folder.name + "-images")).path / "rgb")
        again = partial(open_source, images)
        engine.reset()
        with again() as source:
            output = Output(folder, RunInfo.from_engine(engine, folder.name, {"source": images}))
            with Session(engine, source, again, RunOptions(), output) as session:
                session.reconstruct(listeners)


def read_sequence(path: Path, stride: int, frames: int) -> Clip:
    scene = Scene(path.resolve().name, "sequence", path, None)
    truth = scene.truth()
    assert truth is not None and truth.intrinsics is not None, "a sequence with poses and intrinsics"
    with scene.open(stride, frames) as source:
        every = list(source)
    poses = np.array([truth.poses[frame.index] for frame in every])
    depth = [known.metres for frame in every if isinstance(known := truth.depth(frame.index), DepthMap)]
    lens = truth.intrinsics.fx, truth.intrinsics.fy
    return Clip([frame.rgb for frame in every], poses, lens, depth if len(depth) == len(every) else None)


def noisy(image: NDArray[np.floating] | Image, noise: np.random.Generator, spread: float = NOISE) -> Image:
    return np.clip(image + noise.normal(0, spread, image.shape), 0, 255).astype(np.uint8)


def _shoot(
    renderer: Renderer, world: World, poses: torch.Tensor, focal: float, size: tuple[int, int]
) -> tuple[FloatArray, NDArray[np.float32]]:
    """Images [N, h, w, 3] from 0 to 1 and depths [N, h, w] of one clip's poses [1, N, 4, 4]."""
    lens = torch.full((1, 2), focal)
    parts = [renderer.render(world, some, lens, size[1], size[0]) for some in poses.split(CHUNK, dim=1)]
    images = torch.cat([images[0] for images, _ in parts]).clamp(0, 1).permute(0, 2, 3, 1)
    return images.double().numpy(), torch.cat([depth[0] for _, depth in parts]).numpy()


def rendered(
    kind: int,
    frames: int,
    seed: int,
    size: tuple[int, int] = SIZE,
    focal: float = FOCAL,
) -> Clip:
    """A clip of one kind of scene by an ordinary camera."""
    generator = SceneGenerator("cpu", seed, degrade=False, shares=SceneShares(turning=0.0))
    world, poses = generator.build(generator.draw_layouts([kind], frames))
    images, depth = _shoot(generator.renderer, world, poses, focal, size)
    noise = np.random.default_rng(0)
    pictures = [noisy(np.rint(255 * image), noise) for image in images]
    return Clip(pictures, poses[0].numpy().astype(np.float64), (focal, focal), list(depth))


def walked_twice(frames: int, seed: int) -> list[Clip]:
    """A room walked there and back on another track, in dim warm light with a longer lens."""
    generator = SceneGenerator("cpu", seed, degrade=False, shares=SceneShares(motion="walk", turning=0.0))
    layouts = generator.draw_layouts([ROOM], frames)
    world, poses = generator.build(layouts)
    path = layouts[0].path
    path.position[..., :2] += 0.12
    path.position[..., 2] += 0.1
    path.yaw[:] += 0.12 * torch.sin(torch.linspace(0, 6, frames))
    clips, noise = [], np.random.default_rng(seed)
    for T, focal, light, gamma in (
        (poses, FOCAL, (1.0, 1.0, 1.0), 1.0),
        (path.poses().flip(1), 1.25 * FOCAL, (0.75, 0.6, 0.42), 1.3),
    ):
        images = (_shoot(generator.renderer, world, T, focal, SIZE)[0] * light) ** gamma
        pictures = [noisy(255 * image, noise, 2.0) for image in images]
        clips.append(Clip(pictures, T[0].numpy().astype(np.float64), (focal, focal)))
    return clips


def _grain(random: np.random.Generator, side: int, cells: dict[int, float]) -> NDArray[np.float32]:
    """Noise [side, side] of several sizes: standard deviation by number of cells."""
    grey = np.zeros((side, side), np.float32)
    for count, spread in cells.items():
        grey += cv2.resize(random.normal(0, spread, (count, count)).astype(np.float32), (side, side))
    return grey


ROOMS, ROOM_SIDE, HEIGHT, THICK = 3, 4.0, 2.6, 0.12
"""Rooms of the house are squares in a row along x, in metres; z is up."""
DOOR = (1.2, 2.4, 2.1)
"""Lowest and highest y of a door, and its height."""


def house_video(number: int, frames: int, seed: int = 11) -> Clip:
    """A walk that begins before a room's door, or at its far wall, and ends in the door to the next room."""
    x = ROOM_SIDE * number
    stops = np.array(
        [
            (x - 0.7 if number else 0.6, 1.75, 0.0 if number else 0.3),
            (x + 1.2, 1.3, 0.5),
            (x + 1.4, 2.6, 0.2),
            (x + 2.3, 2.3, -0.4),
            (x + 3.4, 1.8, 0.0) if number < ROOMS - 1 else (x + 2.2, 1.6, 1.3),
        ]
    )
    t = np.linspace(0, len(stops) - 1, frames)
    knots = np.arange(len(stops))
    kernel = np.hanning(9) / np.hanning(9).sum()
    px, py, yaw = (
        np.convolve(np.pad(np.interp(t, knots, column), 4, mode="edge"), kernel, "valid") for column in stops.T
    )
    height, pitch = 1.5 + 0.05 * np.sin(3 * t), -0.08 + 0.06 * np.sin(2 * t)
    poses = np.array([_level_pose(*each) for each in zip(px, py, height, yaw, pitch, strict=True)])
    boxes, noise = _house(np.random.default_rng(seed)), np.random.default_rng(number)
    pictures = [noisy(255 * _house_picture(boxes, T, seed), noise, 2.0) for T in poses]
    return Clip(pictures, poses, (FOCAL, FOCAL))


def _level_pose(x: float, y: float, z: float, yaw: float, pitch: float) -> FloatArray:
    """Pose with camera axes x right, y down, z forward in a world with z up."""
    forward = np.array([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)])
    right = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
    T = np.eye(4)
    T[:3, 0], T[:3, 1], T[:3, 2], T[:3, 3] = right, np.cross(forward, right), forward, (x, y, z)
    return T


def _house(random: np.random.Generator) -> FloatArray:
    """Boxes [B, 6], low and high corners: floor, ceiling, walls with doors, furniture and pictures."""
    low, high, top = DOOR
    length = ROOMS * ROOM_SIDE
    boxes = [(-0.2, -0.2, z, length + 0.2, ROOM_SIDE + 0.2, z + 0.2) for z in (-0.2, HEIGHT)]
    for begin in ROOM_SIDE * np.arange(ROOMS):
        end = begin + ROOM_SIDE
        boxes += [(begin, -THICK, 0, end, 0, HEIGHT), (begin, ROOM_SIDE, 0, end, ROOM_SIDE + THICK, HEIGHT)]
        for _ in range(7):
            size = random.uniform((0.3, 0.3, 0.3), (0.8, 0.7, 1.3))
            at = np.array([random.uniform(begin + 0.3, end - 1.1), random.choice([0.05, ROOM_SIDE - size[1] - 0.05])])
            boxes.append((*at, 0, at[0] + size[0], at[1] + size[1], size[2]))
        for _ in range(5):
            at, up, wide, tall = random.uniform((begin + 0.3, 1.2, 0.4, 0.3), (end - 1.0, 1.7, 0.8, 0.7))
            y = random.choice([0.02, ROOM_SIDE - 0.02])
            boxes.append((at, y - 0.015, up, at + wide, y + 0.015, up + tall))
    for x in ROOM_SIDE * np.arange(ROOMS + 1):
        a, b = x - THICK / 2, x + THICK / 2
        if x in (0, length):
            boxes.append((a, 0, 0, b, ROOM_SIDE, HEIGHT))
        else:
            boxes += [(a, 0, 0, b, low, HEIGHT), (a, high, 0, b, ROOM_SIDE, HEIGHT), (a, low, top, b, high, HEIGHT)]
    return np.array(boxes)


@cache
def _texture(seed: int, face: int) -> NDArray[np.float32]:
    """Texture [side, side, 3] of patches and grain about a base colour, which no other face has.

    Floor and ceiling reach over all rooms: one that came again would make these alike.
    """
    random, side = np.random.default_rng([seed, face]), 2048 if face < 6 else 512
    base = random.uniform(0.35, 0.75, 3)
    grey = _grain(random, side, {side // 64: 0.09, side // 16: 0.1, side // 4: 0.12, side // 2: 0.08})
    return np.clip(base * (1 + grey[..., None]), 0, 1).astype(np.float32)


def _house_picture(boxes: FloatArray, T_world_camera: FloatArray, seed: int) -> FloatArray:
    """What a camera sees [h, w, 3], from 0 to 1; each side of a box has a texture of its own."""
    width, height = SIZE
    u, v = np.meshgrid(np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2)
    rays = np.stack([u / FOCAL, v / FOCAL, np.ones_like(u)], axis=-1) @ T_world_camera[:3, :3].T
    rays = np.where(np.abs(rays) < 1e-9, 1e-9, rays)
    centre = T_world_camera[:3, 3]
    nearest, face = np.full(u.shape, np.inf), np.zeros(u.shape, np.intp)
    for number, box in enumerate(boxes):
        first, second = (box[:3] - centre) / rays, (box[3:] - centre) / rays
        enter = np.minimum(first, second)
        t, leave = enter.max(axis=-1), np.maximum(first, second).min(axis=-1)
        hit = (t > 0.02) & (t < leave) & (t < nearest)
        nearest[hit], face[hit] = t[hit], (3 * number + enter.argmax(axis=-1))[hit]
    point = centre + np.minimum(nearest, 50.0)[..., None] * rays
    image = np.zeros((height, width, 3))
    light = 1.0 / (1 + 0.03 * np.linalg.norm(point - (6.0, 2.0, 2.4), axis=-1) ** 2)
    for each in np.unique(face).tolist():
        axis = each % 3
        a, b = ((point[..., k] * 110).astype(np.float32) for k in range(3) if k != axis)
        seen = cv2.remap(_texture(seed, each), a, b, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        image = np.where((face == each)[..., None], seen * (0.75 + 0.1 * axis), image)
    return np.asarray(image * (0.5 + 0.6 * light[..., None]))
