"""What a run does while a phone waits for each pose, on a machine whose processor is the network's only device.

The network sees smaller images, and its poses are corrected after the scan: refinement measures all frames again, in
images of full size.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stream_recon.app.cli.reconstruct_job import ReconstructJob
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.result.resume import PartialResult
    from stream_recon.app.sources.source import Source

CORES = 4
"""Cores from which a scan needs no less work than a file."""
PATCHES = 130
"""Most patches of the network's image below that: two thirds of the time of 208."""


@dataclass(frozen=True)
class RunLoad:
    """The network's choice, and the back end next to it."""

    model: "ModelChoice"
    mapping: Literal["full", "stream", "off"]


def run_load(job: "ReconstructJob", source: "Source", partial: "PartialResult | None") -> RunLoad:
    """What a run does: all that was asked for, except for scans. ``partial``: frames of an earlier run, if any."""
    from stream_recon.app.sources.scan_folder import is_scan

    load = RunLoad(job.model, job.mapping)
    if source.feedback is not None:
        return load_of_scan(load)
    return load_of_rest(load, partial) if partial is not None and is_scan(job.spec) else load


def load_of_scan(load: RunLoad) -> RunLoad:
    """Less work for each frame of a scan, where this machine needs it. It imports torch."""
    import torch

    from stream_recon.app.core.cores import usable_cores

    uses_gpu = load.model.device == "cuda" or (load.model.device == "auto" and torch.cuda.is_available())
    if uses_gpu or usable_cores() >= CORES or load.mapping != "full":
        return load
    return RunLoad(dataclasses.replace(load.model, max_patches=PATCHES), "off")


def load_of_rest(load: RunLoad, partial: "PartialResult") -> RunLoad:
    """The rest of an interrupted scan has images of the size that its first frames had."""
    from stream_recon.app.result.depth import depth_path, read_depth

    patch = load.model.load_preset().network.patch_size
    width, height = read_depth(depth_path(partial.folder, partial.last.index)).transform.network_size
    if (width // patch) * (height // patch) > PATCHES:
        return load
    return RunLoad(dataclasses.replace(load.model, max_patches=PATCHES), load.mapping)
