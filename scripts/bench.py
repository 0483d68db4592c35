#!/usr/bin/env python3
"""Measure speed and memory; every figure of the README comes from here.

scripts/bench.py step      the network's step beside its matrix work timed alone, in one run
scripts/bench.py program   the whole command on the sample, viewer on
scripts/bench.py pipeline [VIDEO] [--step-ms 20] [--viewer]
                           the program around a step that sleeps: a 1080p video's frames/s, and each thread's work
scripts/bench.py load [--rounds 2] [--environment "OMP_NUM_THREADS=2"]...
                           the sample beside busy processes, and beside Chromium with its page; with the environment as
                           it is and as given, in turn
scripts/bench.py page      what a revision of 5,000 frames costs the viewer's thread, and what it sends
scripts/bench.py soak [--frames 100000]
                           all but the network, viewer and a connected page included: what a run holds as it goes on
scripts/bench.py memory    host memory of the whole program from 200 to 2,000 frames
scripts/bench.py batch ROOT [--workers 2] [--frames N] [--stride N]
                           scenes an hour by one worker, by several, and by Ray where it is installed
scripts/bench.py split [VIDEO] [--workers N] [--windows 4] [--ways whole,split]
                           a video (else the sample, with its error) whole by one worker, and cut into windows
scripts/bench.py adjustment
                           the solver behind refinement: milliseconds an iteration of bundle adjustment from a live
                           window to 2,000 keyframes, a pose graph with a loop, triangulation, one pose against known
                           points
scripts/bench.py refine [--frames N]
                           refining made walks of 1,000 to 10,000 frames (or of N): seconds, peak memory, error
scripts/bench.py edges     depth made finer by the image, on rendered scenes: boundary F1 and AbsRel at 640x480
scripts/bench.py cases [SEQUENCE [--stride N]] [--frames 40] [--only NAME,...] [--seed 5]
                           faults put into a rendered walk or into a sequence with truth, and motions that say little:
                           errors of the network, the stream and the refinement
scripts/bench.py splat DIR [--video FILE] [--every 3]
                           with FILE: models of it for splats, by our exports and by pycolmap's structure from motion,
                           into DIR; without, on a GPU with gsplat: trains on all that is there (also: cd scripts &&
                           python3 -m bench_splat DIR, where nothing else of this is installed)
scripts/bench.py stream    what geometry costs a frame while a stream runs, and memory, from 500 to 5,000 frames
scripts/bench.py beside [VIDEO] [--step-ms 28 | --network]
                           the program around a step that sleeps (or the full-size network's, on a GPU), with and
                           without geometry: frames/s with and without the stage's end, what a call of the stage takes,
                           and what it takes where no step is waited for
scripts/bench.py gpu [--original DIR] [--video FILE] [--frames 10000]
                     [--only attention,step,kernels,sizes,fp8,program,embedded,folder,budgets,long] [--clips 64]
                           the full-size network on a GPU; DIR: a checkout of LingBot-Map, timed in the same run; FILE:
                           a 1080p video for the program
"""

import argparse
import importlib.util
import json
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import torch
from bench_adjustment import bench_adjustment
from bench_cases import SEED, bench_cases
from bench_edges import bench_edges
from bench_load import bench_load
from bench_pipeline import bench_pipeline
from bench_refine import SIZES, bench_refine
from bench_stream import bench_beside, bench_stream
from torch.utils._python_dispatch import TorchDispatchMode

from stream_recon.app.batch.page import describe_overlap
from stream_recon.app.engine.device_transfer import Precision, fast_precision
from stream_recon.app.engine.stream import Stream
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.folder import read_result
from stream_recon.configs.schema import load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, EMBEDDED_WEIGHTS
from stream_recon.models.weights import load_network

ROOT = Path(__file__).resolve().parents[1]
SAMPLE = ROOT / "app" / "sample" / "walkthrough.mp4"
PARTS = (
    "step",
    "program",
    "pipeline",
    "page",
    "load",
    "memory",
    "soak",
    "batch",
    "split",
    "adjustment",
    "refine",
    "stream",
    "beside",
)
MATRIX_WORK = ("linear", "mm", "addmm", "bmm", "conv", "scaled_dot_product", "softmax")
"""softmax: attention counts as a whole, in one kernel or in three."""


class MatrixWork(TorchDispatchMode):
    """Records every matrix product, convolution and attention with its operands, to run them alone later."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(word in func.__name__ for word in MATRIX_WORK) and "upsample" not in func.__name__:
            self.calls.append(lambda: func(*args, **kwargs))
        return func(*args, **kwargs)


def describe_machine() -> str:
    threads = torch.get_num_threads()
    processor = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        names = re.findall(r"model name\s*:\s*(.+)", info.read_text())
        processor = names[0] if names else processor
    return f"{processor}, {threads} threads, torch {torch.__version__}"


def bench_steps(frames: int) -> None:
    """In fp32, and in bf16 where that is what the program takes."""
    for precision in dict.fromkeys(("fp32", fast_precision(torch.device("cpu")))):
        bench_step(frames, precision)


def bench_step(frames: int, precision: Precision) -> None:
    """Median step of a full window of keyframes at the default size, and the share of its matrix work."""
    preset = load_preset(EMBEDDED_PRESET, {"stream.keyframes": "every"})
    network = load_network(EMBEDDED_WEIGHTS, preset.network)
    if precision == "bf16":
        network.pack_for_cpu()
    stream = Stream(network, preset, (12, 16), "sdpa", precision)
    images = torch.rand(frames + 1, 3, 168, 224)
    scale = preset.stream.scale_frames
    stream.step(images[:scale])
    warm = scale + preset.stream.window + 2
    for image in images[scale:warm]:
        stream.step(image[None])
    recorder = MatrixWork()
    with torch.no_grad(), recorder:
        stream.step(images[warm][None])
    steps, alone = [], []
    # In turn, so that both meet the same machine.
    for image in images[warm:frames]:
        begin = time.perf_counter()
        stream.step(image[None])
        steps.append(time.perf_counter() - begin)
        with torch.no_grad():
            begin = time.perf_counter()
            for call in recorder.calls:
                call()
            alone.append(time.perf_counter() - begin)
    step, matrix = median(steps), median(alone)
    p95 = sorted(steps)[int(0.95 * len(steps))]
    shown = f"{1e3 * step:.0f} ms (p95 {1e3 * p95:.0f}) = {1 / step:.1f} frames/s"
    print(f"| step at 224x168, window full, {precision} | {shown} |")
    print(f"| its matrix work alone ({len(recorder.calls)} calls) | {1e3 * matrix:.0f} ms |")
    print(f"| ratio | {step / matrix:.2f} |")


def run_program(video: Path, out: Path, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "stream_recon", str(video), "-o", str(out), "--port", "0", *options]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((out / "run.json").read_text())
    return summary


def bench_program() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, options in (("viewer on", ()), ("--no-viewer", ("--no-viewer",))):
            begin = time.perf_counter()
            summary = run_program(SAMPLE, Path(folder) / name.strip("-"), *options)
            wall = time.perf_counter() - begin
            print(f"| whole program on the sample, {name} | {json.dumps(summary['timings'])}, {wall:.1f} s wall |")


def bench_memory(frames: int) -> None:
    """The sample played forth and back to ``frames`` frames; resident memory of the program along the way."""
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder) / "long.mp4"
        write_long_video(video, frames)
        out = Path(folder) / "out"
        command = [sys.executable, "-m", "stream_recon", str(video), "-o", str(out), "--port", "0"]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        readings: list[tuple[int, float]] = []
        while process.poll() is None:
            time.sleep(1)
            readings.append((count_results(out), resident_mebibytes(process.pid)))
        if process.returncode:
            raise SystemExit(f"the program failed with exit code {process.returncode}")
        for mark in (200, 500, 1000, 1500, 2000):
            reached = [memory for count, memory in readings if count >= mark * 0.99]
            if mark <= frames and reached:
                print(f"| host memory at frame {mark} | {reached[0]:.0f} MiB |")


def write_long_video(path: Path, frames: int) -> None:
    capture = cv2.VideoCapture(str(SAMPLE))
    images = []
    while True:
        ok, image = capture.read()
        if not ok:
            break
        images.append(image)
    cycle = [*range(len(images)), *range(len(images) - 2, 0, -1)]
    height, width = images[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 30, (width, height))
    for index in range(frames):
        writer.write(images[cycle[index % len(cycle)]])
    writer.release()


def count_results(out: Path) -> int:
    trajectory = out / "trajectory.txt"
    return sum(1 for _ in trajectory.open()) if trajectory.is_file() else 0


def resident_mebibytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status")
    match = re.search(r"VmRSS:\s+(\d+) kB", status.read_text()) if status.is_file() else None
    return int(match[1]) / 1024 if match else float(np.nan)


def run_batch(root: Path, out: Path, *options: str) -> dict[str, Any]:
    """The summary of ``stream-recon batch``; every scene has to be done."""
    command = [sys.executable, "-m", "stream_recon", "batch", str(root), "-o", str(out), *options]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout[-2000:]}")
    summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return summary


def bench_batch(root: Path, workers: int, options: list[str]) -> None:
    """Wall time from the first worker's start to the last scene's end, model loading included."""
    several = ["--workers", str(workers)]
    ways = {"1 worker": ["--workers", "1"], f"{workers} workers": several}
    if importlib.util.find_spec("ray") is not None:
        ways[f"Ray, {workers} actors"] = [*several, "--ray", "local"]
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, way in ways.items():
            totals = run_batch(root, Path(folder) / name, *options, *way)["totals"]
            seconds[name] = totals["seconds"]
            said = f"{totals['scenes_per_hour']:.0f} scenes/hour ({totals['scenes']} scenes, {totals['frames']} frames"
            print(f"| batch, {name} | {said} in {totals['seconds']:.1f} s) |", flush=True)
    alone, together, *ray = seconds.values()
    print(f"| speed-up of {workers} workers over 1 | {alone / together:.2f} |")
    if ray:
        print(f"| Ray against plain workers | {ray[0] - together:+.1f} s ({100 * (ray[0] / together - 1):+.0f} %) |")


def bench_split(video: Path, workers: int, windows: int, options: list[str], wanted: list[str]) -> None:
    """One video whole, and in windows over the workers, stitched; with its error where the truth is known. Seconds are
    the command's, from its start to its end."""
    ways = {"whole": ["--workers", "1"], "split": ["--workers", str(workers), "--split", str(windows)]}
    seconds, ate = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in wanted:
            begin = time.perf_counter()
            summary = run_batch(video, Path(folder) / name, *options, *ways[name])
            seconds[name] = time.perf_counter() - begin
            (scene,) = summary["scenes"]
            shown = "whole, 1 worker" if name == "whole" else f"in {windows} windows, {workers} workers"
            print(f"| {video.name} {shown} | {scene['frames']} frames in {seconds[name]:.1f} s |", flush=True)
            print(f"| phases of the command | {shown_phases(summary['totals']['phases'])} |")
            for phases in scene.get("chunk_phases", [scene.get("phases", {})]):
                print(f"| phases of a window | {shown_phases(phases)} |")
            if "stitch_phases" in scene:
                print(f"| phases of stitching | {shown_phases(scene['stitch_phases'])} |")
            runs = ", ".join(f"{second:.1f}" for second in scene.get("chunk_seconds", [scene["seconds"]]))
            print(f"| its runs | {runs} s |", flush=True)
            if name == "split":
                after = scene["stitch_seconds_after"]
                print(f"| stitching; of it after the last window | {scene['stitch_seconds']:.1f}, {after:.2f} s |")
            for overlap in scene.get("overlaps", []):
                print(f"| {describe_overlap(overlap)} | |")
            if video == SAMPLE:
                ate[name] = sample_ate(Path(folder) / name / scene["name"])
    if len(seconds) < len(ways):
        return
    print(f"| speed-up | {seconds['whole'] / seconds['split']:.2f} |")
    if ate:
        print(f"| ATE / path whole, split | {ate['whole']:.4f}, {ate['split']:.4f} |")
        print(f"| ratio of the ATEs (limit 1.5) | {ate['split'] / ate['whole']:.2f} |")


def shown_phases(phases: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in phases.items()) + " s"


def bench_splat(folder: Path, video: Path | None, every: int) -> None:
    """Make models of a video, or train on those that were made."""
    if video is not None:
        from bench_splat.prepare import prepare

        prepare(video.resolve(), folder, every)
        return
    command = [sys.executable, "-m", "bench_splat", str(folder.resolve())]
    raise SystemExit(subprocess.run(command, cwd=ROOT / "scripts", check=False).returncode)


def sample_ate(folder: Path) -> float:
    """ATE over path length of a result of the sample."""
    cameras = read_result(folder).cameras
    with np.load(SAMPLE.with_suffix(".truth.npz")) as truth:
        poses = truth["T_world_camera"][[camera.index for camera in cameras]].astype(np.float64)
    ours = np.stack([camera.T_world_camera for camera in cameras])
    error = pose_errors(ours, poses, np.ones(len(poses) - 1, bool)).ate_over_path
    assert error is not None
    return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*PARTS, "cases", "edges", "splat", "gpu", "all"])
    parser.add_argument(
        "path", nargs="?", type=Path, help="ROOT of batch, VIDEO of split and pipeline, DIR of splat, SEQUENCE of cases"
    )
    parser.add_argument(
        "--frames",
        type=int,
        help="else 80 for step, 300 pipeline, 60 load, 2000 memory, 100000 soak, 10000 gpu, 1000 to 10000 refine; "
        "all of a batch",
    )
    parser.add_argument("--stride", type=int, default=1, help="of the scenes of batch, of cases")
    parser.add_argument("--workers", type=int, default=2, help="of batch and split")
    parser.add_argument("--windows", type=int, default=4, help="of split")
    parser.add_argument("--step-ms", type=float, default=20.0, help="of pipeline")
    parser.add_argument("--network", action="store_true", help="of beside: around the full-size network")
    parser.add_argument("--rounds", type=int, default=1, help="of load")
    parser.add_argument("--environment", action="append", default=[], help="of load: NAME=VALUE, with spaces between")
    parser.add_argument("--viewer", action="store_true", help="of pipeline")
    parser.add_argument("--options", default="", help="further ones of 'stream-recon batch', as one string")
    parser.add_argument("--original", type=Path, help="of gpu: folder with gct_profile.py and lingbot_map")
    parser.add_argument("--video", type=Path, help="of gpu: for the program, looped; of splat")
    parser.add_argument("--every", type=int, default=3, help="of splat: every so many frames")
    parser.add_argument("--only", help="of gpu: tables, of cases: these; with commas between")
    parser.add_argument("--seed", type=int, default=SEED, help="of the rendered scenes of cases")
    parser.add_argument("--clips", type=int, default=64, help="of gpu's folder")
    parser.add_argument("--ways", default="whole,split", help="of split: one or both, in this order")
    arguments = parser.parse_args()
    if arguments.what == "splat" and arguments.path is None:
        parser.error("splat needs DIR, a folder for models to train on")
    if arguments.what == "gpu":
        from bench_gpu import bench_gpu

        bench_gpu(arguments.original, arguments.frames or 10_000, arguments.only, arguments.video, arguments.clips)
        return
    if arguments.what == "edges":
        bench_edges()
        return
    if arguments.what == "cases":
        bench_cases(arguments.path, arguments.stride, arguments.frames, arguments.only, arguments.seed)
        return
    if arguments.what == "splat":
        bench_splat(arguments.path, arguments.video, arguments.every)
        return
    if arguments.what == "batch" and arguments.path is None:
        parser.error("batch needs ROOT, a folder with scenes in it")
    print(f"| machine | {describe_machine()} |\n|---|---|")
    if arguments.what in ("step", "all"):
        bench_steps(arguments.frames or 80)
    if arguments.what in ("program", "all"):
        bench_program()
    if arguments.what in ("pipeline", "all"):
        bench_pipeline(arguments.path, arguments.step_ms, arguments.frames or 300, arguments.viewer)
    if arguments.what in ("load", "all"):
        bench_load(arguments.frames or 60, ["", *arguments.environment], arguments.rounds)
    if arguments.what in ("page", "all"):
        from bench_page import bench_page

        bench_page(arguments.frames or 5000)
    if arguments.what in ("memory", "all"):
        bench_memory(arguments.frames or 2000)
    if arguments.what == "soak":
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from bench_soak import bench_soak

        bench_soak(arguments.frames or 100_000)
        return
    if arguments.what in ("stream", "all"):
        bench_stream()
    if arguments.what == "beside":
        bench_beside(arguments.path, arguments.step_ms, arguments.frames or 900, arguments.network)
    if arguments.what in ("adjustment", "all"):
        bench_adjustment()
    if arguments.what in ("refine", "all"):
        bench_refine((arguments.frames,) if arguments.frames else SIZES)
    options = ["--stride", str(arguments.stride), *shlex.split(arguments.options)]
    if arguments.frames is not None:
        options += ["--max-frames", str(arguments.frames)]
    if arguments.what == "batch":
        bench_batch(arguments.path, arguments.workers, options)
    if arguments.what == "split":
        wanted = arguments.ways.split(",")
        if not wanted or not {*wanted} <= {"whole", "split"}:
            parser.error("--ways are whole, split, or both with a comma between")
        bench_split((arguments.path or SAMPLE).resolve(), arguments.workers, arguments.windows, options, wanted)


if __name__ == "__main__":
    main()
