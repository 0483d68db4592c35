"""Time per frame and memory of the online back end as a stream grows."""

import time
from argparse import ArgumentParser, Namespace
from statistics import median

import cv2
import numpy as np

from bench.table import row
from stream_recon.app.core.process import peak_host_memory_mb
from stream_recon.app.core.types import FrameResult, ImageTransform, Intrinsics, PreparedFrame
from stream_recon.app.slam.online.back_end import OnlineBackEnd

SIZE = (640, 360)
STEP_PX = 6
FOCAL, DISTANCE = 500.0, 2.0
EVERY = 500


def _texture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    picture = np.zeros((height, width), np.float32)
    for size in (4, 16, 64):
        coarse = rng.normal(0, 25, (height // size + 2, width // size + 2)).astype(np.float32)
        picture += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(128 + picture, 0, 255).astype(np.uint8)


def _frame(index: int, grey: np.ndarray, x: float, rng: np.random.Generator) -> tuple[FrameResult, PreparedFrame]:
    small = (224, 126)
    T = np.eye(4)
    T[:3, 3] = x + rng.normal(0, 0.003), *rng.normal(0, 0.003, 2)
    transform = ImageTransform(SIZE, (0.0, 0.0, float(SIZE[0]), float(SIZE[1])), small)
    rgb = np.zeros((small[1], small[0], 3), np.uint8)
    depth = np.full(rgb.shape[:2], DISTANCE * np.exp(rng.normal(0, 0.02)), np.float32)
    camera = Intrinsics(FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2)
    result = FrameResult(index, index / 30, T, camera, depth, np.ones_like(depth), rgb, transform, True)
    noisy = np.clip(grey + rng.normal(0, 1.5, grey.shape), 0, 255).astype(np.uint8)
    return result, PreparedFrame(index, index / 30, rgb, transform, noisy)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=5_000)


def run(options: Namespace) -> None:
    """Print figures for a camera that moves along a wall and back, with network errors of some percent."""
    rng = np.random.default_rng(0)
    wall = _texture(rng, SIZE[1], SIZE[0] + STEP_PX * 400)
    back_end, milliseconds = OnlineBackEnd(prefill=8), []
    for index in range(options.frames):
        left = abs((index + 400) % 800 - 400) * STEP_PX
        result, frame = _frame(index, wall[:, left : left + SIZE[0]], left / FOCAL * DISTANCE, rng)
        begin = time.perf_counter()
        back_end.push(result, frame)
        milliseconds.append(1e3 * (time.perf_counter() - begin))
        if (index + 1) % EVERY == 0:
            last = milliseconds[-EVERY:]
            spread = f"median {median(last):.1f}, p95 {np.percentile(last, 95):.1f}, most {max(last):.0f}"
            memory = f"{peak_host_memory_mb():.0f} MB at most"
            row(f"{index + 1} frames", f"{sum(last) / EVERY:.1f} ms a frame ({spread})", memory)
    back_end.finish()
