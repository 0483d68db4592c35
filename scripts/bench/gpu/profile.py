"""Table of the kernels of one captured step of the embedded network, by the profiler."""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from bench.films import SIZE, frame_at, sample_frames
from bench.gpu.measure import describe_gpu, milliseconds, release_memory
from bench.gpu.program import describe_weights, embedded_network
from bench.table import header, row
from stream_recon.app.core.types import Frame
from stream_recon.app.engine.batched import StreamBatch
from stream_recon.app.engine.device_transfer import to_images
from stream_recon.app.engine.stream import Stream
from stream_recon.app.sources.preprocess import plan_image, prepare
from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET

WARM, PROFILED = 12, 20
"""Steps before, and those that the profiler sees."""
BATCH = 32
SHORT_US = 5.0
KINDS = (
    ("copies and fills", r"^(Mem|mem)"),
    ("attention", r"sdpa|flash_fprop|^_attend|^_merge|^_join_parts"),
    ("convolutions", r"fprop|dgrad|convolve|cudnn|nhwc|cutlass__5x_cudnn"),
    ("matrix products", r"nvjet|gemm|gemv|cublas|splitK"),
    ("own kernels between them (Triton)", r"^_"),
    ("element-wise and other kernels of torch", r""),
)
"""Names of kernels, the first pattern that occurs."""


@dataclass
class Profile:
    """Kernels of a step."""

    wall: float
    """Milliseconds of a step, without the profiler."""
    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Of each kind, a step."""
    microseconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    short: float = 0.0
    """Kernels shorter than `SHORT_US`."""
    names: dict[str, list[float]] = field(default_factory=dict)
    """Calls and microseconds of each kernel, a step."""

    @property
    def kernels(self) -> float:
        return sum(count for kind, count in self.counts.items() if kind != KINDS[0][0])

    @property
    def busy(self) -> float:
        """Milliseconds in which kernels ran, one after the other."""
        return sum(self.microseconds.values()) / 1e3


def bench_profile() -> None:
    release_memory()
    preset = load_preset(EMBEDDED_PRESET)
    network, frames = embedded_network(preset), sample_frames()
    transform = plan_image(SIZE, preset.image, preset.network.patch_size)
    side, scale = preset.network.patch_size, preset.stream.scale_frames
    grid = (transform.network_size[1] // side, transform.network_size[0] // side)

    def images(first: int, count: int) -> torch.Tensor:
        pixels = [prepare(Frame(0, 0.0, frame_at(frames, first + i)), transform).rgb for i in range(count)]
        return to_images(np.stack(pixels), network.image_mean.device)

    stream = Stream(network, preset, grid)
    stream.step(images(0, scale))
    one = profile_of(lambda image: stream.step(image), [images(scale + i, 1) for i in range(WARM)])
    batch = StreamBatch(network, preset, grid, BATCH)
    slots = [batch.allocate_slot() or 0 for _ in range(BATCH)]
    for number, slot in enumerate(slots):
        batch.begin(slot, images(7 * number, scale))
    steps = [torch.cat([images(7 * n + scale + i, 1) for n in range(BATCH)]) for i in range(WARM)]
    many = profile_of(lambda image: batch.step(slots, image), steps)
    print_table(one, many)


def profile_of(step: Callable[[torch.Tensor], object], images: list[torch.Tensor]) -> Profile:
    for image in images:
        step(image)
    last = images[-1]
    found = Profile(milliseconds(lambda: step(last)))
    torch.cuda.synchronize()
    with torch_profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED):
            step(last)
        torch.cuda.synchronize()
    for event in profiler.events() or []:
        if not str(event.device_type).endswith("CUDA"):
            continue
        kind = next(kind for kind, pattern in KINDS if re.search(pattern, event.name))
        found.counts[kind] += 1 / PROFILED
        found.microseconds[kind] += event.device_time / PROFILED
        found.short += (event.device_time < SHORT_US and kind != KINDS[0][0]) / PROFILED
        calls = found.names.setdefault(event.name, [0.0, 0.0])
        calls[0] += 1 / PROFILED
        calls[1] += event.device_time / PROFILED
    return found


def print_table(one: Profile, many: Profile) -> None:
    title = f"kernels of a captured step, embedded preset, {describe_weights()}, {describe_gpu()}"
    print()
    header(title, "one stream", f"{BATCH} streams")
    both = (one, many)
    row("step", *(f"{p.wall:.2f} ms, busy {p.busy:.2f}" for p in both))
    row("kernels", *(f"{p.kernels:.0f}, {p.short:.0f} of them under {SHORT_US:.0f} us" for p in both))
    for kind, _ in KINDS[1:] + KINDS[:1]:
        row(kind, *(f"{p.counts[kind]:.0f} in {p.microseconds[kind]:.0f} us" for p in both))
    for title, found in (("one stream", one), (f"{BATCH} streams", many)):
        print(f"longest of {title}:")
        for name, (count, time) in sorted(found.names.items(), key=lambda item: -item[1][1])[:70]:
            print(f"  {time:8.1f} us {count:6.1f} x {name[:170]}")
