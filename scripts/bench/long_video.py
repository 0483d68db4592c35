"""The published preset on a long video, random weights, as many keyframes as can be: views in the cache, memory."""

from argparse import ArgumentParser, Namespace

import torch

from bench.command import resident_mib
from bench.films import frame_at, sample_frames
from bench.table import header, row
from stream_recon.app.core.types import Frame
from stream_recon.app.engine.engine import Engine
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.network import StreamingNetwork

MARKS = 4  # rows of each run, besides the first one
REDUCED = {
    **{"network.dim": 128, "network.heads": 4, "network.encoder_depth": 2, "network.depth": 4},
    **{"network.output_layers": [0, 1, 2, 3], "network.camera_depth": 1, "network.camera_heads": 4},
    **{"network.dpt_features": 16, "network.dpt_channels": [16, 16, 16, 16], "image.max_patches": 20},
}
"""A network and an image that a CPU runs in milliseconds; all else is the preset's."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=2000)
    parser.add_argument("--reduced", action="store_true", help="a small network and image, for a CPU")


def network_of(preset: Preset) -> StreamingNetwork:
    if torch.cuda.is_available():
        from bench.gpu.measure import random_network

        return random_network(preset)
    torch.manual_seed(0)
    return StreamingNetwork(preset.network).eval().requires_grad_(False)


def play(network: StreamingNetwork, preset: Preset, frames: int, *, known: bool) -> None:
    """One run; the program ends at a frame with more views than the network was trained on."""
    engine, pictures, most, keyframes = Engine(network, preset, "0" * 64), sample_frames(), 0, 0
    engine.expect(frames if known else None)
    for index in range(frames):
        results = engine.push(engine.prepare(Frame(index, index / 30, frame_at(pictures, index))))
        keyframes += sum(result.is_keyframe for result in results)
        use = engine.cache_use
        most = max(most, use["views"])
        if preset.stream.max_views is None or most > preset.stream.max_views:
            raise SystemExit(f"frame {index}: {most} views in the cache")
        if (index + 1) % (frames // MARKS) == 0 or index + 1 == frames // (2 * MARKS):
            device = f"{torch.cuda.memory_allocated() / 1e6:.1f}" if torch.cuda.is_available() else "none"
            counts = keyframes, engine.submaps, most, use["evicted"], use["evicted_patches"]
            row("known" if known else "unknown", index + 1, *counts, f"{resident_mib():.0f}", device)


def run(options: Namespace) -> None:
    most_keyframes = {"stream.flow_threshold": 1e9, "stream.max_gap": 1}
    preset = load_preset("lingbot-map", most_keyframes | (REDUCED if options.reduced else {}))
    network = network_of(preset)
    views = "most views", "evicted", "evicted patches"
    header("length", "frames", "keyframes", "submaps", *views, "host MiB", "device MB allocated")
    for known in (True, False):
        play(network, preset, options.frames, known=known)
