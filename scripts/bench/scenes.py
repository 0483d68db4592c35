"""Frame rate of the synthetic data generator, for clips of several lengths, after a warm-up."""

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch

from training.synthetic import SceneGenerator


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--tiles", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--frames", type=int, default=512, help="of a batch, all clips together")
    parser.add_argument("--lengths", default="2,8,16,64", help="of a clip")
    parser.add_argument("--size", default="224x168")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--no-degrade", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print the kernels that take longest")


def run(options: Namespace) -> None:
    width, height = (int(x) for x in options.size.split("x"))
    device = torch.device(options.device)
    started = time.perf_counter()
    generator = SceneGenerator(device, 1, options.tiles, compile=not options.no_compile, degrade=not options.no_degrade)
    print(f"set-up {time.perf_counter() - started:.1f} s")

    def render(length: int) -> None:
        generator.render(options.frames // length, length, height, width)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for length in (int(x) for x in options.lengths.split(",")):
        started = time.perf_counter()
        render(length)
        wait()
        warm = time.perf_counter() - started
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        render(length)
        wait()
        started = time.perf_counter()
        for _ in range(options.repeats):
            render(length)
        launched = time.perf_counter() - started
        wait()
        taken = time.perf_counter() - started
        rate = options.repeats * options.frames / taken
        memory = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
        print(
            f"clips of {length:3d}: {rate:8.0f} frames/s, {taken / options.repeats * 1e3:6.1f} ms a batch "
            f"(host {launched / options.repeats * 1e3:6.1f} ms), first call {warm:5.1f} s, peak {memory:.2f} GB"
        )
    if options.profile:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as record:
            render(8)
            wait()
        key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
        print(record.key_averages().table(sort_by=key, row_limit=30, max_name_column_width=60))
