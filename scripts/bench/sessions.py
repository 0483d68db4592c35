"""Sessions of ``/v1/stream`` over one server process with an engine without a network: delays, memory, agreement."""

import asyncio
import base64
import json
import sys
import tempfile
import time
import urllib.request
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from websockets.asyncio.client import connect

from bench import SAMPLE
from bench.command import beside, resident_mib
from bench.table import header, row
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source

SERVER = """
import asyncio, sys
from pathlib import Path
import uvicorn
from stream_recon.app.web.access import AccessPolicy
from stream_recon.app.web.app import make_app
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.limits import WebLimits
from tests.app.web.serving import ENGINE

data, count = DataFolder(Path(sys.argv[1])), int(sys.argv[2])
data.make()
app = make_app(data, AccessPolicy(), limits=WebLimits(sessions=count, sockets=count), engine=ENGINE)
config = uvicorn.Config(app, port=0, log_config=None, ws="websockets-sansio", ws_per_message_deflate=False)
server = uvicorn.Server(config)

async def main():
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving

asyncio.run(main())
"""


@dataclass
class Seen:
    """What the clients saw."""

    sent: int = 0
    delays: list[float] = field(default_factory=list)
    """Seconds from a frame's sending to its acknowledgement."""
    states: dict[str, int] = field(default_factory=lambda: {"taken": 0, "dropped": 0})
    results: int = 0


async def session(address: str, jpeg: str, options: Namespace, seen: Seen, delay_s: float) -> None:
    """One client, which sends at a fixed rate whatever comes back."""
    await asyncio.sleep(delay_s)
    async with connect(address, compression=None, max_size=None, open_timeout=60) as socket:
        await socket.send(json.dumps({"type": "session.config"}))
        await socket.recv()
        sent: dict[int, float] = {}
        received = 0

        async def send() -> None:
            begin = time.monotonic()
            for number in range(int(options.seconds * options.fps)):
                await asyncio.sleep(max(0.0, begin + number / options.fps - time.monotonic()))
                message = {"type": "video.frame", "frame": number, "data": jpeg, "received": received}
                text = json.dumps(message)
                sent[number] = time.monotonic()
                seen.sent += 1
                await socket.send(text)
            await socket.send(json.dumps({"type": "video.done"}))

        sender = asyncio.create_task(send())
        async for text in socket:
            message = json.loads(text)
            received = message.get("seq", received)
            if message["type"] == "video.ack":
                seen.delays.append(time.monotonic() - sent.pop(message["frame"]))
                seen.states[message["state"]] += 1
            seen.results += message["type"] == "result"
            if message["type"] in ("session.done", "error"):
                break
        await sender


def figure(port: int, name: str) -> float:
    """A figure of the server's /metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next((line.split()[-1] for line in lines if line.startswith(f"stream_recon_{name} ")), 0))


async def bench(port: int, pid: int, options: Namespace) -> None:
    with open_source(str(SAMPLE), FrameChoice(max_frames=1)) as source:
        image = cv2.resize(next(iter(source)).rgb, (640, 360), interpolation=cv2.INTER_AREA)
    jpeg = base64.b64encode(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes()).decode()
    seen, memory = Seen(), [resident_mib(pid)]
    address = f"ws://127.0.0.1:{port}/v1/stream"
    clients = [
        session(address, jpeg, options, seen, at / options.sessions / options.fps) for at in range(options.sessions)
    ]
    everyone = asyncio.gather(*clients)
    while not everyone.done():
        await asyncio.wait([everyone], timeout=5)
        memory.append(resident_mib(pid))
    await everyone
    delays = 1000 * np.array(seen.delays)
    header("figure", "value")
    row("sessions; frames/s of each; kB a frame", f"{options.sessions}; {options.fps:g}; {len(jpeg) * 3 // 4000}")
    row("acknowledgement, ms: p50, p95, largest", ", ".join(f"{np.percentile(delays, at):.1f}" for at in (50, 95, 100)))
    shown = (memory[0], memory[len(memory) // 4], memory[-1], max(memory))
    row("memory of the server, MiB: start, a quarter, end; largest", "{:.1f}, {:.1f}, {:.1f}; {:.1f}".format(*shown))
    row(
        "frames sent, taken, dropped; results",
        f"{seen.sent}, {seen.states['taken']}, {seen.states['dropped']}; {seen.results}",
    )
    told = [figure(port, f'frames_total{{state="{state}"}}') for state in ("taken", "dropped")]
    told.append(figure(port, 'messages_total{type="result"}'))
    row("the same by /metrics", f"{sum(told[:2]):.0f}, {told[0]:.0f}, {told[1]:.0f}; {told[2]:.0f}")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--fps", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=150.0)


def run(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with beside([sys.executable, "-c", SERVER, str(data), str(options.sessions)]) as server:
            assert server.stdout is not None
            asyncio.run(bench(int(server.stdout.readline()), server.pid, options))
