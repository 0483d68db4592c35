"""Tables of the full-size network on a GPU, each headed by machine, versions and command."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch

from bench.gpu.budgets import bench_budgets
from bench.gpu.measure import begin_table, machine_rates, random_network, release_memory
from bench.gpu.original import bench_original, compare
from bench.gpu.parts import bench_attention
from bench.gpu.profile import bench_profile
from bench.gpu.program import bench_embedded, bench_program
from bench.gpu.steps import bench_choice, bench_eight_bits, bench_kernels, bench_long, bench_sizes, bench_step
from bench.gpu.streams import bench_folder, bench_streams
from stream_recon.configs.schema import load_preset

TABLES = (
    "attention",
    "step",
    "choice",
    "kernels",
    "sizes",
    "fp8",
    "program",
    "embedded",
    "profile",
    "streams",
    "folder",
    "budgets",
    "long",
)
STEP_FRAMES = 100
KERNEL_FRAMES = 60
CHOICE_FRAMES = 30
PROGRAM_FRAMES = 600


def bench_gpu(original: Path | None, frames: int, only: str | None, video: Path | None, clips: int) -> None:
    """``original``: a checkout of LingBot-Map; ``frames``: of the long stream; ``only``: of `TABLES`, with commas
    between; ``video``: for the program, looped; None: a generated one; ``clips``: number of clips."""
    wanted = only.split(",") if only else TABLES
    unknown = set(wanted) - set(TABLES)
    if unknown:
        raise SystemExit(f"no table {unknown.pop()!r}: there are {', '.join(TABLES)}")
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device is here")
    rates = None
    if "step" in wanted:
        begin_table("this machine")
        rates = machine_rates()
    theirs = bench_original(original) if original is not None else None
    if "embedded" in wanted:
        bench_embedded()
    if "profile" in wanted:
        bench_profile()
    if "streams" in wanted:
        bench_streams()
    if "folder" in wanted:
        bench_folder(clips)
    preset = load_preset("lingbot-map", {"stream.keyframes": "every"})
    if "attention" in wanted:
        bench_attention(preset)
    if "budgets" in wanted:
        bench_budgets()
    if not set(wanted) & {"step", "choice", "kernels", "sizes", "fp8", "program", "long"}:
        return
    release_memory()
    network = random_network(preset)
    if rates is not None:
        ours = bench_step(network, preset, STEP_FRAMES, rates)
        if theirs is not None:
            compare(theirs, ours)
    if "choice" in wanted:
        bench_choice(network, preset, CHOICE_FRAMES)
    if "kernels" in wanted:
        bench_kernels(network, preset, KERNEL_FRAMES)
    if "sizes" in wanted:
        bench_sizes(network, preset, KERNEL_FRAMES)
    if "fp8" in wanted:
        bench_eight_bits(network, preset, KERNEL_FRAMES)
    if "program" in wanted:
        bench_program(network, video, PROGRAM_FRAMES)
    if "long" in wanted:
        bench_long(network, preset, frames)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--original", type=Path, help="checkout of LingBot-Map, whose profiler runs in the same call")
    parser.add_argument("--video", type=Path, help="1080p video for the program, looped (default: generated)")
    parser.add_argument("--frames", type=int, default=10_000, help="of the long stream")
    parser.add_argument("--only", help=f"tables separated by commas: {', '.join(TABLES)}")
    parser.add_argument("--clips", type=int, default=64, help="of the folder")


def run(options: Namespace) -> None:
    bench_gpu(options.original, options.frames, options.only, options.video, options.clips)
