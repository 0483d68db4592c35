"""Errors of merges of rendered videos: rooms walked twice with other light and lens, and the rooms of a house.

Each video is reconstructed and refined for itself, then they are merged. The error of the merge is compared with those
of its parts; the seam is how far frames of two videos lie from where the truth has them relative to each other.
"""

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from bench.cases import FOCAL, Clip, FloatArray, written
from stream_recon.app.core.transforms import align
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.run.session import Output, RunOptions, Session
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages.finish import Finisher, FinishSteps
from stream_recon.app.stages.merge import merge_results
from stream_recon.configs.errors import InputError
from training.synthetic.generator import ROOM, SceneGenerator, SceneShares

SIZE = (320, 240)
FRAMES = 48
SEEDS = (1, 2, 4, 5)
"""Of rooms with texture; 3 and 11 have nearly none."""
HOUSE_SEED = 11
ROOM_SIDE, HEIGHT, THICK = 4.0, 2.6, 0.12
"""Rooms of the house are squares in a row along x, in metres; z is up."""
DOOR = (1.2, 2.4, 2.1)
"""Lowest and highest y of a door, and its height."""


def bench_places(frames: int, seeds: Sequence[int], work: Path) -> None:
    """Print a line for each place."""
    engine = load_engine()
    print("| videos | ATE / path alone | in the merge | all together | seam / path |")
    print("|---|---|---|---|---|")
    cases = [(f"room{seed}", f"room {seed}, other light and lens", walked_twice(frames, seed)) for seed in seeds]
    cases.append(("house", "house, three rooms through doors", [house_video(number, frames) for number in range(3)]))
    for short, name, clips in cases:
        folders = [reconstructed(engine, clip, work / f"{short}-{k}") for k, clip in enumerate(clips)]
        target = work / f"{short}-all"
        try:
            merged = merge_results(folders, target, FinishSteps(refine=True))
        except InputError as error:
            print(f"| {name} | {error} | | | |", flush=True)
            continue
        assert merged is not None
        left = f" ({', '.join(merged.left_out)} left out)" if merged.left_out else ""
        print(f"| {name}{left} | {_figures(folders, target, clips)} |", flush=True)
    try:
        merge_results([work / f"room{seeds[0]}-0", work / "house-0"], work / "none", FinishSteps(refine=True))
        print("| room and house | merged, though they share nothing | | | |")
    except InputError:
        print("| room and house, which share nothing | stay two | | | |")


def _figures(folders: Sequence[Path], target: Path, clips: Sequence[Clip]) -> str:
    truth = [clip.T_world_camera[:, :3, 3] for clip in clips]
    path = sum(float(np.linalg.norm(np.diff(each, axis=0), axis=1).sum()) for each in truth)
    lengths = [float(np.linalg.norm(np.diff(each, axis=0), axis=1).sum()) for each in truth]
    alone = [
        _rmse(_positions(folder), each) / length for folder, each, length in zip(folders, truth, lengths, strict=True)
    ]
    joined = read_result(target)
    parts = [
        np.array([c.T_world_camera[:3, 3] for c in joined.cameras if c.segment == segment])
        for segment in range(len(clips))
    ]
    inside = [_rmse(part, each) / length for part, each, length in zip(parts, truth, lengths, strict=True)]
    together = _rmse(np.concatenate(parts), np.concatenate(truth)) / path
    S = align(parts[0], truth[0])
    # By the first video's alignment, the others lie off by the seam's error.
    seams = [
        float(np.linalg.norm((S.apply(b) - tb).mean(axis=0))) / path for b, tb in zip(parts[1:], truth[1:], strict=True)
    ]
    texts = [", ".join(f"{value:.4f}" for value in values) for values in (alone, inside, [together], seams)]
    return " | ".join(texts)


def _positions(folder: Path) -> FloatArray:
    return np.array([camera.T_world_camera[:3, 3] for camera in read_result(folder).cameras])


def _rmse(found: FloatArray, truth: FloatArray) -> float:
    return float(np.sqrt((np.linalg.norm(align(found, truth).apply(found) - truth, axis=1) ** 2).mean()))


def reconstructed(engine: Engine, clip: Clip, folder: Path) -> Path:
    """The refined result of a clip."""
    images = folder.with_name(folder.name + "-images")
    written(clip, images)
    open_images = partial(open_source, str(images / "rgb"))
    engine.reset()
    with open_images() as source:
        output = Output(folder, RunInfo.from_engine(engine, folder.name, {"source": str(images / "rgb")}))
        with Session(engine, source, open_images, RunOptions("full"), output) as session:
            session.reconstruct()
    Finisher(folder, open_images).run(FinishSteps(refine=True))
    return folder


def walked_twice(frames: int, seed: int) -> list[Clip]:
    """A room walked there and back on another track, in dim warm light with a longer lens."""
    generator = SceneGenerator("cpu", seed, degrade=False, shares=SceneShares(motion="walk", turning=0.0))
    layouts = generator.draw_layouts([ROOM], frames)
    world, poses = generator.build(layouts)
    path = layouts[0].path
    path.position[..., :2] += 0.12
    path.position[..., 2] += 0.1
    path.yaw[:] += 0.12 * torch.sin(torch.linspace(0, 6, frames))
    back = path.poses().flip(1)
    clips = []
    for T, focal, light in ((poses, FOCAL, None), (back, 1.25 * FOCAL, (0.75, 0.6, 0.42))):
        images, _ = generator.renderer.render(world, T, torch.full((1, 2), focal), SIZE[1], SIZE[0])
        rgb = images[0].clamp(0, 1).permute(0, 2, 3, 1).numpy()
        if light is not None:
            rgb = (rgb * light) ** 1.3
        pictures = [_noisy(picture, number) for number, picture in enumerate(rgb)]
        clips.append(Clip(pictures, T[0].numpy().astype(np.float64), (focal, focal)))
    return clips


def house_video(number: int, frames: int) -> Clip:
    """A walk that begins before a room's door, or at its far wall, and ends in the door to the next room."""
    x = ROOM_SIDE * number
    stops = np.array(
        [
            (x - 0.7 if number else 0.6, 1.75, 0.0 if number else 0.3),
            (x + 1.2, 1.3, 0.5),
            (x + 1.4, 2.6, 0.2),
            (x + 2.3, 2.3, -0.4),
            (x + 3.4, 1.8, 0.0) if number < 2 else (x + 2.2, 1.6, 1.3),
        ]
    )
    t = np.linspace(0, len(stops) - 1, frames)
    knots = np.arange(len(stops))
    kernel = np.hanning(9) / np.hanning(9).sum()
    px, py, yaw = (
        np.convolve(np.pad(np.interp(t, knots, column), 4, mode="edge"), kernel, "valid") for column in stops.T
    )
    height = 1.5 + 0.05 * np.sin(3 * t)
    pitch = -0.08 + 0.06 * np.sin(2 * t)
    poses = np.array([_pose(*each) for each in zip(px, py, height, yaw, pitch, strict=True)])
    house = House()
    return Clip([_noisy(house.picture(T), k) for k, T in enumerate(poses)], poses, (FOCAL, FOCAL))


def _noisy(rgb: NDArray[np.floating], number: int) -> NDArray[np.uint8]:
    noise = np.random.default_rng(number).normal(0, 2.0, rgb.shape)
    return np.asarray(np.clip(255 * rgb + noise, 0, 255), np.uint8)


def _pose(x: float, y: float, z: float, yaw: float, pitch: float) -> FloatArray:
    """Pose with camera axes x right, y down, z forward in a world with z up."""
    forward = np.array([np.cos(yaw) * np.cos(pitch), np.sin(yaw) * np.cos(pitch), np.sin(pitch)])
    right = np.array([np.sin(yaw), -np.cos(yaw), 0.0])
    T = np.eye(4)
    T[:3, 0], T[:3, 1], T[:3, 2], T[:3, 3] = right, np.cross(forward, right), forward, (x, y, z)
    return T


class House:
    """Three rooms with furniture: boxes and walls with doors, each side with a texture of its own."""

    def __init__(self) -> None:
        random = np.random.default_rng(HOUSE_SEED)
        low, high, _ = DOOR
        boxes = [(-0.2, -0.2, -0.2, 3 * ROOM_SIDE + 0.2, ROOM_SIDE + 0.2, 0.0)]  # floor
        boxes += [(-0.2, -0.2, HEIGHT, 3 * ROOM_SIDE + 0.2, ROOM_SIDE + 0.2, HEIGHT + 0.2)]
        for room in range(3):
            begin, end = ROOM_SIDE * room, ROOM_SIDE * (room + 1)
            boxes += [(begin, -THICK, 0, end, 0, HEIGHT), (begin, ROOM_SIDE, 0, end, ROOM_SIDE + THICK, HEIGHT)]
            for _ in range(7):
                size = random.uniform((0.3, 0.3, 0.3), (0.8, 0.7, 1.3))
                side = random.integers(2)
                at = np.array([random.uniform(begin + 0.3, end - 1.1), 0.05 if side else ROOM_SIDE - size[1] - 0.05])
                boxes.append((*at, 0, at[0] + size[0], at[1] + size[1], size[2]))
            for _ in range(5):  # pictures
                at, up, wide, tall = random.uniform((begin + 0.3, 1.2, 0.4, 0.3), (end - 1.0, 1.7, 0.8, 0.7))
                y = 0.02 if random.integers(2) else ROOM_SIDE - 0.02
                boxes.append((at, y - 0.015, up, at + wide, y + 0.015, up + tall))
        for wall in range(4):
            a, b = ROOM_SIDE * wall - THICK / 2, ROOM_SIDE * wall + THICK / 2
            if wall in (0, 3):
                boxes.append((a, 0, 0, b, ROOM_SIDE, HEIGHT))
                continue
            boxes += [(a, 0, 0, b, low, HEIGHT), (a, high, 0, b, ROOM_SIDE, HEIGHT), (a, low, DOOR[2], b, high, HEIGHT)]
        self._boxes = np.array(boxes)
        # Each face has another one. Floor and ceiling reach over all rooms: one that came again would make these alike.
        self._textures: dict[int, NDArray[np.float32]] = {}

    def _texture(self, face: int) -> NDArray[np.float32]:
        if face not in self._textures:
            self._textures[face] = _texture(np.random.default_rng([HOUSE_SEED, face]), 2048 if face < 6 else 512)
        return self._textures[face]

    def picture(self, T_world_camera: FloatArray) -> FloatArray:
        """What a camera sees [h, w, 3], from 0 to 1."""
        width, height = SIZE
        u, v = np.meshgrid(np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2)
        rays = np.stack([u / FOCAL, v / FOCAL, np.ones_like(u)], axis=-1) @ T_world_camera[:3, :3].T
        rays = np.where(np.abs(rays) < 1e-9, 1e-9, rays)
        centre = T_world_camera[:3, 3]
        nearest, face = np.full(u.shape, np.inf), np.zeros(u.shape, np.intp)
        for number, box in enumerate(self._boxes):
            first, second = (box[:3] - centre) / rays, (box[3:] - centre) / rays
            enter = np.minimum(first, second)
            axis = enter.argmax(axis=-1)
            t, leave = enter.max(axis=-1), np.maximum(first, second).min(axis=-1)
            hit = (t > 0.02) & (t < leave) & (t < nearest)
            nearest[hit], face[hit] = t[hit], 3 * number + axis[hit]
        point = centre + np.minimum(nearest, 50.0)[..., None] * rays
        image = np.zeros((height, width, 3))
        light = 1.0 / (1 + 0.03 * np.linalg.norm(point - (6.0, 2.0, 2.4), axis=-1) ** 2)
        for each in np.unique(face):
            axis = each % 3
            a, b = ((point[..., k] * 110).astype(np.float32) for k in range(3) if k != axis)
            seen = cv2.remap(self._texture(int(each)), a, b, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
            image = np.where((face == each)[..., None], seen * (0.75 + 0.1 * axis), image)
        return np.asarray(image * (0.5 + 0.6 * light[..., None]))


def _texture(random: np.random.Generator, side: int) -> NDArray[np.float32]:
    """Texture [side, side, 3] of patches and grain about a base colour."""
    base = random.uniform(0.35, 0.75, 3)
    grey = np.zeros((side, side), np.float32)
    for pixels, size in ((64, 0.09), (16, 0.1), (4, 0.12), (2, 0.08)):
        cells = random.normal(0, size, (side // pixels, side // pixels)).astype(np.float32)
        grey += cv2.resize(cells, (side, side))
    return np.clip(base * (1 + grey[..., None]), 0, 1).astype(np.float32)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=FRAMES, help="of each video")
    parser.add_argument("--rooms", type=int, nargs="+", default=SEEDS, help="seeds of the rendered rooms")
    parser.add_argument("--keep", type=Path, help="folder for the results")


def run(options: Namespace) -> None:
    if options.keep is not None:
        bench_places(options.frames, options.rooms, options.keep)
        return
    with tempfile.TemporaryDirectory() as work:
        bench_places(options.frames, options.rooms, Path(work))
