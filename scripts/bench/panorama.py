"""Films of 360 degrees and of an ordinary camera on the same walks, through rendered rooms with true poses.

Walls and furniture have the sample's frames as textures. Errors are ATE after Sim(3) alignment by the path's length.
"""

import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from bench.command import run_program
from bench.films import Picture, sample_frames, write_film
from bench.table import header
from bench.table import row as table_row
from stream_recon.app.core import so3
from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.cameras import of_bodies
from stream_recon.app.result.folder import read_result

WIDTH = 1600
"""Of the panoramas, in pixels."""
SIZE, FOV = (640, 480), np.radians(66)
"""Of the ordinary camera; horizontal field of view."""
METRES = 2.6
"""Width of a texture."""
ROW = 1024
"""Pixels of a row of those that are looked up at once: OpenCV bounds the sides of an image."""
NOISE = 2.0
"""Standard deviation in grey levels."""


@dataclass(frozen=True)
class FurnishedRoom:
    """A box seen from inside, and boxes in it: corners [N, 2, 3] in metres, y down, that of the room first."""

    boxes: FloatArray
    textures: list[Picture]

    @classmethod
    def draw(cls, random: np.random.Generator) -> "FurnishedRoom":
        boxes = [np.array([[-3, -1.5, -2.5], [3, 1.3, 2.5]])]
        while len(boxes) < 9:
            centre, half = random.uniform((-2.8, 0, -2.3), (2.8, 0, 2.3)), random.uniform(0.15, 0.5, 3)
            if np.hypot(centre[0] / 1.9, centre[2] / 1.5) > 1:  # beside the path
                corners = np.array([centre - half, centre + half])
                corners[:, 1] = random.uniform(-0.6, 1.0), 1.3
                boxes.append(corners)
        frames = sample_frames()
        return cls(np.array(boxes), [frames[k] for k in random.permutation(len(frames))[:40]])

    def picture(self, T: FloatArray, rays: FloatArray) -> Picture:
        """What a camera at ``T`` sees along rays [h, w, 3] of its axes."""
        origin, d = T[:3, 3], rays @ T[:3, :3].T
        d = np.where(np.abs(d) < 1e-9, 1e-9, d)
        nearest, picture = np.full(rays.shape[:2], np.inf), np.zeros((*rays.shape[:2], 3), np.uint8)
        for number, (low, high) in enumerate(self.boxes):
            first, second = (low - origin) / d, (high - origin) / d
            near, far = np.minimum(first, second), np.maximum(first, second)
            t = near.max(axis=-1) if number else far.min(axis=-1)
            axis = near.argmax(axis=-1) if number else far.argmin(axis=-1)
            is_hit = (t > 0) & (t < nearest) & ((near.max(axis=-1) < far.min(axis=-1)) | (number == 0))
            nearest = np.where(is_hit, t, nearest)
            along = ((origin - low + d * t[..., None]) * SIZE[0] / METRES).astype(np.float32)
            for k, side in product(range(3), (False, True)):
                face = is_hit & (axis == k) & ((d[..., k] > 0) == side)
                if face.any():
                    u, v = along[..., 2 if k == 0 else 0], along[..., 2 if k == 1 else 1]
                    texture = self.textures[(6 * number + 2 * k + side) % len(self.textures)]
                    column, row = (np.resize(each[face], (-(-face.sum() // ROW), ROW)) for each in (u, v))
                    seen = cv2.remap(texture, column, row, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
                    picture[face] = seen.reshape(-1, 3)[: face.sum()]
        return picture


def walk(random: np.random.Generator, frames: int) -> FloatArray:
    """Poses [frames, 4, 4] around the middle of the room, looking about."""
    s, phase = np.arange(frames) / frames, random.uniform(0, 2 * np.pi, 7)
    angle = phase[0] + 3.6 * s
    T = np.tile(np.eye(4), (frames, 1, 1))
    T[:, 0, 3] = 1.5 * np.cos(angle) + 0.1 * np.sin(5 * s + phase[1])
    T[:, 1, 3] = 0.08 * np.sin(9 * s + phase[2])
    T[:, 2, 3] = 1.15 * np.sin(angle) + 0.1 * np.sin(7 * s + phase[3])
    yaw = 0.5 * np.sin(4 * s + phase[4]) - angle
    turns = np.stack([0.06 * np.sin(6 * s + phase[5]), 0 * s, 0.05 * np.sin(5 * s + phase[6])], axis=1)
    T[:, :3, :3] = so3.exp(yaw[:, None] * np.array([0.0, 1.0, 0.0])) @ so3.exp(turns)
    return T


def sphere() -> FloatArray:
    """Rays [h, w, 3] of an equirectangular picture."""
    longitude = ((np.arange(WIDTH) + 0.5) / WIDTH - 0.5) * 2 * np.pi
    latitude = ((np.arange(WIDTH // 2) + 0.5) * 2 / WIDTH - 0.5) * np.pi
    a, e = np.meshgrid(longitude, latitude)
    return np.stack([np.cos(e) * np.sin(a), np.sin(e), np.cos(e) * np.cos(a)], axis=-1)


def plane() -> FloatArray:
    """Rays [h, w, 3] of the ordinary camera."""
    focal = SIZE[0] / 2 / np.tan(FOV / 2)
    x, y = np.meshgrid(*((np.arange(n) + 0.5 - n / 2) / focal for n in SIZE))
    return np.stack([x, y, np.ones_like(x)], axis=-1)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--walks", type=int, default=3)
    parser.add_argument("--frames", type=int, default=40)


def run(options: Namespace) -> None:
    header("walk", "film", "stream", "refined", "verdict", "seconds")
    for seed in range(options.walks):
        random = np.random.default_rng(seed)
        room, T = FurnishedRoom.draw(random), walk(random, options.frames)
        for name, rays in (("ordinary", plane()), ("360 degrees", sphere())):
            with tempfile.TemporaryDirectory() as work:
                film, out = Path(work) / "film.mp4", Path(work) / "out"
                write_film(film, (_noisy(room.picture(pose, rays), random) for pose in T))
                done = run_program(film, "--dense", "off", "--no-mesh", "--no-viewer", out=out)
                cameras = list(of_bodies(read_result(out).cameras))
                stream, refined = (
                    np.array([getattr(c, key) for c in cameras]) for key in ("T_world_camera_causal", "T_world_camera")
                )
                errors = (f"{_error(poses, T):.5f}" for poses in (stream, refined))
                table_row(seed, name, *errors, done.record["verdict"]["level"], f"{done.seconds:.0f}")


def _noisy(picture: Picture, random: np.random.Generator) -> Picture:
    return np.asarray((picture + random.normal(0, NOISE, picture.shape)).clip(0, 255), np.uint8)


def _error(poses: FloatArray, truth: NDArray[np.float64]) -> float:
    return pose_errors(poses, truth[: len(poses)], np.zeros(len(poses) - 1, bool)).ate_over_path or float("nan")
