"""``summary.json`` and ``summary.csv``: what became of each scene, and the means over those with truth.

Two summaries side by side.
"""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from stream_recon.app.batch.jobs import Model, Seconds
from stream_recon.app.batch.plan import Batch
from stream_recon.app.evaluation.evaluator import LENGTHS, PROTOCOL
from stream_recon.app.evaluation.metrics import METRIC_NAMES
from stream_recon.app.result.run_record import PROGRAM, program_version

SUMMARY_NAME = "summary.json"
CSV_NAME = "summary.csv"
RECORDED = ("frames", "keyframes", "damaged", "seconds", "fps", "metric")
"""Besides the figures, what the CSV repeats of a finished scene."""


@dataclass(frozen=True)
class Row:
    """One scene."""

    name: str
    """Its result folder within OUT."""
    dataset: str
    path: str
    """Relative to the root."""
    expected_frames: int | None
    status: Literal["not run", "done", "failed"] = "not run"
    resumed: bool = False
    """It was finished by an earlier batch."""
    reason: str = ""
    """Why it failed, or why an earlier result did not count."""
    result: dict[str, Any] | None = None
    """What its manifest records."""

    @property
    def figures(self) -> dict[str, float | None]:
        """See `Metrics`; empty without ground truth."""
        return (self.result or {}).get("figures") or {}

    def to_json(self) -> dict[str, Any]:
        """For the summary: without the plot, which is for the page."""
        result = {key: value for key, value in (self.result or {}).items() if key != "plot"}
        if result:
            result["fps"] = round(result["frames"] / result["seconds"], 3) if result["seconds"] > 0 else None
        own = {"name": self.name, "dataset": self.dataset, "path": self.path, "status": self.status}
        return {**own, "resumed": self.resumed, "reason": self.reason, **result}


@dataclass(frozen=True)
class Totals:
    """Counts over all scenes. Times are of this batch alone, not of what it found finished."""

    done: int = 0
    resumed: int = 0
    """Of the done ones, those finished by an earlier batch."""
    failed: int = 0
    not_run: int = 0
    frames: int = 0
    """Reconstructed in this batch."""
    seconds: float = 0.0
    scenes_per_hour: float | None = None
    phases: Seconds = field(default_factory=dict)
    """What the seconds went into, one after the other."""

    @classmethod
    def of(cls, rows: Sequence[Row], phases: Seconds) -> "Totals":
        seconds = sum(phases.values())
        new = [row for row in rows if row.status == "done" and not row.resumed]
        return cls(
            done=sum(row.status == "done" for row in rows),
            resumed=sum(row.resumed for row in rows),
            failed=sum(row.status == "failed" for row in rows),
            not_run=sum(row.status == "not run" for row in rows),
            frames=sum(row.result["frames"] for row in new if row.result),
            seconds=round(seconds, 3),
            scenes_per_hour=round(3600 * len(new) / seconds, 2) if new and seconds > 0 else None,
            phases=phases,
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def counts(name: str, result: Mapping[str, Any]) -> bool:
    """Whether a scene's figure is known and goes into a mean."""
    known = (result.get("figures") or {}).get(name) is not None
    return known and (name not in LENGTHS or bool(result.get("metric")))


def means(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """For each figure that some scene has: its mean and over how many scenes. Each scene counts the same."""
    rows = list(rows)
    values = {name: [row.figures[name] for row in rows if counts(name, row.result or {})] for name in METRIC_NAMES}
    return {
        name: {"mean": float(np.mean(np.array(known, np.float64))), "scenes": len(known)}
        for name, known in values.items()
        if known
    }


def summary_record(
    batch: Batch, model: Model, rows: Sequence[Row], totals: Totals, *, interrupted: bool
) -> dict[str, Any]:
    """The content of ``summary.json``."""
    datasets = dict.fromkeys(row.dataset for row in rows)
    return {
        "program": PROGRAM,
        "version": program_version(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "root": str(batch.root),
        "interrupted": interrupted,
        "weights_sha256": model.weights_sha256,
        "preset": model.preset_tables,
        "options": batch.options,
        "protocol": PROTOCOL,
        "totals": {"scenes": len(rows), **totals.to_json()},
        "means": means(rows),
        "means_by_dataset": {name: means([row for row in rows if row.dataset == name]) for name in datasets},
        "scenes": [row.to_json() for row in rows],
    }


def write_summary(batch: Batch, record: dict[str, Any]) -> None:
    """Write both files; readers see the old or the new ones. Raises OutputError."""
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    batch.store.write(SUMMARY_NAME, text.encode(errors="backslashreplace"))
    batch.store.write(CSV_NAME, csv_text(record["scenes"]).encode(errors="backslashreplace"))


def csv_text(scenes: Sequence[dict[str, Any]]) -> str:
    """One line a scene: what it is, how it went, and the figures (empty where unknown)."""
    plain = ["name", "dataset", "path", "status", "reason", *RECORDED]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*plain, *METRIC_NAMES])
    for scene in scenes:
        figures = scene.get("figures") or {}
        writer.writerow([*(scene.get(name) for name in plain), *(figures.get(name) for name in METRIC_NAMES)])
    return text.getvalue()
