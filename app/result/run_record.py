"""``run.json``: what was run, with which weights, how fast, and what was lost."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stream_recon.app.core.types import FrameEngine
from stream_recon.configs.schema import Preset

RUN_NAME = "run.json"
FILE_NAMES = (
    *("trajectory.txt", "cameras.json", "points.ply", "tracks.npz", "mesh.glb", "map.npz", "changes.ply"),
    *("splats.ply", "splats.checkpoint"),
)
"""Files of a result besides ``run.json``."""
PROGRAM = "stream-recon"
ONLINE, REFINEMENT, DENSE, METRIC_SCALE = "online_mapping", "refinement", "dense", "metric_scale"
"""Keys of the reports of online mapping, refinement, dense depth and metric scale recovery."""
POSES = "poses"
"""Key of the known poses from which a result was refined."""
MESH = "mesh"
"""Key of what ``mesh.glb`` consists of."""
SPLATS = "splats"
"""Key of the report of the training of Gaussian splats."""
ONTO = "onto"
"""Key of the other result in whose world a result was put."""
CHANGES_NAME = "changes.ply"
"""Points that differ from the result in whose world it was put."""
PARTS = "parts"
"""Key of the merged results among the options of a merged one."""
RIG, VIEWS = "rig", "views"
"""Keys of what brought a rig's views into one world, and of the views in the options."""
VERDICT = "verdict"
"""Key of the judgement of the result."""


@dataclass(frozen=True)
class RunInfo:
    """Properties of a run that are known before its first frame."""

    source: str
    preset: Preset
    weights_sha256: str
    device: str
    options: dict[str, Any] = field(default_factory=dict)
    """Choices that change the result, as given on the command line."""
    precision: str = "fp32"
    cache: str = "full"
    """Storage of keys and values: ``full``, in ``precision``, or ``fp8``."""
    started: datetime = field(default_factory=lambda: datetime.now(UTC))

    @staticmethod
    def from_engine(engine: FrameEngine, source: str, options: dict[str, Any]) -> "RunInfo":
        """Properties of a run of ``engine`` that starts at this moment."""
        known = engine.preset, engine.weights_sha256, engine.device
        return RunInfo(source, *known, options, precision=engine.precision, cache=engine.cache)


@dataclass(frozen=True)
class RunSummary:
    """Counts, times and reports of a run up to this moment."""

    interrupted: bool = True
    frames_read: int = 0
    frames_reconstructed: int = 0
    keyframes: int = 0
    frames_dropped: int = 0
    """Frames of a live source that a newer frame replaced before they were read."""
    frames_damaged: int = 0
    """Frames that could not be decoded."""
    blank_frames: int = 0
    """Frames left out because they were black or the lens was covered."""
    seconds: float = 0.0
    """Time since the first frame was decoded."""
    latency_p50_ms: float | None = None
    """Median time from a frame's entry into the engine to its result; None before the first one."""
    latency_p95_ms: float | None = None
    peak_host_memory_mb: float = 0.0
    peak_device_memory_mb: float | None = None
    """None on a CPU."""
    attention: str = "auto"
    network_focal: float | None = None
    """Median of the focal lengths in pixels that the network predicts, where the camera was known."""
    unordered: bool = False
    """The frames are photographs in no order."""
    focal_change: dict[str, float] | None = None
    """How the focal length that the network predicts changes; see `stream_recon.app.result.verdict`."""
    submaps: int = 0
    """Number of submaps: more than one where the scale frames went out of view, or the views were too many."""
    cache_use: dict[str, Any] = field(default_factory=dict)
    """Frames in the KV cache of the last submap, and how many frames of the run it has lost."""
    reference_frames: tuple[int, ...] = ()
    """Indices of the scale frames of the last submap."""
    warnings: tuple[str, ...] = ()
    segments: tuple[dict[str, Any], ...] = ()
    """Segments after the first, with the reason of each discontinuity."""
    health: dict[str, Any] = field(default_factory=dict)
    """Tracking quality and intervals of weak tracking; see `stream_recon.app.run.health`."""
    resumed: tuple[dict[str, Any], ...] = ()
    """Where the run was resumed, and how well the overlapping frames fit."""
    stream: dict[str, Any] | None = None
    """Report of online mapping; None without it."""
    source_lost: bool = False
    """Whether a live source broke off and did not return."""
    verdict: dict[str, str] | None = None
    """See `stream_recon.app.result.verdict`; None before the end of the run."""

    @property
    def fps(self) -> float:
        """Mean number of frames reconstructed per second."""
        return self.frames_reconstructed / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class FileRevisions:
    """Number of revisions applied to each file; equal numbers mean consistent files.

    The number of ``cameras.json`` is raised before the file changes, the others after their files have changed. So the
    numbers differ after a kill between. Points less than half a voxel from their final position count as revised.
    """

    cameras: int = 0
    trajectory: int = 0
    points: int = 0


def now_text() -> str:
    """The current time as ISO 8601 text in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def program_version() -> str:
    try:
        return version(PROGRAM)
    except PackageNotFoundError:  # run from a checkout
        return "not installed"


def evidence_record(summary: RunSummary) -> dict[str, Any]:
    """The entries of ``run.json`` from which a result is judged."""
    return {
        "interrupted": summary.interrupted,
        "source_lost": summary.source_lost,
        "submaps": summary.submaps,
        "focal_change": summary.focal_change,
        "frames": {
            "read": summary.frames_read,
            "reconstructed": summary.frames_reconstructed,
            "keyframes": summary.keyframes,
            "dropped": summary.frames_dropped,
            "damaged": summary.frames_damaged,
            "blank": summary.blank_frames,
        },
        "segments": list(summary.segments),
        "health": summary.health,
        ONLINE: summary.stream,
    }


def run_record(
    info: RunInfo, summary: RunSummary, revisions: FileRevisions | None = None, without_depth: int = 0
) -> dict[str, Any]:
    """The content of ``run.json``. ``without_depth``: number of frames whose depth file was not kept."""
    evidence = evidence_record(summary)
    return {
        "program": PROGRAM,
        "version": program_version(),
        "source": info.source,
        "started": info.started.isoformat(timespec="seconds"),
        **evidence,
        "weights_sha256": info.weights_sha256,
        "device": info.device,
        "precision": info.precision,
        "cache": info.cache,
        "cache_use": summary.cache_use,
        "attention": summary.attention,
        "network_focal": summary.network_focal,
        "unordered": summary.unordered,
        "reference_frames": list(summary.reference_frames),
        "options": info.options,
        "frames": {**evidence["frames"], "without_depth": without_depth},
        "timings": {
            "seconds": round(summary.seconds, 3),
            "fps": round(summary.fps, 3),
            "latency_ms": {"p50": summary.latency_p50_ms, "p95": summary.latency_p95_ms},
        },
        "peak_memory_mb": {"host": summary.peak_host_memory_mb, "device": summary.peak_device_memory_mb},
        "revisions": dataclasses.asdict(revisions or FileRevisions()),
        "resumed": list(summary.resumed),
        VERDICT: summary.verdict,
        "warnings": list(summary.warnings),
        "preset": dataclasses.asdict(info.preset),
    }


def section(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object of that name in a ``run.json``; empty where there is none."""
    found = record.get(name)
    return found if isinstance(found, dict) else {}
