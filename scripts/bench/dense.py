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

from stream_recon.app.core.types import Certainty, Intrinsics
from stream_recon.app.slam.dense.arrays import Arrays, arrays_for
from stream_recon.app.slam.dense.stereo import DenseDepth, DenseStereo
from stream_recon.app.slam.dense.views import StereoView
from training.synthetic.generator import ROOM, SceneGenerator, SceneShares

FOCAL = 0.85
"""Focal length in widths of the image."""
PRIOR_ERROR = 0.1
"""Standard deviation of the prior's log depth."""
FARTHEST = 60.0
"""In metres; what is beyond does not count."""
SAME = 0.01
"""Relative difference up to which two backends agree."""
CHUNK = 8
"""Images that are rendered at once."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--devices", nargs="+", help="cpu, cuda; the first one is compared with (default: all)")
    parser.add_argument("--keyframes", type=int, default=96, help="number of keyframes (default 96)")
    parser.add_argument("--side", type=int, default=384, help="longer side of the maps in pixels (default 384)")
    parser.add_argument("--profile", action="store_true", help="print the operations that take the GPU's time")


def run(options: Namespace) -> None:
    devices = options.devices or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    views, truths = rendered_views(options.keyframes, options.side)
    print(f"{len(views)} keyframes of {views[0].size[0]}x{views[0].size[1]}")
    print("| device | ms a keyframe | first pass, s | GPU MiB | AbsRel: prior, dense | confirmed | same as first |")
    print("|---|---|---|---|---|---|---|")
    reference: list[DenseDepth] | None = None
    for device in devices:
        arrays = arrays_for(device)
        first, _ = _timed(arrays, views, options.side) if device != "cpu" else (0.0, [])
        seconds, maps = _timed(arrays, views, options.side)
        reference = reference or maps
        memory = torch.cuda.max_memory_allocated() / 2**20 if device != "cpu" else 0
        before = np.mean([_absrel(v.prior, t) for v, t in zip(views, truths, strict=True)])
        after = np.mean([_absrel(m.depth, t) for m, t in zip(maps, truths, strict=True)])
        confirmed = np.mean([(m.certainty == Certainty.CONFIRMED).mean() for m in maps])
        print(
            f"| {_name(device)} | {1e3 * seconds / len(views):.1f} | {first:.1f} | {memory:.0f} "
            f"| {before:.4f}, {after:.4f} | {confirmed:.1%} | {_agreement(reference, maps):.2%} |",
            flush=True,
        )
        if options.profile and device != "cpu":
            _profile(arrays, views, options.side)


def rendered_views(count: int, side: int) -> tuple[list[StereoView], list[NDArray[np.float32]]]:
    """Views of a walk through a room, and their true depths [h, w]."""
    generator = SceneGenerator("cpu", 5, degrade=False, shares=SceneShares(turning=0.0))
    world, poses = generator.build(generator.draw_layouts([ROOM], count))
    width, height = side, side * 3 // 4
    focal = FOCAL * width
    noise = np.random.default_rng(0)
    views, truths = [], []
    for first in range(0, count, CHUNK):
        some = poses[:, first : first + CHUNK]
        images, depths = generator.renderer.render(world, some, torch.full((1, 2), focal), height, width)
        for number, (image, depth, pose) in enumerate(zip(images[0], depths[0], some[0], strict=True), start=first):
            rgb = (255 * image.clamp(0, 1)).permute(1, 2, 0).numpy() + noise.normal(0, 1.5, (height, width, 3))
            grey = cv2.cvtColor(rgb.clip(0, 255).astype(np.uint8), cv2.COLOR_RGB2GRAY).astype(np.float32)
            truth = np.where(depth.numpy() < FARTHEST, depth.numpy(), 0).clip(min=0).astype(np.float32)
            error = cv2.resize(noise.normal(0, PRIOR_ERROR, (6, 8)), (width, height), interpolation=cv2.INTER_CUBIC)
            camera = Intrinsics(focal, focal, width / 2, height / 2)
            prior = (truth * np.exp(error)).astype(np.float32)
            views.append(StereoView(number, grey, camera, pose.numpy().astype(np.float64), prior))
            truths.append(truth)
    return views, truths


def _timed(arrays: Arrays, views: list[StereoView], side: int) -> tuple[float, list[DenseDepth]]:
    """Seconds, and the maps."""
    clock = time.process_time if arrays.views_at_once == 1 else time.perf_counter
    begin = clock()
    stereo = DenseStereo(arrays, side)
    maps = [found for view in views for found in stereo.push(view)] + stereo.finish()
    return clock() - begin, maps


def _profile(arrays: Arrays, views: list[StereoView], side: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
        _timed(arrays, views, side)
    print(record.key_averages().table(sort_by="cuda_time_total", row_limit=15))
    print(record.key_averages().table(sort_by="self_cpu_time_total", row_limit=15))


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


def _name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else "1 core"
