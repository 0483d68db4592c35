"""Depth edges at full image size: nearest and bilinear interpolation compared with image-guided upsampling."""

import time
from argparse import ArgumentParser, Namespace

import cv2
import numpy as np
from numpy.typing import NDArray

from bench.scenarios.images import rendered
from bench.table import header, row
from stream_recon.app.core.types import Frame
from stream_recon.app.engine.engine import load_engine
from stream_recon.app.evaluation.metrics import depth_errors
from stream_recon.app.evaluation.point_errors import boundary_f1
from stream_recon.app.export.depth import upsample_depth
from training.synthetic.generator import OUTDOOR, ROOM

SIZE, FOCAL = (640, 480), 540.0
FRAMES, EVERY = 10, 3
MAX_DEPTH = 60.0
"""In metres; sky and what is beyond does not count."""
SCENES = {"room": (ROOM, 5), "another room": (ROOM, 6), "outdoors": (OUTDOOR, 7), "elsewhere": (OUTDOOR, 8)}


def _errors(depth: NDArray[np.float32], image: NDArray[np.uint8], truth: NDArray[np.float64]) -> list[float]:
    begin = time.perf_counter()
    fine = upsample_depth(depth, image)
    seconds = time.perf_counter() - begin
    ways = [cv2.resize(depth, SIZE, interpolation=way) for way in (cv2.INTER_NEAREST, cv2.INTER_LINEAR)] + [fine]
    valid = (truth > 0) & (truth < MAX_DEPTH) & np.all([way > 0 for way in ways], axis=0)
    scale = float(np.median(truth[valid] / ways[0][valid]))
    absrel = [depth_errors(scale * way[valid].astype(np.float64), truth[valid]).absrel or 0.0 for way in ways]
    return [*(boundary_f1(way, truth, valid) for way in ways), *absrel, seconds]


def add_options(parser: ArgumentParser) -> None:
    """No options."""


def run(_: Namespace) -> None:
    """A row for each rendered scene: boundary F1 and AbsRel, by the three ways."""
    engine = load_engine(device="cpu")
    header("scene", "boundary F1: nearest, bilinear, by the image", "AbsRel", "ms a frame")
    for name, (kind, seed) in SCENES.items():
        clip = rendered(kind, FRAMES, seed, size=SIZE, focal=FOCAL)
        assert clip.depth is not None
        engine.reset()
        results = [result for k, image in enumerate(clip.images) for result in engine.push(Frame(k, k / 10, image))]
        rows = [
            _errors(results[k].depth, clip.images[k], clip.depth[k].astype(np.float64)) for k in range(0, FRAMES, EVERY)
        ]
        f1, absrel, (seconds,) = np.split(np.mean(rows, axis=0), [3, 6])
        shown = ", ".join(f"{value:.2f}" for value in f1), ", ".join(f"{value:.3f}" for value in absrel)
        row(name, *shown, f"{1e3 * seconds:.0f}")
