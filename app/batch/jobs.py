"""Jobs of a batch: what a worker does at a time, and what it reports. All of it is pickled for workers."""

import dataclasses
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from stream_recon.app.core.ground_truth import GroundTruth
from stream_recon.app.core.types import FrameEngine
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources.source import Source
from stream_recon.configs.schema import Preset
from stream_recon.models.embedded import file_sha256

MAX_NAME_BYTES = 200
"""Longest folder name of a scene: file systems end at 255, and a number may follow."""
RESERVED_NAMES = frozenset({"summary.json", "summary.csv", "index.html"})
"""Files of the batch in OUT, which no scene's folder may be called like."""
CHUNKS_FOLDER = ".windows"
"""Folder in OUT for the chunks of split videos, called as in version 0.2, whose finished chunks still count."""


@dataclass(frozen=True)
class ModelIdentity:
    """What the results of a model depend on: those of another one do not count as finished."""

    preset: Preset
    weights_sha256: str
    cache: str = "full"

    @property
    def preset_tables(self) -> dict[str, Any]:
        """The preset as a JSON file gives it back: lists, not tuples."""
        tables: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self.preset)))
        return tables


class ModelLoader(Protocol):
    """Loads the model in each worker. Must be picklable."""

    @property
    def choice(self) -> ModelChoice | None:
        """The network it loads; None where scenes cannot share it."""

    @property
    def uses_gpu(self) -> bool:
        """Whether it uses a GPU where there is one."""

    def check(self) -> None:
        """Fail early where there is no such model. Raises StreamReconError."""

    def describe(self) -> ModelIdentity:
        """Identity of the model, without loading it; reads the whole weights file. Raises StreamReconError."""

    def gpus(self) -> list[str]:
        """Names, as in CUDA_VISIBLE_DEVICES, of this machine's GPUs to share out; empty for work on the CPU."""

    def prepare(self) -> None:
        """Do the part of loading that needs no GPU. Runs in the worker, before it knows its GPU."""

    def load(self, weights_sha256: str | None = None) -> FrameEngine:
        """Load the model; ``weights_sha256`` is the hash of its weights, if known. Raises StreamReconError."""


@dataclass(frozen=True)
class EngineLoader:
    """Loader of the program's engine."""

    choice: ModelChoice

    def check(self) -> None:
        """Raises ConfigError, WeightsError."""
        self.choice.load_preset()
        self.choice.weights_file()

    def describe(self) -> ModelIdentity:
        """Raises ConfigError, WeightsError."""
        return ModelIdentity(self.choice.load_preset(), file_sha256(self.choice.weights_file()), self.choice.cache)

    @property
    def uses_gpu(self) -> bool:
        return self.choice.device != "cpu"

    def gpus(self) -> list[str]:
        """GPUs named by CUDA_VISIBLE_DEVICES, else all; none where the CPU is chosen or torch sees no GPU."""
        if not self.uses_gpu:
            return []
        import torch

        # Counted by the driver: to set up CUDA in this process, which does not need it, would take a second.
        count = torch.cuda.device_count()
        if not count:
            return []
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        return chosen.split(",") if chosen else [str(number) for number in range(count)]

    def prepare(self) -> None:
        # This import is most of the time until the first frame, and looks for no GPU.
        from stream_recon.app.engine import engine  # noqa: F401

    def load(self, weights_sha256: str | None = None) -> FrameEngine:
        return self.choice.load(weights_sha256)


@dataclass(frozen=True)
class ChunkRange:
    """Part of a scene, counted in frames taken: from ``first`` up to and without ``last`` (None: to the end)."""

    first: int
    last: int | None


class BatchScene(Protocol):
    """The part of `stream_recon.app.datasets.scene.Scene` that a batch needs."""

    @property
    def name(self) -> str: ...

    @property
    def dataset(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def frames(self) -> int | None: ...

    @property
    def masks(self) -> str | None: ...

    def open(self, stride: int = 1, max_frames: int | None = None) -> Source: ...

    def truth(self) -> GroundTruth | None: ...


@dataclass(frozen=True)
class Job:
    """One scene, or one chunk of it, as a worker gets it."""

    name: str
    """Name of the result folder in OUT."""
    scene: BatchScene
    options: RunOptions
    """Chunks keep the network's poses, and get no stages, until they are stitched."""
    key: dict[str, Any]
    """What decides the result; a finished one counts if its manifest has the same key. See `job_key`."""
    chunk: ChunkRange | None = None
    read_through: bool = False
    """Decode all frames before the chunk instead of seeking; see `Source.skip`."""

    @property
    def weights_sha256(self) -> str:
        digest: str = self.key["weights"]
        return digest

    @property
    def frames(self) -> int | None:
        """Expected number of frames; None where the source does not give it."""
        if self.chunk is not None and self.chunk.last is not None:
            return self.chunk.last - self.chunk.first
        total = self.options.frames.count(self.scene.frames)
        return total if total is None or self.chunk is None else max(total - self.chunk.first, 1)


def plan_jobs(
    root: Path,
    scenes: Sequence[BatchScene],
    options: RunOptions,
    model: ModelIdentity,
    split: int = 1,
    scales: Mapping[str, str] | None = None,
) -> list[Job]:
    """One job per scene, in the order of the scenes, each with its own folder name.

    ``split``: chunks of each scene; ``scales``: source of the metric scale by scene name.
    """
    jobs = []
    for name, scene in zip(folder_names([scene.name for scene in scenes]), scenes, strict=True):
        own = dataclasses.replace(options, scale_from=(scales or {}).get(scene.name))
        jobs.append(Job(name, scene, own, job_key(root, scene, own, model, split)))
    return jobs


def job_key(root: Path, scene: BatchScene, options: RunOptions, model: ModelIdentity, split: int = 1) -> dict[str, Any]:
    """All that decides a scene's result.

    Device and attention kernel are left out: they change only its rounding. Dense depth and meshes are left out, too:
    results without them stay valid.
    """
    path, choice = scene.path, options.frames
    # Absent unless given: results of versions without these options stay valid.
    options_used = {
        "camera": choice.camera,
        "masks": scene.masks,
        "mapping": None if options.mapping == "off" else options.mapping,
        "mask_sky": options.mask_sky,
        "scale_from": options.scale_from,
        "split": None if split == 1 else split,
    }
    key = {
        "scene": {
            "dataset": scene.dataset,
            # The root may be the scene itself.
            "path": path.relative_to(root).as_posix() if root in path.parents else path.name,
            "frames": scene.frames,
            "bytes": path.stat().st_size if path.is_file() else None,
        },
        "options": {
            "stride": choice.stride,
            "max_frames": choice.max_frames,
            **{name: value for name, value in options_used.items() if value},
        },
        "preset": model.preset_tables,
        "weights": model.weights_sha256,
    }
    # Results of versions without this option stay valid.
    return key if model.cache == "full" else {**key, "cache": model.cache}


def folder_names(scene_names: Sequence[str]) -> list[str]:
    """Distinct folder names, also for file systems that ignore case. Spaces and Unicode stay."""
    taken: set[str] = set()
    names = []
    for scene_name in scene_names:
        # No separators or control characters, and no leading dot, which hidden files and our own folders have.
        base = re.sub(r'[\x00-\x1f\x7f/\\:*?"<>|]+', "-", scene_name).strip(" .") or "scene"
        base = base.encode()[:MAX_NAME_BYTES].decode(errors="ignore")
        if base.casefold() in RESERVED_NAMES:
            base += "-scene"
        name, number = base, 1
        while name.casefold() in taken:
            number += 1
            name = f"{base}-{number}"
        taken.add(name.casefold())
        names.append(name)
    return names


def chunks_folder(name: str) -> str:
    """Folder in OUT that keeps the chunks of the scene with that folder name until they are stitched."""
    return f"{CHUNKS_FOLDER}/{name}"


def longest_first(jobs: Sequence[Job]) -> list[Job]:
    """Order that keeps workers busy to the end; jobs of unknown length may be the longest and come first."""
    return sorted(jobs, key=lambda job: (job.frames is not None, -(job.frames or 0)))


@dataclass(frozen=True)
class JobResult:
    """End of a job."""

    name: str
    status: Literal["done", "failed", "interrupted", "disk full"]
    result: dict[str, Any] | None = None
    """Record in the manifest of a finished job."""
    reason: str = ""
    frames_mismatch: bool = False
    """It failed with `FrameMismatchError`."""


@dataclass(frozen=True)
class JobProgress:
    """Number of frames of a job written so far."""

    name: str
    frames: int


Event = JobProgress | JobResult
Seconds = dict[str, float]
"""Seconds by stage, in the order of the stages."""


class StageTimer(RunObserver):
    """Time by stage, without gaps: the seconds add up to the total. A stage that is entered again is summed."""

    def __init__(self, first: str, started_at: float | None = None) -> None:
        """``started_at``: start of the first stage by `time.monotonic`; None: this moment."""
        self._seconds: Seconds = {}
        self._name, self._since = first, time.monotonic() if started_at is None else started_at

    def on_stage(self, name: str, number: int, count: int) -> None:
        self.enter(name)

    def enter(self, name: str) -> None:
        """End the current stage and begin another."""
        now = time.monotonic()
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now

    @property
    def seconds(self) -> Seconds:
        """Seconds of all stages up to this moment, rounded to milliseconds."""
        self.enter(self._name)
        return {name: round(seconds, 3) for name, seconds in self._seconds.items()}
