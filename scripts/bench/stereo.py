"""Pairs of cameras on walks through rendered rooms with true poses: metres by their distance, and the error stated.

Walls and furniture have the sample's frames as textures. Distance, turn and field of view of the pair are drawn.
"""

import json
import tempfile
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import cv2
import numpy as np

from bench.command import run_program
from bench.films import SIZE, Picture, sample_frames
from bench.table import header
from bench.table import row as table_row
from stream_recon.app.core import so3
from stream_recon.app.core.transforms import FloatArray, align, invert_pose
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.cameras import of_bodies
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import METRIC_SCALE

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


def write_pair(random: np.random.Generator, T: FloatArray, folder: Path) -> Path:
    """Images of a pair of cameras on a walk, in EuRoC's folders; returns the file of the rig."""
    room, focal = FurnishedRoom.draw(random), SIZE[0] / 2 / np.tan(np.radians(random.uniform(60, 85)) / 2)
    S = np.eye(4)
    S[:3, :3] = so3.exp(np.radians(random.normal(0, 0.5, 3)))
    S[:3, 3] = random.uniform(0.08, 0.2), *random.normal(0, 0.002, 2)
    x, y = np.meshgrid(*((np.arange(n) + 0.5 - n / 2) / focal for n in SIZE))
    rays = np.stack([x, y, np.ones_like(x)], axis=-1)
    cameras = {}
    for name, own in (("cam0", {}), ("cam1", {"T_cn_cnm1": invert_pose(S).tolist()})):
        images = folder / name / "data"
        images.mkdir(parents=True)
        for k, pose in enumerate(T):
            picture = room.picture(pose @ S if own else pose, rays)
            noisy = (picture + random.normal(0, NOISE, picture.shape)).clip(0, 255).astype(np.uint8)
            cv2.imwrite(str(images / f"{1_400_000_000_000_000_000 + k * 50_000_000}.png"), noisy[..., ::-1])
        pinhole = {"camera_model": "pinhole", "distortion_model": "none", "distortion_coeffs": []}
        middle = [n / 2 - 0.5 for n in SIZE]
        cameras[name] = {**pinhole, "intrinsics": [focal, focal, *middle], "resolution": list(SIZE), **own}
    (folder / "rig.json").write_text(json.dumps(cameras))
    return folder / "rig.json"


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--walks", type=int, default=5)
    parser.add_argument("--frames", type=int, default=24)


def run(options: Namespace) -> None:
    header("walk", "error of metres, %", "stated, %", "ATE / path", "verdict", "seconds")
    for seed in range(options.walks):
        random = np.random.default_rng(seed)
        T = walk(random, options.frames)
        with tempfile.TemporaryDirectory() as work:
            out, rig = Path(work) / "out", write_pair(random, T, Path(work) / "film")
            words = ("--rig", rig, "--dense", "off", "--no-mesh", "--no-viewer")
            done = run_program(rig.parent, *words, out=out)
            cameras, record = list(of_bodies(read_result(out).cameras)), done.record
        # A camera that is covered has no pose.
        poses, T = np.array([camera.T_world_camera for camera in cameras]), T[[camera.index for camera in cameras]]
        error = 1 / align(poses[:, :3, 3], T[:, :3, 3]).scale - 1
        ate = pose_errors(poses, T, np.ones(len(T) - 1, bool)).ate_over_path or float("nan")
        figures = f"{100 * error:+.2f}", f"{100 * record[METRIC_SCALE]['error']:.2f}", f"{ate:.5f}"
        table_row(seed, *figures, record["verdict"]["level"], f"{done.seconds:.0f}")
