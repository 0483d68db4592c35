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

from bench.scenarios.images import rendered
from bench.table import header, row
from stream_recon.app.core.types import Certainty, Intrinsics
from stream_recon.app.slam.dense.arrays import Arrays
from stream_recon.app.slam.dense.stereo import DenseDepth, DenseStereo, arrays_for
from stream_recon.app.slam.dense.views import StereoView
from training.synthetic.generator import ROOM

FOCAL = 0.85
"""Focal length in widths of the image."""
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
    size, focal = (side, side * 3 // 4), FOCAL * side
    clip, noise = rendered(ROOM, count, 5, size=size, focal=focal), np.random.default_rng(0)
    assert clip.depth is not None
    camera = Intrinsics(focal, focal, size[0] / 2, size[1] / 2)
    views, truths = [], []
    for number, (rgb, depth, pose) in enumerate(zip(clip.images, clip.depth, clip.T_world_camera, strict=True)):
        truth = np.where(depth < MAX_DEPTH, depth, 0).clip(min=0).astype(np.float32)
        error = cv2.resize(noise.normal(0, PRIOR_ERROR, (6, 8)), size, interpolation=cv2.INTER_CUBIC)
        grey = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY).astype(np.float32)
        views.append(StereoView(number, grey, camera, pose, (truth * np.exp(error)).astype(np.float32)))
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
