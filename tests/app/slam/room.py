"""Synthetic box room with noise textures, and results of a network that drifts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameResult, ImageTransform, Intrinsics
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.slam.frame_data import DepthOf, DepthReader, FrameData, Scale
from tests.app.fake_engine import run_info

FloatArray = NDArray[np.float64]

SIZE = (320, 240)
FOCAL = 260.0


def _texture(seed: int) -> NDArray[np.float32]:
    random = np.random.default_rng(seed)
    picture = np.zeros((1024, 1024), np.float32)
    for cells in (16, 64, 256):
        picture += cv2.resize(random.normal(0, 40, (cells, cells)).astype(np.float32), (1024, 1024))
    return np.clip(128 + picture, 0, 255)


@dataclass(frozen=True)
class Room:
    """A box about the origin."""

    half: FloatArray  # [3], half its sides
    textures: Sequence[NDArray[np.float32]]
    """Of the walls in the directions -x, x, -y, y, -z and z."""


ROOM = Room(np.array([2.5, 1.6, 3.0]), [_texture(seed) for seed in range(6)])


def pose(position: Sequence[float], yaw: float, pitch: float = 0.0, roll: float = 0.0) -> FloatArray:
    """Camera axes x right, y down, z forward; a positive pitch looks down."""
    Ry = cv2.Rodrigues(np.array([0.0, yaw, 0.0]))[0]
    Rx = cv2.Rodrigues(np.array([-pitch, 0.0, 0.0]))[0]
    Rz = cv2.Rodrigues(np.array([0.0, 0.0, roll]))[0]
    T = np.eye(4)
    T[:3, :3], T[:3, 3] = Ry @ Rx @ Rz, position
    return T


def walk(count: int) -> FloatArray:
    """Poses [count, 4, 4] along an arc, looking about."""
    t = np.linspace(0, 1, count)
    return np.array([pose((1.2 * np.sin(2 * s), 0.1 * np.sin(9 * s), s - 1), 1.2 * s, 0.1 * np.sin(7 * s)) for s in t])


def look_down(count: int) -> FloatArray:
    """Poses [count, 4, 4] of a camera that looks straight down and rotates by a large angle at each step."""
    turns = np.cumsum(np.random.default_rng(2).choice([0.4, 1.5, 2.6, 3.1, -1.3], count))
    t = np.linspace(0, 2 * np.pi, count)
    return np.array(
        [
            pose((0.7 * np.sin(s), -0.9, 0.5 * np.cos(2 * s)), 0.0, np.pi / 2 - 0.1, r)
            for s, r in zip(t, turns, strict=True)
        ]
    )


def picture(T: FloatArray, draw: int = 0, room: Room = ROOM) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """What a camera sees: rgb [h, w, 3], with another noise for each ``draw``, and depth [h, w]."""
    width, height = SIZE
    u, v = np.meshgrid(np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2)
    rays = np.stack([u / FOCAL, v / FOCAL, np.ones_like(u)], axis=-1) @ T[:3, :3].T
    rays = np.where(np.abs(rays) < 1e-9, 1e-9, rays)
    walls = np.where(rays > 0, room.half - T[:3, 3], -room.half - T[:3, 3]) / rays
    axis, depth = walls.argmin(axis=-1), walls.min(axis=-1)
    hit = T[:3, 3] + depth[..., None] * rays
    grey = np.zeros(depth.shape, np.float32)
    for k in range(3):
        for side in (0, 1):
            shown = (axis == k) & ((rays[..., k] > 0) == bool(side))
            if shown.any():
                a, b = (hit[..., m] for m in range(3) if m != k)
                place = ((a + 4) * 120).astype(np.float32), ((b + 4) * 120).astype(np.float32)
                seen = cv2.remap(room.textures[2 * k + side], *place, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
                grey = np.where(shown, seen, grey)
    # By the pose and the draw alone, so that a test sees the same whatever ran before it.
    noise = np.random.default_rng([draw, *np.frombuffer(np.ascontiguousarray(T, np.float64).tobytes(), np.uint32)])
    grey = np.clip(grey + noise.normal(0, 1.5, grey.shape), 0, 255).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2), depth.astype(np.float32)


def network_result(index: int, T: FloatArray, focal: float, rgb: NDArray[np.uint8], depth: FloatArray) -> FrameResult:
    """Depth maps and pictures at three quarters of the source's size."""
    width, height = SIZE
    small = (3 * width // 4, 3 * height // 4)
    return FrameResult(
        index=index,
        timestamp=index / 10,
        T_world_camera=T,
        intrinsics=Intrinsics(focal, focal, width / 2, height / 2),
        depth=np.asarray(cv2.resize(depth.astype(np.float32), small, interpolation=cv2.INTER_AREA)),
        confidence=np.ones((small[1], small[0]), np.float32),
        rgb=np.asarray(cv2.resize(rgb, small, interpolation=cv2.INTER_AREA)),
        transform=ImageTransform(SIZE, (0.0, 0.0, float(width), float(height)), small),
        is_keyframe=True,
    )


def drifting(truth: FloatArray, turn_deg: float, move: float, seed: int = 1) -> FloatArray:
    """True poses with accumulated errors: of each step's rotation, and of its relative length."""
    random = np.random.default_rng(seed)
    poses = [truth[0]]
    for before, after in pairwise(truth):
        step = np.linalg.inv(before) @ after
        step[:3, :3] = step[:3, :3] @ cv2.Rodrigues(np.radians(random.normal(0, turn_deg, 3)))[0]
        step[:3, 3] *= 1 + random.normal(0, move)
        poses.append(poses[-1] @ step)
    return np.array(poses)


class Video:
    """Frames of a camera in the room with network results; also `keyframe_matching.Images`."""

    def __init__(
        self,
        truth: FloatArray,
        guessed: FloatArray,
        focal: float = 1.08 * FOCAL,
        scale_noise: float = 0.05,
        draw: int = 0,
        room: Room = ROOM,
    ) -> None:
        self.truth = truth
        random = np.random.default_rng(5)
        self.scale = Scale.from_source_size(SIZE)
        self.pictures, self.results = [], []
        for index, (T, guess) in enumerate(zip(truth, guessed, strict=True)):
            rgb, depth = picture(T, draw, room)
            wrong = depth * np.exp(random.normal(0, scale_noise))
            self.pictures.append(rgb)
            self.results.append(network_result(index, guess, focal, rgb, wrong))

    def distort(self, k1: float) -> None:
        """Add radial distortion to all images."""
        width, height = SIZE
        u, v = np.meshgrid(np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2)
        seen = np.stack([u, v], axis=-1) / FOCAL
        plain = seen
        for _ in range(30):
            plain = seen / (1 + k1 * np.square(plain).sum(axis=-1, keepdims=True))
        place = (plain * FOCAL + (width / 2, height / 2) - 0.5).astype(np.float32)
        place = place[..., 0], place[..., 1]
        for k, (rgb, T) in enumerate(zip(self.pictures, self.truth, strict=True)):
            distorted = cv2.remap(rgb, *place, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
            depth = cv2.remap(picture(T)[1], *place, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
            old = self.results[k]
            self.pictures[k] = np.asarray(distorted)
            self.results[k] = network_result(
                old.index, old.T_world_camera, old.intrinsics.fx, self.pictures[k], np.asarray(depth)
            )

    def cover(self, frames: Sequence[int], share: float = 0.5) -> None:
        """A textured object moves across some images; its sides are ``share`` of theirs."""
        width, height = SIZE
        size = (int(share * width), int(share * height))
        patch = np.random.default_rng(4).normal(128, 60, (60, 80)).clip(0, 255).astype(np.uint8)
        patch = np.asarray(cv2.resize(patch, size, interpolation=cv2.INTER_CUBIC))
        for number, k in enumerate(frames):
            left, top = int(4 + 7 * number) % (width - size[0]), int(6 + 3 * number) % (height - size[1])
            self.pictures[k] = self.pictures[k].copy()
            self.pictures[k][top : top + size[1], left : left + size[0]] = patch[..., None]

    def cut(self, at: int, world: Similarity) -> None:
        """From a frame on, the network is in another segment and world."""
        for k in range(at, len(self.results)):
            old = self.results[k]
            pose, depth = world.move_pose(old.T_world_camera), (world.scale * old.depth).astype(np.float32)
            self.results[k] = replace(old, T_world_camera=pose, depth=depth, segment=1)

    def blank(self) -> None:
        """Make all images uniform."""
        self.pictures = [np.full_like(rgb, 90) for rgb in self.pictures]
        self.results = [replace(result, rgb=np.full_like(result.rgb, 90)) for result in self.results]

    def write_images(self, folder: Path) -> None:
        """A source of them: a new folder."""
        folder.mkdir()
        for index, rgb in enumerate(self.pictures):
            cv2.imwrite(str(folder / f"{index:06d}.png"), rgb[..., ::-1])

    @property
    def camera_option(self) -> str:
        """The camera of the results as ``--intrinsics`` takes it. It halves the time of refinement."""
        (width, height), focal = self.results[0].transform.source_size, self.results[0].intrinsics.fx
        return f"{focal},{focal},{width / 2 - 0.5},{height / 2 - 0.5}"

    def write_result(self, folder: Path, *, known_camera: bool = False) -> None:
        """Write the network's results as a finished result, in a new folder."""
        info = run_info()
        if known_camera:
            info = replace(info, options=info.options | {"camera": self.camera_option})
        writer = ResultWriter(folder, info)
        for result in self.results:
            writer.add(result)
        writer.finish(RunSummary(interrupted=False))

    def views(self) -> list[FrameData]:
        return [FrameData.from_result(result, self.scale) for result in self.results]

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8], DepthOf]]:
        for k in positions:
            yield k, self.scale.grey(self.pictures[k]), partial(DepthReader.from_result, self.results[k], self.scale)
