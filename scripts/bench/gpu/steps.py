"""Tables of the full-size network's step: as the program runs it, by other kernels, and in parts."""

from importlib.util import find_spec
from unittest import mock

from bench.gpu.measure import GRID, Rates, StepFigures, Variant, begin_table, measure_step
from bench.gpu.parts import print_parts
from bench.gpu.program import embedded_network
from bench.table import row
from stream_recon.app.engine.stream import StepOptions, StreamRunner
from stream_recon.cache.cache_dtypes import CACHE_CHOICES
from stream_recon.cache.kernels import tile_schedule
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import AttentionChoice, Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET
from stream_recon.models.network import StreamingNetwork

STEP_FRAMES, CHOICE_FRAMES, SIZES_FRAMES = 100, 30, 60
KERNELS: tuple[AttentionChoice, ...] = ("triton", "flashinfer")
SAME = 1.03
"""Steps as much apart are equally fast: two runs of one differ by so much."""
SIZES = ((28, 37), (27, 36), (21, 37), (18, 32))
"""Patches high and wide: 518x392 and 504x378 for 4:3, 518x294 and 448x252 for 16:9."""


def setting_of(preset: Preset) -> str:
    return f"504x378, window {preset.stream.window} full, {preset.stream.scale_frames} scale frames, all keyframes"


def bench_step(network: StreamingNetwork, preset: Preset, rates: Rates) -> None:
    """The step as the program runs it, and its parts."""
    begin_table(f"step at {setting_of(preset)}")
    stream, figures = measure_step(network, preset, GRID, STEP_FRAMES)
    row(f"step, attention {figures.attention}", figures.shown)
    print_parts(stream, network, preset, rates)
    del stream
    variant = Variant("compressed", StepOptions(cache="compressed"))
    row("step, --cache compressed", measure_step(network, preset, GRID, STEP_FRAMES, variant)[1].shown)


def bench_choice(network: StreamingNetwork, preset: Preset, _: Rates) -> None:
    """What `--attention auto` takes, beside every way to run the step, for each preset and size."""
    begin_table("what auto takes, and the step by every kernel, window full, all keyframes")
    small = load_preset(EMBEDDED_PRESET, {"stream.keyframes": "every"})
    cases = [(embedded_network(small), small, (12, 16)), *((network, preset, size) for size in SIZES)]
    for of_preset, chosen_preset, grid in cases:
        taken = StreamRunner(of_preset, chosen_preset, grid).attention
        took: dict[str, StepFigures] = {}
        for name in KERNELS if find_spec("flashinfer") else KERNELS[:1]:
            try:
                variant = Variant(name, StepOptions(name))
                took[name] = measure_step(of_preset, chosen_preset, grid, CHOICE_FRAMES, variant)[1]
            except (ResourceError, ImportError, RuntimeError) as error:
                row(name, f"not here: {str(error).splitlines()[0]}")
        best = min(figures.p50 for figures in took.values())
        verdict = "" if took[taken].p50 <= SAME * best else " NOT THE FASTEST"
        shown = ", ".join(f"{name} {f.p50:.2f} ms (p95 {f.p95:.2f})" for name, f in took.items())
        size = f"{chosen_preset.name}, {14 * grid[1]}x{14 * grid[0]}"
        row(size, f"auto takes {taken}{verdict}; {shown}")


def bench_sizes(network: StreamingNetwork, preset: Preset, _: Rates) -> None:
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
                    took.append(measure_step(network, preset, (rows, columns), SIZES_FRAMES, variant)[1].p50)
            tile_schedule.schedule_tiles.cache_clear()
            shown = ", ".join(f"{milliseconds:.2f}" for milliseconds in took)
            row(f"{14 * columns}x{14 * rows}, cache {cache}", f"{shown} ms")
