"""What a run does while a phone waits for each pose, on a machine whose processor is the network's only device.

The network sees smaller images, and no back end corrects its poses. After the scan, all frames are reconstructed once
more as those of a file are, since the result would keep some of that error even after refinement. One core is left to
all else: a second thread of the network would take more time from it than it saves, since threads wait for one another
some hundred times in a step.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stream_recon.app.cli.reconstruct_job import ReconstructJob
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.run.session import EarlierRun
    from stream_recon.app.sources.source import Source

CORES = 4
"""Cores from which a scan needs no less work than a file."""
PATCHES = 72
"""Most patches of the network's image below that: two fifths of the time of 208."""
UPDATE_SHARE = 0.05
"""Largest share of the time that the viewer takes."""


@dataclass(frozen=True)
class RunLoad:
    """The network's choice, and the back end next to it."""

    model: "ModelChoice"
    mapping: Literal["full", "stream", "off"]
    threads: int | None = None
    """Most CPU threads of the network; None: as many as there are cores."""

    @property
    def is_lighter(self) -> bool:
        """Whether there is less work for each frame than was asked for."""
        return self.threads is not None


def run_load(job: "ReconstructJob", source: "Source") -> RunLoad:
    """What a run does: all that was asked for, except for scans."""
    load = RunLoad(job.model, job.mapping)
    return load if source.feedback is None else load_of_scan(load)


def load_of_scan(load: RunLoad) -> RunLoad:
    """Less work for each frame of a scan, where this machine needs it. It imports torch."""
    import torch

    from stream_recon.app.core.cores import usable_cores

    cores = usable_cores()
    uses_gpu = load.model.device == "cuda" or (load.model.device == "auto" and torch.cuda.is_available())
    if uses_gpu or cores >= CORES or load.mapping != "full":
        return load
    return RunLoad(dataclasses.replace(load.model, max_patches=PATCHES), "off", max(1, cores - 1))


def begins_again(job: "ReconstructJob", source: "Source", earlier: "EarlierRun") -> bool:
    """Whether the earlier result is that of a scan that is over and had less work for each frame."""
    from stream_recon.app.sources.scan_folder import is_scan

    record = earlier.record or (earlier.partial.record if earlier.partial is not None else None)
    if record is None or source.live or not is_scan(job.spec):
        return False
    preset = record.get("preset")
    image = preset.get("image") if isinstance(preset, dict) else None
    patches = image.get("max_patches") if isinstance(image, dict) else None
    return isinstance(patches, int) and patches < job.model.load_preset().image.max_patches
