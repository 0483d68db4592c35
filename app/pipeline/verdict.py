"""Judgement of a result from all evidence in its ``run.json``: good, doubtful or failed, why, and what to do.

Evidence that nothing was fitted to counts most: held-out matches and the agreement of depth. Limits were set on one
half of a set of results of known error and checked on the other half; see ``scripts/bench verdicts``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_run
from stream_recon.app.result.run_record import REFINEMENT, RUN_NAME, VERDICT

Level = Literal["good", "doubtful", "failed"]
DENSE = "dense"
"""Key of the report of dense depth."""
LEVELS: tuple[Level, ...] = ("good", "doubtful", "failed")

FOCAL_PARTS = 6
"""Parts of a video whose focal lengths are compared."""
CONTRADICTED = (0.3, 0.55)
"""Shares of the image that held-out matches contradict, from which a result is doubtful, and failed."""
DEPTH_DISAGREES = (0.15, 0.5)
"""Shares of the image on whose depth neighbouring keyframes disagree, from which a result is doubtful, and failed."""
DEPTH_ERROR = 0.08
"""Median log error of the network's depth at triangulated points from which the camera model is doubtful."""
FOCAL_CHANGE = 1.15
"""Ratio of the largest to the smallest focal length from which the lens has zoomed."""
UNREFINED = 0.02
"""Share of the frames that refinement left to the network, from which a result is doubtful."""
PARTS_LOST = 0.1
"""Share of frames that were damaged, dropped or blank, from which a result is doubtful."""
INCONSISTENT = (0.15, 0.5)
"""Shares of frames of low tracking quality from which a result is doubtful, and failed."""
CONFIRMED = 0.04
"""Share of the pixels that stereo confirms, below which surfaces are doubtful."""
FEW_KEYFRAMES = 3
"""Fewest keyframes that can be checked."""

OVERLAP = "Film with more overlap: move more slowly, in smaller turns, with the same things in view for longer"
TEXTURE = "Keep edges and patterns in view, in good light"


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


def focal_change(focals: NDArray[np.floating]) -> float | None:
    """Ratio of the largest to the smallest focal length over `FOCAL_PARTS` parts of a video; None with few frames.

    ``focals`` [N] are the network's for each frame, in any unit. A part has its median, since single frames scatter.
    """
    if len(focals) < FOCAL_PARTS:
        return None
    medians = [float(np.median(part)) for part in np.array_split(focals, FOCAL_PARTS)]
    return max(medians) / min(medians) if min(medians) > 0 else None


def recorded_verdict(record: Mapping[str, Any]) -> Verdict | None:
    """The verdict in a ``run.json`` or in the record of a batch's scene; None where it is missing or damaged."""
    entry = record.get(VERDICT)
    if not isinstance(entry, dict) or entry.get("level") not in LEVELS:
        return None
    return Verdict(entry["level"], str(entry.get("reason", "")), str(entry.get("advice", "")))


def record_verdict(folder: Path) -> Verdict:
    """Judge a result folder, whose lock the caller holds, and keep the verdict in ``run.json``. Raises OutputError."""
    record = read_run(folder)
    verdict = judge(record)
    if record.get(VERDICT) != verdict.to_json():
        replace_json(folder / RUN_NAME, {**record, VERDICT: verdict.to_json()})
    return verdict


def judge(record: Mapping[str, Any]) -> Verdict:
    """Verdict on a result by its ``run.json``; entries that are missing or damaged are no evidence.

    The worst finding decides; of several equally bad ones, the first.
    """
    evidence = _Evidence(record)
    found = [*evidence.losses(), *evidence.refinement(), *evidence.consistency()]
    if not found:
        return Verdict("good", evidence.praise)
    return max(found, key=lambda verdict: LEVELS.index(verdict.level))


class _Evidence:
    """Evidence in a ``run.json``; each method yields what speaks against the result."""

    def __init__(self, record: Mapping[str, Any]) -> None:
        self._record = record
        self._refinement = _table(record, REFINEMENT)
        self._frames = _number(_table(record, "frames"), "reconstructed") or 0.0
        segments = self._refinement.get("fallback_segments")
        self._left = min(sum(_length(each) for each in segments) if isinstance(segments, list) else 0, self._frames)
        self._rejected = bool(self._refinement) and self._refinement.get("reprojection_px") is None

    @property
    def praise(self) -> str:
        """Why a result is good."""
        return f"{self._frames:.0f} of {self._frames:.0f} frames were confirmed by matches kept aside"

    def losses(self) -> Iterator[Verdict]:
        """Frames that are not there, and parts whose place is a guess."""
        counts = _table(self._record, "frames")
        if not self._frames:
            yield Verdict("failed", "no frame was reconstructed", "Look whether the video can be played")
            return
        lost = {name: _number(counts, name) or 0.0 for name in ("blank", "damaged", "dropped")}
        words = {"blank": "black or covered", "damaged": "damaged", "dropped": "dropped"}
        name = max(lost, key=lambda key: lost[key])
        # A live source drops frames by design; the rest still overlaps, or matches tell.
        seen = self._frames + lost["blank"] + lost["damaged"]
        if name != "dropped" and lost[name] >= PARTS_LOST * seen:
            yield Verdict(
                "doubtful", f"{lost[name]:.0f} of {seen:.0f} frames are {words[name]}", "Film again without the gap"
            )
        parts = _number(self._refinement, "segments") if self._refinement else None
        if parts is None:
            breaks = self._record.get("segments")
            parts = 1 + len(breaks) if isinstance(breaks, list) else 1
        if parts > 1:
            yield Verdict(
                "doubtful",
                f"it has {parts:.0f} parts that nothing connects: where they lie relative to each other is a guess",
                "Film without cuts, or show the same place before and after",
            )

    def refinement(self) -> Iterator[Verdict]:
        """What matches say that nothing was fitted to."""
        if not self._refinement:
            stopped = self._record.get("interrupted") is True
            yield Verdict(
                "doubtful",
                "the run was stopped: nothing has checked its path"
                if stopped
                else "not refined: nothing has checked its path",
                "Continue it with --resume" if stopped else "'stream-recon refine' checks and refines it",
            )
            return
        contradicted = _number(self._refinement, "disagreement_before" if self._rejected else "disagreement")
        if (_number(self._refinement, "keyframes") or 0) < FEW_KEYFRAMES or contradicted is None:
            yield Verdict("doubtful", f"too few matches to check {self._frames:.0f} frames", OVERLAP)
        elif contradicted >= CONTRADICTED[0]:
            level: Level = "failed" if contradicted >= CONTRADICTED[1] else "doubtful"
            yield Verdict(level, f"matches contradict it on {contradicted:.0%} of the image", f"{OVERLAP}. {TEXTURE}")
        if self._left >= UNREFINED * self._frames:
            yield Verdict("doubtful", f"{self._left:.0f} of {self._frames:.0f} frames could not be confirmed", OVERLAP)
        agreement = _number(self._refinement, "depth_agreement_before" if self._rejected else "depth_agreement")
        if agreement is not None and 1 - agreement >= DEPTH_DISAGREES[0]:
            level = "failed" if 1 - agreement >= DEPTH_DISAGREES[1] else "doubtful"
            yield Verdict(level, f"depth of neighbouring frames disagrees on {1 - agreement:.0%} of the image", OVERLAP)
        error = _number(self._refinement, "depth_error_before")
        if error is not None and error >= DEPTH_ERROR:
            yield Verdict(
                "doubtful",
                f"depth and matches differ by {error:.0%}, as with a wrong aspect ratio or a lens that bends lines",
                "Use the video as the camera wrote it, or give the camera with --intrinsics",
            )

    def consistency(self) -> Iterator[Verdict]:
        """What each frame says about the one before, and the lens."""
        change = _number(self._record, "focal_change")
        if change is not None and change >= FOCAL_CHANGE:
            yield Verdict("doubtful", f"the lens seems to have zoomed by {change - 1:.0%}", "Film without zoom")
        low = (_number(_table(self._record, "health"), "weak_frames") or 0.0) / max(self._frames, 1.0)
        if low >= INCONSISTENT[0]:
            yield Verdict(
                "failed" if low >= INCONSISTENT[1] else "doubtful",
                f"{low:.0%} of the frames do not fit the frame before",
                OVERLAP,
            )
        confirmed = _number(_table(self._record, DENSE), "confirmed")
        if confirmed is not None and confirmed < CONFIRMED:
            yield Verdict("doubtful", f"stereo confirms only {confirmed:.0%} of the surfaces", TEXTURE)


def _table(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, dict) else {}


def _number(table: Mapping[str, Any], name: str) -> float | None:
    """A finite number; None where it is missing or damaged."""
    value = table.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if known and value is not None else None


def _length(segment: object) -> float:
    first, last = (_number(segment, name) if isinstance(segment, dict) else None for name in ("first", "last"))
    return 0.0 if first is None or last is None else max(last - first + 1, 0.0)
