"""Cost of publishing: without peers for minutes, and of the whole program with a peer of all topics."""

import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench import SAMPLE
from stream_recon.app.publishing.foxglove_server import FoxgloveSink
from stream_recon.app.publishing.publisher import Clock, PublisherOptions, ResultPublisher
from stream_recon.app.publishing.sink import Sink
from stream_recon.app.publishing.zenoh_sink import ZenohSink
from tests.app.fake_engine import POINTS, fake_result, frames, prepared

FPS = 30.0
PEER = """
import sys, time, zenoh
place = "tcp/127.0.0.1:" + sys.argv[1]
router = zenoh.open(zenoh.Config.from_json5('{mode:"router",listen:{endpoints:["' + place + '"]}}'))
peer = zenoh.open(zenoh.Config.from_json5('{mode:"client",connect:{endpoints:["' + place + '"]}}'))
subscriber = peer.declare_subscriber("0/**", lambda sample: len(sample.payload))
print("ready", flush=True)
time.sleep(1e6)
"""
LENGTHS = (16, 64)
"""Frames of a short and of a long run: their difference leaves out the start of the program."""


def bench_idle(minutes: float) -> None:
    """Feed results at `FPS` to both kinds of sinks, to which nobody connects."""
    sinks: list[Sink] = [ZenohSink("127.0.0.1:9"), FoxgloveSink(port=0)]
    result = fake_result(prepared(frames(1, (640, 480))[0]))
    with ResultPublisher(sinks, PublisherOptions(POINTS, Clock(time.time_ns(), live=True))) as publisher:
        begin, used, count = time.monotonic(), time.process_time(), 0
        print("| minute | CPU, share of a core | ms a frame | resident MB | threads |\n|---|---|---|---|---|")
        for minute in range(1, max(1, round(minutes)) + 1):
            first = count
            while time.monotonic() < begin + 60 * minute * min(1.0, minutes):
                publisher.add(replace(result, index=count, timestamp=count / FPS, health=0.9))
                count += 1
                time.sleep(max(0.0, begin + count / FPS - time.monotonic()))
            now = time.process_time()
            spent, used = now - used, now
            share, each = spent / 60 / min(1.0, minutes), 1000 * spent / (count - first)
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
            print(f"| {minute} | {share:.2%} | {each:.3f} | {resident:.1f} | {threading.active_count()} |", flush=True)


@contextmanager
def _peer() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen([sys.executable, "-c", PEER, str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield port
    finally:
        process.kill()


def _run(video: Path, count: int, *options: str) -> tuple[float, float]:
    """CPU time of one run of the program, and its frames/s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "stream_recon", str(video), "-o", f"{folder}/out", "--no-viewer"]
        fixed = ["--mapping", "stream", "--no-mesh", "--max-frames", str(count)]
        made = [each.replace("FOLDER", folder) for each in options]
        done = subprocess.run(
            [*command, *fixed, *made], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    rate = re.search(r"done: .*?([\d.]+) frames/s", done.stdout)
    assert rate is not None, done.stdout
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, float(rate[1])


def bench_program(video: Path, rounds: int) -> None:
    """Frames/s and CPU time a frame of the whole program, by what it publishes to."""
    with _peer() as port:
        variants = {
            "nothing": [],
            "zenoh, no peer": ["--publish", "zenoh://127.0.0.1:9"],
            "zenoh, peer of all topics": ["--publish", f"zenoh://127.0.0.1:{port}"],
            "MCAP file": ["--publish", "FOLDER/run.mcap"],
        }
        least = dict.fromkeys(variants, (float("inf"), float("inf")))
        rates: dict[str, list[float]] = {name: [] for name in variants}
        for _ in range(rounds):
            for name, options in variants.items():
                (short, _), (long, rate) = (_run(video, count, *options) for count in LENGTHS)
                least[name] = min(least[name][0], short), min(least[name][1], long)
                rates[name].append(rate)
    print("| published to | frames/s, mean and range | of those without | CPU ms a frame |\n|---|---|---|---|")
    usual = sum(rates["nothing"]) / rounds
    for name, (short, long) in least.items():
        mean = sum(rates[name]) / rounds
        ms = 1000 * (long - short) / (LENGTHS[1] - LENGTHS[0])
        print(f"| {name} | {mean:.2f}, {min(rates[name])} to {max(rates[name])} | {mean / usual:.1%} | {ms:.1f} |")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10.0, help="of the part without peers; 0: leave it out")
    parser.add_argument("--rounds", type=int, default=2, help="of the program; 0: none")
    parser.add_argument("--video", type=Path, default=SAMPLE)


def run(options: Namespace) -> None:
    if options.minutes > 0:
        bench_idle(options.minutes)
    if options.rounds > 0:
        bench_program(options.video, options.rounds)
