"""Tables of the network on a GPU, each headed by machine and versions: full-size steps, budgets, embedded streams."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial

import torch

from bench.gpu.budgets import bench_budgets
from bench.gpu.measure import Rates, begin_table, machine_rates, random_network, release_memory
from bench.gpu.program import bench_embedded
from bench.gpu.steps import bench_choice, bench_sizes, bench_step
from bench.gpu.streams import bench_folder, bench_streams
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.network import StreamingNetwork

FullSizeTable = Callable[[StreamingNetwork, Preset, Rates], None]
FULL_SIZE: dict[str, FullSizeTable] = {"step": bench_step, "choice": bench_choice, "sizes": bench_sizes}
"""Tables of the full-size network with random weights."""
OTHERS = ("embedded", "streams", "folder", "budgets")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--only", help=f"tables separated by commas: {', '.join((*FULL_SIZE, *OTHERS))}")
    parser.add_argument("--clips", type=int, default=64, help="of the folder")


def run(options: Namespace) -> None:
    names = options.only.split(",") if options.only else [*FULL_SIZE, *OTHERS]
    others: dict[str, Callable[[], None]] = {
        "embedded": bench_embedded,
        "streams": bench_streams,
        "folder": partial(bench_folder, options.clips),
        "budgets": bench_budgets,
    }
    unknown = set(names) - FULL_SIZE.keys() - others.keys()
    if unknown:
        raise SystemExit(f"no table {unknown.pop()!r}: there are {', '.join((*FULL_SIZE, *others))}")
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device is here")
    for name in names:
        if name in others:
            others[name]()
    full_size = [name for name in names if name in FULL_SIZE]
    if full_size:
        begin_table("this machine")
        rates = machine_rates()
        release_memory()
        preset = load_preset("lingbot-map", {"stream.keyframes": "every"})
        network = random_network(preset)
        for name in full_size:
            FULL_SIZE[name](network, preset, rates)
