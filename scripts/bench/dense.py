"""Multi-view stereo of a rendered room: time of a keyframe, agreement of the backends, and errors.

The prior is the true depth with smooth errors of 10 %, as a network makes them. The first pass records the operations
on a GPU, and the second one is timed. On a CPU, time is that of one core.
"""

import time
from argparse import ArgumentParser, Namespace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from bench.table import header, row
from stream_recon.app.core.types import Certainty, Intrinsics
from stream_recon.app.slam.dense.arrays import Arrays
from stream_recon.app.slam.dense.stereo import DenseDepth, DenseStereo, arrays_for
from stream_recon.app.slam.dense.views import StereoView
from training.synthetic.generator import ROOM, SceneGenerator, SceneShares

FOCAL = 0.85
"""Focal length in widths of the image."""
SEED, IMAGE_NOISE = 5, 1.5
"""Of the room; grey levels."""
CHUNK = 8
"""Images that are rendered at once."""
PRIOR_ERROR = 0.1
"""Standard deviation of the prior's log depth."""
MAX_DEPTH = 60.0
"""In metres; what is beyond does not count."""
SAME = 0.01
"""Relative difference up to which two backends agree."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--devices", nargs="+", help="cpu, cuda; the first one is compared with (default: all)")
    parser.add_argument("--keyframes", type=int, default=96, help="number of keyframes (default 96)")
    parser.add_argument("--side", type=int, default=384, help="longer side of the maps in pixels (default 384)")


def run(options: Namespace) -> None:
    devices = options.devices or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    views, truths = rendered_views(options.keyframes, options.side)
    print(f"{len(views)} keyframes of {views[0].size[0]}x{views[0].size[1]}")
    columns = "ms a keyframe", "first pass, s", "GPU MiB", "AbsRel: prior, dense", "confirmed", "same as first"
    header("device", *columns)
    reference: list[DenseDepth] | None = None
    for device in devices:
        arrays, is_gpu = arrays_for(device), device != "cpu"
        first = _timed(arrays, views, options.side)[0] if is_gpu else 0.0
        seconds, maps = _timed(arrays, views, options.side)
        reference = reference or maps
        before = np.mean([_absrel(v.prior, t) for v, t in zip(views, truths, strict=True)])
        after = np.mean([_absrel(m.depth, t) for m, t in zip(maps, truths, strict=True)])
        row(
            torch.cuda.get_device_name() if is_gpu else "1 core",
            f"{1e3 * seconds / len(views):.1f}",
            f"{first:.1f}",
            f"{torch.cuda.max_memory_allocated() / 2**20 if is_gpu else 0:.0f}",
            f"{before:.4f}, {after:.4f}",
            f"{np.mean([(m.certainty == Certainty.CONFIRMED).mean() for m in maps]):.1%}",
            f"{_agreement(reference, maps):.2%}",
        )


def rendered_views(count: int, side: int) -> tuple[list[StereoView], list[NDArray[np.float32]]]:
    """Views of a walk through a room, and their true depths [h, w]."""
    width, height, focal = side, side * 3 // 4, FOCAL * side
    generator = SceneGenerator("cpu", SEED, degrade=False, shares=SceneShares(turning=0.0))
    world, poses = generator.build(generator.draw_layouts([ROOM], count))
    focals, image_noise, noise = torch.full((1, 2), focal), np.random.default_rng(0), np.random.default_rng(0)
    camera = Intrinsics(focal, focal, width / 2, height / 2)
    views: list[StereoView] = []
    truths: list[NDArray[np.float32]] = []
    for some in poses.split(CHUNK, dim=1):
        images, depths = generator.renderer.render(world, some, focals, height, width)
        rgbs = np.rint(255 * images[0].clamp(0, 1).permute(0, 2, 3, 1).double().numpy())
        for rgb, depth, pose in zip(rgbs, depths[0].numpy(), some[0].numpy().astype(np.float64), strict=True):
            noisy = np.clip(rgb + image_noise.normal(0, IMAGE_NOISE, rgb.shape), 0, 255).astype(np.uint8)
            grey = cv2.cvtColor(noisy, cv2.COLOR_RGB2GRAY).astype(np.float32)
            truth = np.where(depth < MAX_DEPTH, depth, 0).clip(min=0).astype(np.float32)
            error = cv2.resize(noise.normal(0, PRIOR_ERROR, (6, 8)), (width, height), interpolation=cv2.INTER_CUBIC)
            views.append(StereoView(len(views), grey, camera, pose, (truth * np.exp(error)).astype(np.float32)))
            truths.append(truth)
    return views, truths


def _timed(arrays: Arrays, views: list[StereoView], side: int) -> tuple[float, list[DenseDepth]]:
    """Seconds, and the maps."""
    clock = time.process_time if arrays.views_at_once == 1 else time.perf_counter
    begin = clock()
    stereo = DenseStereo(arrays, side)
    maps = [found for view in views for found in stereo.push(view)] + stereo.finish()
    return clock() - begin, maps


def _absrel(depth: NDArray[np.float32], truth: NDArray[np.float32]) -> float:
    known = (depth > 0) & (truth > 0)
    return float(np.mean(np.abs(depth[known] / truth[known] - 1)))


def _agreement(reference: list[DenseDepth], maps: list[DenseDepth]) -> float:
    """Share of pixels whose depths agree, or are both unknown."""
    shares = [
        np.mean(np.abs(a.depth - b.depth) <= SAME * np.maximum(a.depth, b.depth))
        for a, b in zip(reference, maps, strict=True)
    ]
    return float(np.mean(shares))
