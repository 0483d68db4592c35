"""Table of what `stream-recon plan` chooses for a memory budget, each choice run within that budget."""

import dataclasses
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import torch

from bench.gpu.measure import Variant, begin_table, measure_step, random_network, release_memory
from bench.table import row
from stream_recon.app.engine.stream import StepOptions
from stream_recon.app.planning.budget import CONTEXT_BYTES, measure_rates
from stream_recon.app.planning.search import PlannedRun, search_configurations
from stream_recon.configs.errors import StreamReconError
from stream_recon.configs.schema import CacheChoice, Preset, load_preset, parse_size, preset_names

BUDGETS = ("24GB", "8GB")
SOURCE_SIZE = (1280, 720)
CHOICES = 2
"""Run of each budget: the first one and an alternative."""
FRAMES = 40
"""Steps after the window is full."""


def bench_budgets() -> None:
    release_memory()
    rates = measure_rates(torch.device("cuda"))
    release_memory()
    begin_table(f"choices for a {SOURCE_SIZE[0]}x{SOURCE_SIZE[1]} video in a GPU memory of")
    presets = [(name, load_preset(name)) for name in preset_names()]
    for text in BUDGETS:
        budget = parse_size(text, "--memory")
        for choice in search_configurations(presets, SOURCE_SIZE, budget, rates)[:CHOICES]:
            row(f"{text}: {describe_choice(choice)}", compare(choice, budget))


def describe_choice(choice: PlannedRun) -> str:
    way = choice.configuration
    size = "x".join(map(str, way.image_size))
    return f"preset {way.base}, window {way.preset.stream.window}, {size}, cache {way.cache}"


def compare(choice: PlannedRun, budget: int) -> str:
    """Memory and speed as predicted and as measured."""
    figures = run_in_process(choice, budget)
    if "error" in figures:
        return f"FAILED within the budget: {figures['error']}"
    context = figures["in_use"] - figures["reserved_now"]
    measured = figures["reserved"] + context
    memory = f"{choice.memory.total / 1e9:.2f} GB predicted, {measured / 1e9:.2f} GB measured"
    taken = ", ".join(f"{figures[kind] / 1e9:.2f} {kind}" for kind in ("allocated", "reserved"))
    speed = f"{1 / choice.seconds:.1f} frames/s predicted, {1e3 / figures['p50']:.1f} measured ({figures['attention']})"
    verdict = "within the budget" if measured <= budget else "MORE THAN THE BUDGET"
    return f"{memory} ({taken}, {context / 1e9:.2f} CUDA's), {verdict}; {speed}"


def run_in_process(choice: PlannedRun, budget: int) -> dict[str, Any]:
    """`run_within` in a process of its own; with ``in_use``, what it holds of the device at its end."""
    way, (free, _) = choice.configuration, torch.cuda.mem_get_info()
    preset = dataclasses.replace(way.preset, stream=dataclasses.replace(way.preset.stream, keyframes="every"))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            figures = pool.submit(run_within, preset, way.grid, budget, way.cache).result()
        except (RuntimeError, StreamReconError, BrokenProcessPool) as error:
            return {"error": str(error)[:300] or "no message"}
    return {**figures, "in_use": free - figures["free"]}


def run_within(preset: Preset, grid: tuple[int, int], budget: int, cache: CacheChoice) -> dict[str, Any]:
    """A stream's steps with a full window where torch may take what ``budget`` bytes leave beside the context."""
    network = random_network(preset)
    _, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((budget - CONTEXT_BYTES) / total)
    variant = Variant("step", StepOptions(cache=cache))
    _stream, figures = measure_step(network, preset, grid, FRAMES, variant)
    free, _ = torch.cuda.mem_get_info()
    return {**dataclasses.asdict(figures), "reserved_now": torch.cuda.memory_reserved(), "free": free}
