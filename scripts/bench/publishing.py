"""Cost of publishing: without peers for minutes, and of the whole program with a peer of all topics."""

import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from bench import SAMPLE
from bench.command import beside, free_port, resident_mib, run_program
from bench.table import header, row
from stream_recon.app.publishing.foxglove_server import FoxgloveSink
from stream_recon.app.publishing.publisher import Clock, PublisherOptions, ResultPublisher
from stream_recon.app.publishing.sink import Sink
from stream_recon.app.publishing.zenoh_sink import ZenohSink
from tests.app.fake_engine import POINTS, fake_result, frames, prepared

FPS = 30.0
PEER = """
import sys, time, zenoh
endpoint = "tcp/127.0.0.1:" + sys.argv[1]
router = zenoh.open(zenoh.Config.from_json5('{mode:"router",listen:{endpoints:["' + endpoint + '"]}}'))
peer = zenoh.open(zenoh.Config.from_json5('{mode:"client",connect:{endpoints:["' + endpoint + '"]}}'))
subscriber = peer.declare_subscriber("0/**", lambda sample: len(sample.payload))
print("ready", flush=True)
time.sleep(1e6)
"""
LENGTHS = (16, 64)
"""Frames of a short and of a long run: their difference leaves out the start of the program."""


def bench_idle(minutes: int) -> None:
    """Feed results at `FPS` to both kinds of sinks, to which nobody connects."""
    sinks: list[Sink] = [ZenohSink("127.0.0.1:9"), FoxgloveSink(port=0)]
    result = fake_result(prepared(frames(1, (640, 480))[0]))
    with ResultPublisher(sinks, PublisherOptions(POINTS, Clock(time.time_ns(), live=True))) as publisher:
        begin, used, count = time.monotonic(), time.process_time(), 0
        header("minute", "CPU, share of a core", "ms a frame", "resident MiB", "threads")
        for minute in range(1, minutes + 1):
            first = count
            while time.monotonic() < begin + 60 * minute:
                publisher.add(replace(result, index=count, timestamp=count / FPS, health=0.9))
                count += 1
                time.sleep(max(0.0, begin + count / FPS - time.monotonic()))
            now = time.process_time()
            cpu_s, used = now - used, now
            each = f"{1000 * cpu_s / (count - first):.3f}"
            row(minute, f"{cpu_s / 60:.2%}", each, f"{resident_mib():.1f}", threading.active_count())


def _run(video: Path, count: int, *options: str) -> tuple[float, float]:
    """CPU time of one run of the program, and its frames/s."""
    with tempfile.TemporaryDirectory() as folder:
        words = [video, "--no-viewer", "--mapping", "stream", "--no-mesh", "--max-frames", count]
        done = run_program(*words, *(each.replace("FOLDER", folder) for each in options), out=Path(folder) / "out")
        return done.cpu_seconds, float(done.record["timings"]["fps"])


def bench_program(video: Path, rounds: int) -> None:
    """Frames/s and CPU time a frame of the whole program, by what it publishes to."""
    port = free_port()
    variants = {
        "nothing": [],
        "zenoh, no peer": ["--publish", "zenoh://127.0.0.1:9"],
        "zenoh, peer of all topics": ["--publish", f"zenoh://127.0.0.1:{port}"],
        "MCAP file": ["--publish", "FOLDER/run.mcap"],
    }
    header("published to", "frames/s, mean and range", "CPU ms a frame")
    with beside([sys.executable, "-c", PEER, str(port)]) as peer:
        assert peer.stdout is not None
        peer.stdout.readline()
        for name, options in variants.items():
            short, long = ([_run(video, count, *options) for _ in range(rounds)] for count in LENGTHS)
            rates = [rate for _, rate in long]
            ms = 1000 * (min(long)[0] - min(short)[0]) / (LENGTHS[1] - LENGTHS[0])
            row(name, f"{sum(rates) / rounds:.2f}, {min(rates)} to {max(rates)}", f"{ms:.1f}")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--minutes", type=int, default=10, help="of the part without peers; 0: leave it out")
    parser.add_argument("--rounds", type=int, default=2, help="of the program; 0: none")
    parser.add_argument("--video", type=Path, default=SAMPLE)


def run(options: Namespace) -> None:
    if options.minutes > 0:
        bench_idle(options.minutes)
    if options.rounds > 0:
        bench_program(options.video, options.rounds)
