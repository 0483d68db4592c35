"""``summary.json`` and ``summary.csv``: state of each scene and mean metrics; and comparison of two summaries."""

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from stream_recon.app.batch.jobs import ModelIdentity, Seconds
from stream_recon.app.batch.manifest import checked_result
from stream_recon.app.batch.plan import Batch
from stream_recon.app.batch.store import Store
from stream_recon.app.core.input_file import parse_json, read_file
from stream_recon.app.evaluation.evaluator import LENGTHS, PROTOCOL
from stream_recon.app.evaluation.metrics import METRIC_NAMES
from stream_recon.app.result.run_record import PROGRAM, program_version
from stream_recon.app.result.verdict import LEVELS, Verdict, recorded_verdict
from stream_recon.configs.errors import InputError, OutputError

SUMMARY_NAME = "summary.json"
CSV_NAME = "summary.csv"
SUMMARY_MARKS = {
    SUMMARY_NAME: (b'"program"', PROGRAM.encode()),
    CSV_NAME: (b"name,dataset,path,status",),
    "index.html": (PROGRAM.encode(),),
}
"""Words by which the files of a batch in OUT are known as its own."""
CSV_COLUMNS = ("frames", "keyframes", "damaged", "seconds", "fps", "metric")
"""Columns of the CSV about a finished scene, before its metrics."""
SHOWN = {
    "ate_m": ("ATE", 4),
    "ate_over_path": ("ATE/path", 4),
    "rpe_trans_m": ("RPE trans", 4),
    "rpe_rot_deg": ("RPE rot °", 3),
    "auc_3": ("AUC@3", 3),
    "auc_5": ("AUC@5", 3),
    "auc_15": ("AUC@15", 3),
    "auc_30": ("AUC@30", 3),
    "absrel": ("AbsRel", 3),
    "delta1": ("δ<1.25", 3),
    "fov_error_deg": ("FoV °", 2),
    "accuracy_m": ("Acc m", 3),
    "completeness_m": ("Comp m", 3),
    "f1": ("F1@0.05", 3),
}
"""Heading and decimals of the metrics in tables for people."""
COMPARED = ("ate_m", "ate_over_path", "rpe_trans_m", "rpe_rot_deg", "auc_30", "absrel", "delta1", "f1")
"""Metrics per scene in the comparison: one or two of each kind, since each cell holds two values."""


@dataclass(frozen=True)
class Row:
    """State of one scene."""

    name: str
    """Name of its result folder in OUT."""
    dataset: str
    path: str
    """Path relative to the root."""
    status: Literal["not run", "done", "failed"] = "not run"
    resumed: bool = False
    """It was finished by an earlier batch."""
    reason: str = ""
    """Why it failed, or why an earlier result does not count."""
    result: dict[str, Any] | None = None
    """Record in its manifest."""

    @property
    def verdict(self) -> Verdict | None:
        """Judgement of its result; None without a result, or for one of an earlier version."""
        return recorded_verdict(self.result or {})

    @property
    def figures(self) -> dict[str, float | None]:
        """Metrics by name, see `Metrics`; empty without ground truth."""
        return (self.result or {}).get("figures") or {}

    def to_json(self) -> dict[str, Any]:
        """Entry in the summary: all but the plot, which is for the page."""
        result = {key: value for key, value in (self.result or {}).items() if key != "plot"}
        if result:
            result["fps"] = round(result["frames"] / result["seconds"], 3) if result["seconds"] > 0 else None
        scene = {"name": self.name, "dataset": self.dataset, "path": self.path, "status": self.status}
        return {**scene, "resumed": self.resumed, "reason": self.reason, **result}


@dataclass(frozen=True)
class Totals:
    """Counts over all scenes. Frames and times are of this batch alone, without scenes that it found finished."""

    done: int = 0
    resumed: int = 0
    """Done scenes that an earlier batch had finished."""
    failed: int = 0
    not_run: int = 0
    frames: int = 0
    seconds: float = 0.0
    scenes_per_hour: float | None = None
    phases: Seconds = field(default_factory=dict)
    """Seconds by stage."""
    verdicts: dict[str, int] = field(default_factory=dict)
    """Number of done scenes by verdict; all counts, also where no scene has a verdict."""

    @classmethod
    def from_rows(cls, rows: Sequence[Row], phases: Seconds) -> "Totals":
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
            verdicts={level: sum(bool(row.verdict and row.verdict.level == level) for row in rows) for level in LEVELS},
        )


def counts(name: str, result: Mapping[str, Any]) -> bool:
    """Whether a scene's metric enters the mean: it is known, and no length in a unit other than metres."""
    known = (result.get("figures") or {}).get(name) is not None
    return known and (name not in LENGTHS or bool(result.get("metric")))


def means(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Mean of each metric over the scenes that have it, all of equal weight, and the number of these scenes."""
    rows = list(rows)
    values = {name: [row.figures[name] for row in rows if counts(name, row.result or {})] for name in METRIC_NAMES}
    return {
        name: {"mean": float(np.mean(np.array(known, np.float64))), "scenes": len(known)}
        for name, known in values.items()
        if known
    }


def summary_record(
    batch: Batch, model: ModelIdentity, rows: Sequence[Row], totals: Totals, *, interrupted: bool
) -> dict[str, Any]:
    """Content of ``summary.json``."""
    datasets = dict.fromkeys(row.dataset for row in rows)
    return {
        "program": PROGRAM,
        "version": program_version(),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "root": str(batch.root),
        "interrupted": interrupted,
        "weights_sha256": model.weights_sha256,
        "preset": model.preset_tables,
        "options": batch.recorded,
        "protocol": PROTOCOL,
        "totals": {"scenes": len(rows), **dataclasses.asdict(totals)},
        "means": means(rows),
        "means_by_dataset": {name: means([row for row in rows if row.dataset == name]) for name in datasets},
        "scenes": [row.to_json() for row in rows],
    }


def write_summary(batch: Batch, record: dict[str, Any]) -> None:
    """Write both files, each atomically. Raises OutputError."""
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    batch.store.write(SUMMARY_NAME, text.encode(errors="backslashreplace"))
    batch.store.write(CSV_NAME, csv_text(record["scenes"]).encode(errors="backslashreplace"))


def csv_text(scenes: Sequence[dict[str, Any]]) -> str:
    """One line per scene: identity, state and metrics, empty where unknown."""
    plain = ["name", "dataset", "path", "status", "reason", *CSV_COLUMNS]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*plain, *METRIC_NAMES])
    for scene in scenes:
        figures = scene.get("figures") or {}
        writer.writerow([*(_cell_text(scene.get(n)) for n in plain), *(figures.get(name) for name in METRIC_NAMES)])
    return text.getvalue()


def _cell_text(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def check_summary_files(store: Store) -> None:
    """Raises OutputError where a file of the user, or of a version that is not read, has the name of the batch's."""
    for name, mark in SUMMARY_MARKS.items():
        content = store.read(name)
        if content and not all(word in content for word in mark):
            raise OutputError(f"{store.location(name)} was not written by {PROGRAM}: move it, or choose another -o")
        if content and name == SUMMARY_NAME:
            with suppress(ValueError):  # a damaged one is written anew
                _check_version(parse_json(content), store.location(name))


def _check_version(record: Any, location: str) -> None:
    """Raises OutputError for a summary of version 0.1, of which nothing is read."""
    version = str(record.get("version")) if isinstance(record, dict) else ""
    if version.startswith("0.1."):
        text = f"{location} was written by {PROGRAM} {version}, whose batches are not read"
        raise OutputError(f"{text}: run it again in another folder")


def read_summary(path: Path) -> dict[str, Any]:
    """Content of a ``summary.json``. Raises InputError, OutputError."""
    try:
        record = parse_json(read_file(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read as a summary.json: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"{path} cannot be read as a summary.json: {error}") from error
    required = {"program", "scenes", "means", "weights_sha256", "preset", "options", "protocol"}
    if not isinstance(record, dict) or not required <= set(record) or record["program"] != PROGRAM:
        raise InputError(f"{path} is not a summary.json of {PROGRAM} batch")
    _check_version(record, str(path))
    try:
        scenes = [checked_result(scene) for scene in record["scenes"]]
        if not isinstance(record["options"], dict) or not all(isinstance(s.get("path"), str) for s in scenes):
            raise ValueError("options or a path")
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return {**record, "scenes": scenes}


ScenePair = tuple[Mapping[str, Any], Mapping[str, Any]]
"""Entries of one scene in two summaries."""


def comparison(ours: Mapping[str, Any], other: Mapping[str, Any]) -> Table:
    """Table of both summaries' metrics per scene, for scenes of one path with metrics in both."""
    pairs = _pairs(ours, other)
    shown = [name for name in COMPARED if any(_both(pair, name) for pair in pairs)]
    table = Table(title=f"this batch | the other: {len(pairs)} scenes in both", title_justify="left")
    table.add_column("scene", overflow="fold")
    for name in shown:
        # In a narrow terminal the two values stand one below the other.
        table.add_column(SHOWN[name][0], justify="right", overflow="fold")
    for pair in pairs:
        table.add_row(pair[0]["name"], *(_cell(_both(pair, name), SHOWN[name][1]) for name in shown))
    return table


def compared_means(ours: Mapping[str, Any], other: Mapping[str, Any]) -> Table:
    """Table of both means per metric, over the scenes that have the metric in both, and their number."""
    pairs = _pairs(ours, other)
    table = Table("mean", "this batch", "the other", "scenes")
    for name, (heading, decimals) in SHOWN.items():
        known = [both for pair in pairs if counts(name, pair[0]) and (both := _both(pair, name)) is not None]
        if known:
            mine, theirs = (sum(side) / len(known) for side in zip(*known, strict=True))
            table.add_row(heading, f"{mine:.{decimals}f}", f"{theirs:.{decimals}f}", str(len(known)))
    return table


def differences(ours: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Notes on how the two batches differ in weights, preset, protocol and options, a line each."""
    words = {"weights_sha256": "weights", "preset": "presets", "protocol": "protocols"}
    lines = [f"the {word} differ" for name, word in words.items() if ours[name] != other[name]]
    for name in sorted(set(ours["options"]) | set(other["options"])):
        values = [options.get(name) for options in (ours["options"], other["options"])]
        if values[0] != values[1]:
            mine, theirs = ("not given" if value is None else value for value in values)
            lines.append(f"--{name.replace('_', '-')} was {mine} here and {theirs} there")
    return lines


def _pairs(ours: Mapping[str, Any], other: Mapping[str, Any]) -> list[ScenePair]:
    theirs = {scene["path"]: scene for scene in other["scenes"]}
    return [
        (scene, theirs[scene["path"]])
        for scene in ours["scenes"]
        if scene.get("figures") and theirs.get(scene["path"], {}).get("figures")
    ]


def _both(pair: ScenePair, name: str) -> tuple[float, float] | None:
    mine, theirs = (scene["figures"].get(name) for scene in pair)
    return None if mine is None or theirs is None else (mine, theirs)


def _cell(both: tuple[float, float] | None, decimals: int) -> str:
    return "-" if both is None else f"{both[0]:.{decimals}f} | {both[1]:.{decimals}f}"
