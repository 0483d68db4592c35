#!/usr/bin/env python3
"""Compare the network and its caches with reference outputs: scripts/weights/parity.py GOLDEN.json

Beside NAME.json lie NAME.weights.safetensors (published names) and NAME.outputs.safetensors: ``rgb`` [N, 3, H, W]
uint8 and, for each mode of running it, MODE.pose_enc, MODE.depth, MODE.depth_conf and so on. Modes are
``every_frame``, ``interval_N`` and ``flow`` (flow_threshold and max_gap from the JSON). Prints the largest error of
each output relative to that output's standard deviation; exits with 1 if one is above the limit.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from stream_recon.app.engine.stream import StreamRunner
from stream_recon.configs.errors import StreamReconError
from stream_recon.configs.schema import Preset, preset_from_tables
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import load_network

LIMIT = 1e-3


def preset_of(sizes: dict[str, Any], mode: str, point_head: bool) -> Preset:
    """The preset that a golden file's sizes describe, for one mode."""
    network = {
        "dim": sizes["embed_dim"],
        "heads": sizes["num_heads"],
        "encoder_depth": sizes["encoder_depth"],
        "depth": sizes["depth"],
        "output_layers": sizes["output_layers"],
        "camera_depth": sizes["camera_depth"],
        "camera_heads": sizes["camera_heads"],
        "camera_iterations": sizes["camera_iterations"],
        "dpt_features": sizes["dpt_features"],
        "dpt_channels": sizes["dpt_out_channels"],
        "image_size": sizes["img_size"],
        "point_head": point_head,
    }
    stream: dict[str, Any] = {
        "scale_frames": sizes["scale_frames"],
        "window": sizes["sliding_window"],
        "special_budget": max(sizes["frames"], 64),
        "camera_window": max(sizes["frames"], 64),
    }
    interval = re.fullmatch(r"interval_(\d+)", mode)
    if mode == "flow":
        flow = sizes.get("flow", sizes)
        stream |= {"keyframes": "flow", "flow_threshold": flow["flow_threshold"], "max_gap": flow["max_gap"]}
    elif interval:
        stream |= {"keyframes": "interval", "keyframe_interval": int(interval[1])}
    elif mode == "every_frame":
        stream |= {"keyframes": "every"}
    else:
        raise StreamReconError(f"unknown mode {mode!r} in the reference outputs")
    return preset_from_tables(
        "golden", {"network": network, "stream": stream, "image": {"max_patches": 2**16, "max_side": 2**16}}
    )


def run(network: StreamingNetwork, preset: Preset, rgb: Tensor) -> dict[str, Tensor]:
    """Stream all frames; outputs by their published names, frames first."""
    patch = preset.network.patch_size
    stream = StreamRunner(network, preset, (rgb.shape[2] // patch, rgb.shape[3] // patch))
    images = rgb.float() / 255
    scale = min(preset.stream.scale_frames, len(images))
    collected: dict[str, list[Tensor]] = {}
    for batch in (images[:scale], *images[scale:].split(1)):
        prediction, _ = stream.step(batch)
        outputs = {
            "pose_enc": prediction.pose[0],
            "depth": prediction.depth[0, ..., None],
            "depth_conf": prediction.depth_conf[0],
            "world_points": prediction.world_points,
            "world_points_conf": prediction.world_points_conf,
        }
        for name, value in outputs.items():
            if value is not None:
                value = value[0] if name.startswith("world") else value
                collected.setdefault(name, []).append(value.cpu())
    return {name: torch.cat(parts) for name, parts in collected.items()}


def compare(path: Path, device: str) -> float:
    """Print every output's error; return the largest."""
    sizes = json.loads(path.read_text())
    reference = load_file(path.with_suffix(".outputs.safetensors"))
    rgb = reference.pop("rgb")
    modes = sorted({name.split(".")[0] for name in reference})
    worst = 0.0
    for mode in modes:
        expected_outputs = {n.removeprefix(f"{mode}."): t for n, t in reference.items() if n.startswith(f"{mode}.")}
        preset = preset_of(sizes, mode, point_head="world_points" in expected_outputs)
        network = load_network(path.with_suffix(".weights.safetensors"), preset.network).to(device)
        outputs = run(network, preset, rgb)
        for name, expected in sorted(expected_outputs.items()):
            if name not in outputs:
                raise StreamReconError(f"the reference has an output that we do not make: {mode}.{name}")
            error = float((outputs[name] - expected).abs().max() / expected.std())
            worst = max(worst, error)
            print(f"{mode:14} {name:20} {error:.2e} {'ok' if error <= LIMIT else 'FAILED'}")
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("golden", type=Path)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    try:
        worst = compare(arguments.golden, arguments.device)
    except (StreamReconError, OSError, KeyError) as error:
        print(f"parity: {error}", file=sys.stderr)
        return 2
    print(f"largest relative error {worst:.2e}, limit {LIMIT:.0e}")
    return 0 if worst <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
