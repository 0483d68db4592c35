"""Depth edges at full image size: nearest and bilinear interpolation compared with image-guided upsampling."""

import time
from argparse import ArgumentParser, Namespace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from stream_recon.app.core.types import Frame
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.evaluation.metrics import depth_errors
from stream_recon.app.evaluation.point_errors import boundary_f1
from stream_recon.app.export.depth import upsample_depth
from training.synthetic.generator import OUTDOOR, ROOM, SceneGenerator, SceneShares

SIZE, FOCAL = (640, 480), 540.0
FRAMES, EVERY = 10, 3
FARTHEST = 60.0
"""In metres; sky and what is beyond does not count."""
SCENES = {"room": (ROOM, 5), "another room": (ROOM, 6), "outdoors": (OUTDOOR, 7), "elsewhere": (OUTDOOR, 8)}


def bench_edges() -> None:
    """A row for each rendered scene: boundary F1 and AbsRel, by the three ways."""
    engine = load_engine(device="cpu")
    print("| scene | boundary F1: nearest, bilinear, by the image | AbsRel | ms a frame |\n|---|---|---|---|")
    for name, (kind, seed) in SCENES.items():
        rows = np.array(_rows(engine, kind, seed))
        f1, absrel, (seconds,) = np.split(rows.mean(0), [3, 6])
        shown = ", ".join(f"{value:.2f}" for value in f1), ", ".join(f"{value:.3f}" for value in absrel)
        print(f"| {name} | {' | '.join(shown)} | {1e3 * seconds:.0f} |", flush=True)


def _rows(engine: Engine, kind: int, seed: int) -> list[list[float]]:
    generator = SceneGenerator("cpu", seed, degrade=False, shares=SceneShares(turning=0.0))
    world, poses = generator.build(generator.draw_layouts([kind], FRAMES))
    images, depths = generator.renderer.render(world, poses, torch.full((1, 2), FOCAL), SIZE[1], SIZE[0])
    noise, pictures = np.random.default_rng(0), []
    for image in images[0].clamp(0, 1).permute(0, 2, 3, 1).numpy():
        pictures.append(np.clip(255 * image + noise.normal(0, 1.5, image.shape), 0, 255).astype(np.uint8))
    engine.reset()
    results = [result for k, picture in enumerate(pictures) for result in engine.push(Frame(k, k / 10, picture))]
    return [
        _errors(results[k].depth, pictures[k], depths[0, k].numpy().astype(np.float64)) for k in range(0, FRAMES, EVERY)
    ]


def _errors(depth: NDArray[np.float32], image: NDArray[np.uint8], truth: NDArray[np.float64]) -> list[float]:
    begin = time.perf_counter()
    fine = upsample_depth(depth, image)
    seconds = time.perf_counter() - begin
    ways = [cv2.resize(depth, SIZE, interpolation=way) for way in (cv2.INTER_NEAREST, cv2.INTER_LINEAR)] + [fine]
    valid = (truth > 0) & (truth < FARTHEST) & np.all([way > 0 for way in ways], axis=0)
    scale = float(np.median(truth[valid] / ways[0][valid]))
    f1 = [boundary_f1(way, truth, valid) for way in ways]
    absrel = [_absrel(scale * way[valid].astype(np.float64), truth[valid]) for way in ways]
    return [*f1, *absrel, seconds]


def _absrel(depth: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    found = depth_errors(depth, truth).absrel
    assert found is not None
    return found


def add_options(parser: ArgumentParser) -> None:
    """No options."""


def run(_: Namespace) -> None:
    bench_edges()
