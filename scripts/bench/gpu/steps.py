"""Tables of the full-size network's step: as the program runs it, by other kernels, and over a long stream."""

import time
from importlib.util import find_spec
from unittest import mock

import torch

from bench.gpu.measure import GRID, Rates, StepFigures, Variant, begin_table, image_of, measure_step, row
from bench.gpu.parts import print_parts
from bench.gpu.program import embedded_network
from stream_recon.app.engine.stream import StepOptions, Stream
from stream_recon.cache.cache_dtypes import CACHE_CHOICES
from stream_recon.cache.kernels import tile_schedule
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import AttentionChoice, Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET
from stream_recon.models.network import StreamingNetwork

EIGHT_BITS = Variant("cache in 8 bits", StepOptions(cache="fp8"))
KERNELS: tuple[AttentionChoice, ...] = ("triton", "flashinfer")
VARIANTS = (
    Variant("as the program runs it"),
    Variant("without a captured graph", StepOptions(capture=False)),
    Variant("FlashInfer, captured", StepOptions("flashinfer")),
    Variant("torch, not captured", StepOptions("sdpa")),
    EIGHT_BITS,
)
SAME = 1.03
"""Steps as much apart are equally fast: two runs of one differ by so much."""
SIZES = ((28, 37), (27, 36), (21, 37), (18, 32))
"""Patches high and wide: 518x392 and 504x378 for 4:3, 518x294 and 448x252 for 16:9."""


def place_of(preset: Preset) -> str:
    return f"504x378, window {preset.stream.window} full, {preset.stream.scale_frames} scale frames, all keyframes"


def bench_step(network: StreamingNetwork, preset: Preset, frames: int, rates: Rates) -> float:
    """Milliseconds."""
    begin_table(f"step at {place_of(preset)}")
    stream, figures = measure_step(network, preset, GRID, frames)
    row(f"step, attention {figures.attention}", figures.shown)
    print_parts(stream, network, preset, rates)
    return figures.p50


def bench_kernels(network: StreamingNetwork, preset: Preset, frames: int) -> None:
    begin_table(f"ways to run the step at {place_of(preset)}")
    for variant in VARIANTS:
        try:
            # The stream is let go of at once: the next one's memory is measured, too.
            figures = measure_step(network, preset, GRID, frames, variant)[1]
        except (ResourceError, ImportError) as error:
            row(variant.name, f"not here: {str(error).splitlines()[0]}")
            continue
        row(f"{variant.name}, attention {figures.attention}", figures.shown)


def bench_choice(network: StreamingNetwork, preset: Preset, frames: int) -> None:
    """What `--attention auto` takes, beside every way to run the step, for each preset and size."""
    begin_table("what auto takes, and the step by every kernel, window full, all keyframes")
    small = load_preset(EMBEDDED_PRESET, {"stream.keyframes": "every"})
    cases = [(embedded_network(small), small, (12, 16)), *((network, preset, size) for size in SIZES)]
    for of_preset, chosen_preset, grid in cases:
        taken = Stream(of_preset, chosen_preset, grid).attention
        took: dict[str, StepFigures] = {}
        for name in KERNELS if find_spec("flashinfer") else KERNELS[:1]:
            try:
                variant = Variant(name, StepOptions(name))
                took[name] = measure_step(of_preset, chosen_preset, grid, frames, variant)[1]
            except (ResourceError, ImportError, RuntimeError) as error:
                row(name, f"not here: {str(error).splitlines()[0]}")
        best = min(figures.p50 for figures in took.values())
        verdict = "" if took[taken].p50 <= SAME * best else " NOT THE FASTEST"
        shown = ", ".join(f"{name} {f.p50:.2f} ms (p95 {f.p95:.2f})" for name, f in took.items())
        size = f"{chosen_preset.name}, {14 * grid[1]}x{14 * grid[0]}"
        row(size, f"auto takes {taken}{verdict}; {shown}")


def bench_eight_bits(network: StreamingNetwork, preset: Preset, frames: int) -> None:
    """The cache in 8 bits by itself, so that the peak is no other stream's."""
    begin_table(f"cache in 8 bits at {place_of(preset)}")
    figures = measure_step(network, preset, GRID, frames, EIGHT_BITS)[1]
    row(f"{EIGHT_BITS.name}, attention {figures.attention}", figures.shown)


def bench_sizes(network: StreamingNetwork, preset: Preset, frames: int) -> None:
    """What splitting attention into parts gives, both ways in turn; see `tile_schedule`."""
    begin_table(
        f"step with window {preset.stream.window} full, all keyframes: attention in whole tiles, in parts, twice"
    )
    for rows, columns in SIZES:
        for cache in CACHE_CHOICES:
            variant = Variant(cache, StepOptions("triton", cache=cache))
            took = []
            for max_parts in (1, tile_schedule.MAX_PARTS) * 2:
                with mock.patch.object(tile_schedule, "MAX_PARTS", max_parts):
                    tile_schedule.schedule_tiles.cache_clear()
                    took.append(measure_step(network, preset, (rows, columns), frames, variant)[1].p50)
            tile_schedule.schedule_tiles.cache_clear()
            shown = ", ".join(f"{milliseconds:.2f}" for milliseconds in took)
            row(f"{14 * columns}x{14 * rows}, cache {cache}", f"{shown} ms")


def bench_long(network: StreamingNetwork, preset: Preset, frames: int) -> None:
    """Whether steps and memory stay what they are."""
    assert frames >= 1500, "the last 500 steps come after step 1,000"
    begin_table(f"a stream of {frames:,} frames at {place_of(preset)}")
    stream, image = Stream(network, preset, GRID), image_of(GRID)
    stream.step(image.expand(preset.stream.scale_frames, -1, -1, -1))
    marks: dict[int, tuple[float, int, int]] = {}
    for index in range(frames + 1):
        if index in (500, 1000, frames - 500, frames):
            torch.cuda.synchronize()
            marks[index] = (time.perf_counter(), torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
        stream.step(image[None])
    early, late = ((marks[stop][0] - marks[start][0]) * 2 for start, stop in ((500, 1000), (frames - 500, frames)))
    row("steps 500 to 1,000", f"{early:.2f} ms each")
    row(f"the last 500 of {frames:,}", f"{late:.2f} ms each ({100 * (late / early - 1):+.1f} %)")
    grown = ((marks[frames][kind] - marks[1000][kind]) / 2**20 for kind in (1, 2))
    row("memory since step 1,000", "{:+.1f} MiB allocated, {:+.1f} MiB reserved".format(*grown))
