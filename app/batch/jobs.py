"""What one worker does at a time: one scene, or one window of a split one. Everything here travels to workers.

Where the seconds go: phases that follow one another without a gap, so that they add up to the whole.

Units that wait for a worker.

What a batch is to do.
"""

import dataclasses
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from stream_recon.app.core.ground_truth import GroundTruth
from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.slam.mode import MappingChoice
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import Source
from stream_recon.configs.schema import Preset
from stream_recon.models.embedded import file_sha256

MAX_NAME_BYTES = 200
"""File systems end at 255; a number may follow."""
RESERVED_NAMES = frozenset({"summary.json", "summary.csv", "index.html"})
WINDOWS_FOLDER = ".windows"


class JobInterruptedError(Exception):
    """Ctrl-C came while a unit was under way."""


@dataclass(frozen=True)
class Model:
    """What tells one model from another."""

    preset: Preset
    weights_sha256: str
    cache: str = "full"

    @property
    def preset_tables(self) -> dict[str, Any]:
        """The preset as a JSON file gives it back: lists, not tuples."""
        tables: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self.preset)))
        return tables


class ModelLoader(Protocol):
    """Loads the model in each worker; has to survive pickling."""

    @property
    def choice(self) -> ModelChoice | None:
        """What it loads, where that is a network which several scenes can share."""

    @property
    def uses_gpu(self) -> bool:
        """Whether it takes a GPU where there is one."""

    def check(self) -> None:
        """See at once whether there is such a model. Raises StreamReconError."""

    def describe(self) -> Model:
        """Without loading it, but by reading all of it. Raises StreamReconError where it could not be loaded."""

    def gpus(self) -> list[str]:
        """Names, as in CUDA_VISIBLE_DEVICES, of this machine's GPUs to share out; none for work on the CPU."""

    def prepare(self) -> None:
        """Do what of the loading needs no GPU and lasts: called in a process that is not told of its GPU yet."""

    def load(self, weights_sha256: str | None = None) -> FrameEngine:
        """``weights_sha256``: of the weights on this machine, where it is known. Raises StreamReconError."""


@dataclass(frozen=True)
class EngineLoader:
    """The program's engine."""

    choice: ModelChoice

    def check(self) -> None:
        """Raises ConfigError, WeightsError."""
        self._chosen()

    def describe(self) -> Model:
        """Raises ConfigError, WeightsError."""
        preset, weights = self._chosen()
        return Model(preset, file_sha256(weights), self.choice.cache)

    def _chosen(self) -> tuple[Preset, Path]:
        return self.choice.load_preset(), self.choice.weights_file()

    @property
    def uses_gpu(self) -> bool:
        return self.choice.device != "cpu"

    def gpus(self) -> list[str]:
        """GPUs that CUDA_VISIBLE_DEVICES names, else all; none where the choice or torch leaves the CPU alone."""
        if not self.uses_gpu:
            return []
        import torch

        # As the driver counts them: to set up CUDA for this process, which does not need it, would take a second.
        count = torch.cuda.device_count()
        if not count:
            return []
        chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
        return chosen.split(",") if chosen else [str(number) for number in range(count)]

    def prepare(self) -> None:
        # Most of the seconds until the first frame; it looks for no GPU.
        from stream_recon.app.engine import engine  # noqa: F401

    def load(self, weights_sha256: str | None = None) -> FrameEngine:
        return self.choice.load(weights_sha256)


@dataclass(frozen=True)
class ChunkRange:
    """Part of a scene, counted in frames taken: ``first`` up to, without it, ``last`` (None: to the end)."""

    first: int
    last: int | None


class BatchScene(Protocol):
    """What is needed of `stream_recon.app.datasets.scene.Scene`."""

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
    """One scene, or one window of it, as a worker gets it."""

    name: str
    """Its result folder within OUT."""
    scene: BatchScene
    choice: FrameChoice
    key: dict[str, Any]
    """What its manifest has to say for a finished result to count; see `unit_key`."""
    window: ChunkRange | None = None
    mapping: MappingChoice = "off"
    """What geometry does with a whole scene; windows stay as the network has them until they are joined."""
    mask_sky: bool = False
    """Leave the sky out of each result; see `Masking`."""
    scale_from: str | None = None
    """What brings the whole scene to metres, as `parse_scale_source` has it."""
    read_through: bool = False
    """Begin a window by reading all that comes before it; see `Source.skip`."""

    @property
    def weights_sha256(self) -> str:
        digest: str = self.key["weights"]
        return digest

    @property
    def frames(self) -> int | None:
        """How many frames are expected; None where the source does not say."""
        if self.window is not None and self.window.last is not None:
            return self.window.last - self.window.first
        total = self.choice.count(self.scene.frames)
        return total if total is None or self.window is None else max(total - self.window.first, 1)


def plan_units(root: Path, scenes: Sequence[BatchScene], choice: FrameChoice, model: Model) -> list[Job]:
    """One unit a scene, in the order of the scenes, each with a folder name of its own."""
    names = folder_names([scene.name for scene in scenes])
    return [
        Job(name, scene, choice, unit_key(root, scene, choice, model))
        for name, scene in zip(names, scenes, strict=True)
    ]


def unit_key(root: Path, scene: BatchScene, choice: FrameChoice, model: Model) -> dict[str, Any]:
    """What decides a scene's result. Device and attention are left out: they change no more than its rounding."""
    path = scene.path
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
            # Results of versions that knew none stay valid where none is given.
            **({"camera": choice.camera} if choice.camera else {}),
            **({"masks": scene.masks} if scene.masks else {}),
        },
        "preset": model.preset_tables,
        "weights": model.weights_sha256,
    }
    # Results of versions without the choice stay valid.
    return key if model.cache == "full" else {**key, "cache": model.cache}


def folder_names(scene_names: Sequence[str]) -> list[str]:
    """Names fit for folders side by side, on file systems that ignore case, too. Spaces and unicode stay."""
    taken: set[str] = set()
    names = []
    for scene_name in scene_names:
        # No separators and control characters; no leading dot, which our own folders and hidden files have.
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


def windows_folder(name: str) -> str:
    """Where the windows of the scene with that result folder are kept until they are joined."""
    return f"{WINDOWS_FOLDER}/{name}"


def longest_first(units: Sequence[Job]) -> list[Job]:
    """The order in which workers are kept busy to the end; those of unknown length may be the longest of all."""
    return sorted(units, key=lambda unit: (unit.frames is not None, -(unit.frames or 0)))


@dataclass(frozen=True)
class Outcome:
    """What became of a unit."""

    name: str
    status: Literal["done", "failed", "interrupted", "disk full"]
    result: dict[str, Any] | None = None
    """What its manifest records; for a finished one."""
    reason: str = ""
    misplaced: bool = False
    """It failed for a `MisplacedError`."""


@dataclass(frozen=True)
class JobProgress:
    """So many frames of a unit are written."""

    name: str
    frames: int


Event = JobProgress | Outcome


Seconds = dict[str, float]
"""By the names of the phases, in their order."""


class StageTimer:
    """A watch that is told which phase begins; a phase that comes again is added up."""

    def __init__(self, first: str, begun: float | None = None) -> None:
        """``begun``: when the first one did, by `time.monotonic`; None: now."""
        self._seconds: Seconds = {}
        self._name, self._since = first, time.monotonic() if begun is None else begun

    def enter(self, name: str) -> None:
        """The phase so far is over, and another one begins."""
        now = time.monotonic()
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now

    @property
    def seconds(self) -> Seconds:
        """Of all phases up to now, in milliseconds' precision."""
        now = time.monotonic()
        under_way = {self._name: self._seconds.get(self._name, 0.0) + now - self._since}
        return {name: round(seconds, 3) for name, seconds in {**self._seconds, **under_way}.items()}


MAX_ATTEMPTS = 3
"""A scene whose worker is lost so often is given up: it may be the cause."""


class WorkQueue:
    """Gives out units in their order, and passes on what became of them. True while there is one to give out."""

    def __init__(self, units: Sequence[Job], on_event: Callable[[Event], None]) -> None:
        self._waiting = deque(units)
        self._attempts = dict.fromkeys((unit.name for unit in units), 0)
        self._on_event = on_event
        self._disk_full = False

    def __bool__(self) -> bool:
        return bool(self._waiting) and not self._disk_full

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self) -> Job:
        unit = self._waiting.popleft()
        self._attempts[unit.name] += 1
        return unit

    def lost(self, unit: Job, reason: str) -> None:
        """The worker of a unit is gone: it comes next, or has failed for ``reason`` after `MAX_ATTEMPTS`."""
        if self._attempts[unit.name] < MAX_ATTEMPTS:
            self._waiting.appendleft(unit)
        else:
            self._on_event(Outcome(unit.name, "failed", reason=reason))

    def tell(self, event: Event) -> None:
        """Pass on what a worker says; after a full disk no more is given out."""
        if isinstance(event, Outcome) and event.status == "disk full":
            self._disk_full = True
        self._on_event(event)
