"""What a run does while a phone waits for each pose, on a machine whose processor is the network's only device.

The network sees smaller images, and no back end corrects its poses. After the scan, all frames are reconstructed once
more as those of a file are, since the result would keep some of that error even after refinement. One core is left to
all else: a second thread of the network would take more time from it than it saves, since threads wait for one another
some hundred times in a step.
"""

import dataclasses
from dataclasses import dataclass
from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

from stream_recon.app.core.process import memory_errors
from stream_recon.app.core.types import FrameEngine

if TYPE_CHECKING:
    from stream_recon.app.run.earlier import EarlierRun
    from stream_recon.app.run.options import RunJob, RunOptions
    from stream_recon.app.sources.source import Source

CORES = 4
"""Cores from which a scan needs no less work than a file."""
PATCHES = 72
"""Most patches of the network's image below that: two fifths of the time of 208."""


@dataclass(frozen=True)
class RunLoad:
    """The options of a run, with less work for each frame where that is needed."""

    options: "RunOptions"
    threads: int | None = None
    """Most CPU threads of the network; None: as many as there are cores."""

    @property
    def is_lighter(self) -> bool:
        """Whether there is less work for each frame than was asked for."""
        return self.threads is not None

    def load_engine(self) -> FrameEngine:
        """The network, as these options want it. Raises StreamReconError."""
        if self.options.mapping != "off":
            # Beside the network's weights, which are read and packed without Python.
            Thread(target=import_module, args=("stream_recon.app.slam.online.back_end",), daemon=True).start()
        with memory_errors():
            engine = self.options.model.load()
        if self.threads is not None:
            engine.threads = min(engine.threads, self.threads)
        return engine


def run_load(options: "RunOptions", source: "Source") -> RunLoad:
    """All that was asked for, but less work for each frame of a scan where this machine needs it (imports torch)."""
    if source.feedback is None:
        return RunLoad(options)
    from stream_recon.app.core.cores import usable_cores
    from stream_recon.app.engine.devices import choose_device

    cores = usable_cores()
    device = options.model.device
    uses_gpu = (choose_device(device).type if device == "auto" else device) != "cpu"
    if uses_gpu or cores >= CORES or options.mapping != "full":
        return RunLoad(options)
    model = dataclasses.replace(options.model, max_patches=PATCHES)
    return RunLoad(dataclasses.replace(options, model=model, mapping="off", onto=None), max(1, cores - 1))


def begins_again(job: "RunJob", source: "Source", earlier: "EarlierRun") -> bool:
    """Whether the earlier result is that of a scan that is over and had less work for each frame."""
    from stream_recon.app.sources.scan_folder import is_scan

    record = earlier.record or (earlier.partial.record if earlier.partial is not None else None)
    if record is None or source.live or not is_scan(job.spec):
        return False
    preset = record.get("preset")
    image = preset.get("image") if isinstance(preset, dict) else None
    patches = image.get("max_patches") if isinstance(image, dict) else None
    return isinstance(patches, int) and patches < job.options.model.load_preset().image.max_patches
