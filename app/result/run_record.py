"""``run.json``: what was run, with which weights, how fast, and what was lost."""

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stream_recon.app.core.protocols import FrameEngine
from stream_recon.configs.schema import Preset, upgraded_preset

RUN_NAME = "run.json"
PROGRAM = "stream-recon"
ONLINE, REFINEMENT, METRIC_SCALE = "online_mapping", "refinement", "metric_scale"
"""Keys of what online mapping, refinement and the recovery of metric scale did."""
_RENAMED = {
    "streams": "submaps",
    "stands_on": "reference_frames",
    "stretches": "segments",
    "stream": ONLINE,
    "mapping": REFINEMENT,
    "unit": METRIC_SCALE,
    "unseen": "blank",
    "left_to_network": "fallback_segments",
    "own_to_metres": "T_metric_own",
}
"""Keys of version 0.1, and their names since."""


@dataclass(frozen=True)
class RunInfo:
    """What is known of a run before it begins."""

    source: str
    preset: Preset
    weights_sha256: str
    device: str
    options: dict[str, Any] = field(default_factory=dict)
    """Choices that change the result, as given on the command line."""
    precision: str = "fp32"
    cache: str = "full"
    """What the frames' keys and values are kept in: ``full``, the precision above, or ``fp8``."""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @staticmethod
    def of(engine: FrameEngine, source: str, options: dict[str, Any]) -> "RunInfo":
        """A run of ``engine`` that begins now."""
        return RunInfo(
            source,
            engine.preset,
            engine.weights_sha256,
            engine.device,
            options,
            precision=engine.precision,
            cache=engine.cache,
        )


@dataclass(frozen=True)
class RunSummary:
    """How a run went, or has gone so far."""

    interrupted: bool = True
    frames_read: int = 0
    frames_reconstructed: int = 0
    keyframes: int = 0
    frames_dropped: int = 0
    """Frames of a live source that came while the one before was still waiting."""
    frames_damaged: int = 0
    """Frames that should be there and could not be decoded."""
    blank_frames: int = 0
    """Frames left out, since they were black or the lens covered."""
    seconds: float = 0.0
    """Time from the first frame's decoding to now."""
    latency_p50_ms: float | None = None
    """Time from a frame's way into the engine to its result; None before the first one."""
    latency_p95_ms: float | None = None
    peak_host_memory_mb: float = 0.0
    peak_device_memory_mb: float | None = None
    """None on a CPU."""
    attention: str = "auto"
    network_focal: float | None = None
    """Median of the focal lengths in pixels that the network would have had, where the camera was known."""
    submaps: int = 0
    """More than one where the first frames went out of view; see `Anchor`."""
    reference_frames: tuple[int, ...] = ()
    """Numbers of the scale frames of the last one."""
    warnings: tuple[str, ...] = ()
    segments: tuple[dict[str, Any], ...] = ()
    """Where nothing connects frames with those before; see `Stretch`."""
    health: dict[str, Any] = field(default_factory=dict)
    """How well tracking went, and where it did not; see `stream_recon.app.pipeline.health`."""
    resumed: tuple[dict[str, Any], ...] = ()
    """Where the run was gone on with after it had been cut off; see `Seam`."""
    stream: dict[str, Any] | None = None
    """What geometry did while frames came in; None without."""
    source_lost: bool = False
    """A live source broke off and did not come back."""

    @property
    def fps(self) -> float:
        """Frames reconstructed a second, over the whole run."""
        return self.frames_reconstructed / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class FileRevisions:
    """How many revisions each file has taken in: where the numbers are equal, the files tell one story.

    ``cameras.json`` leads, and its number goes up before the file changes; those of the others after theirs have. So
    a run that was killed in between shows unequal numbers. Points within half a voxel of their place count as there.
    """

    cameras: int = 0
    trajectory: int = 0
    points: int = 0


def now_text() -> str:
    """The time now, as records have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def program_version() -> str:
    try:
        return version(PROGRAM)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"


def run_record(
    info: RunInfo, summary: RunSummary, revisions: FileRevisions | None = None, without_depth: int = 0
) -> dict[str, Any]:
    """The content of ``run.json``. ``without_depth``: frames of which no depth file was to be kept."""
    return {
        "program": PROGRAM,
        "version": program_version(),
        "source": info.source,
        "started": info.started.isoformat(timespec="seconds"),
        "interrupted": summary.interrupted,
        "source_lost": summary.source_lost,
        "weights_sha256": info.weights_sha256,
        "device": info.device,
        "precision": info.precision,
        "cache": info.cache,
        "attention": summary.attention,
        "network_focal": summary.network_focal,
        "submaps": summary.submaps,
        "reference_frames": list(summary.reference_frames),
        "options": info.options,
        "frames": {
            "read": summary.frames_read,
            "reconstructed": summary.frames_reconstructed,
            "keyframes": summary.keyframes,
            "dropped": summary.frames_dropped,
            "damaged": summary.frames_damaged,
            "blank": summary.blank_frames,
            "without_depth": without_depth,
        },
        "timings": {
            "seconds": round(summary.seconds, 3),
            "fps": round(summary.fps, 3),
            "latency_ms": {"p50": summary.latency_p50_ms, "p95": summary.latency_p95_ms},
        },
        "peak_memory_mb": {"host": summary.peak_host_memory_mb, "device": summary.peak_device_memory_mb},
        "revisions": dataclasses.asdict(revisions or FileRevisions()),
        "resumed": list(summary.resumed),
        "segments": list(summary.segments),
        "health": summary.health,
        ONLINE: summary.stream,
        "warnings": list(summary.warnings),
        "preset": dataclasses.asdict(info.preset),
    }


def upgraded(record: dict[str, Any]) -> dict[str, Any]:
    """A ``run.json`` of any version under the keys of this one; options stay as they are."""

    def renamed(table: dict[str, Any]) -> dict[str, Any]:
        return {_RENAMED.get(key, key): value for key, value in table.items()}

    tables = ("frames", ONLINE, REFINEMENT, METRIC_SCALE)
    record = renamed(record)
    record["preset"] = upgraded_preset(record.get("preset"))
    return record | {key: renamed(record[key]) for key in tables if isinstance(record.get(key), dict)}
