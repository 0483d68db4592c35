"""Judgement of a result from all evidence in its ``run.json``: its level, why, and what to do.

Evidence that nothing was fitted to counts most: held-out matches and the agreement of depth.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FallbackCause
from stream_recon.app.result import causes
from stream_recon.app.result.causes import Cause
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import DENSE, MESH, REFINEMENT, RUN_NAME, SPLATS, VERDICT, section
from stream_recon.app.result.verdict_config import DEFAULT_VERDICT, VerdictConfig

Level = Literal["good", "unsure", "doubtful", "failed"]
"""``unsure``: the video does not show enough to check it, and nothing speaks against it."""
LEVELS: tuple[Level, ...] = ("good", "unsure", "doubtful", "failed")


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
        """Level and explanation in one line."""
        return f"{self.level}: {self.explanation}"

    def to_json(self) -> dict[str, str]:
        """The judgement as ``run.json`` has it."""
        return asdict(self)


def focal_change(focals: NDArray[np.floating], config: VerdictConfig = DEFAULT_VERDICT) -> dict[str, float] | None:
    """How the focal length changes, for ``run.json``; None with few frames. ``focals`` [N]: the network's, in any unit.

    Returns:
        ``ratio`` of the largest to the smallest median over `focal_parts` parts of the video; ``steadiness``, the
        absolute correlation of the focal length and the number of the frame.
    """
    focals = np.asarray(focals, np.float64)
    if len(focals) < config.focal_parts or not np.isfinite(focals).all() or focals.min() <= 0:
        return None
    medians = [float(np.median(part)) for part in np.array_split(focals, config.focal_parts)]
    is_constant = float(np.ptp(focals)) < 1e-6 * medians[0]
    steadiness = 0.0 if is_constant else abs(float(np.corrcoef(np.arange(len(focals)), focals)[0, 1]))
    return {"ratio": round(max(medians) / min(medians), 4), "steadiness": round(steadiness, 4)}


def recorded_verdict(record: Mapping[str, Any]) -> Verdict | None:
    """The verdict in a ``run.json`` or in the record of a batch's scene; None where it is missing or damaged."""
    entry = record.get(VERDICT)
    if not isinstance(entry, dict) or entry.get("level") not in LEVELS:
        return None
    return Verdict(entry["level"], str(entry.get("reason", "")), str(entry.get("advice", "")))


def record_verdict(folder: Path) -> Verdict:
    """Judge a result folder, whose lock the caller holds, and keep the verdict in ``run.json``. Raises OutputError."""
    result = read_result(folder)
    verdict = judge(result.run, len(result))
    if result.run.get(VERDICT) != verdict.to_json():
        replace_json(folder / RUN_NAME, {**result.run, VERDICT: verdict.to_json()})
    return verdict


def surface_coverage(record: Mapping[str, Any]) -> float | None:
    """Share of what was filmed that the mesh covers; None where it is not known."""
    return _number(section(record, MESH), "covered")


def judge(record: Mapping[str, Any], frames: int | None = None, config: VerdictConfig = DEFAULT_VERDICT) -> Verdict:
    """Verdict on a result by its ``run.json``; entries that are missing or damaged are no evidence.

    ``frames``: number of frames in the result; None: as recorded, which is less after a kill.
    One finding makes a result doubtful, several independent ones mean that it failed. The first one is the reason.
    """
    evidence = _Evidence(record, frames, config)
    if not evidence.frames:
        return Verdict("failed", "no frame was reconstructed", "Look whether the video can be played")
    findings = [
        *evidence.refinement(),
        *evidence.geometry(),
        *evidence.changes(),
        *evidence.losses(),
        *evidence.others(),
    ]
    notes = evidence.notes()
    if not findings:
        covered = surface_coverage(record)
        surface = "" if covered is None else f"; the surface covers {covered:.0%} of what was filmed"
        return Verdict("good", f"{evidence.confirmation}{surface}{notes}")
    first = max(findings, key=lambda finding: (finding.weight, finding.cause.reason != ""))
    if all(finding.is_unsure for finding in findings):
        return Verdict("unsure", first.reason + notes, first.cause.advice + evidence.more_advice)
    reasons = dict.fromkeys([first.reason, *(finding.reason for finding in findings)])
    failed = sum(finding.weight for finding in findings) >= config.failed
    reason = "; ".join([*reasons][: config.max_reasons]) + notes
    return Verdict("failed" if failed else "doubtful", reason, first.cause.advice + evidence.more_advice)


@dataclass(frozen=True)
class _Finding:
    """What speaks against a result."""

    cause: Cause
    what: str = ""
    """What shows it; empty where the cause says it."""
    weight: int = 1
    """0: evidence that is missing, which makes no result a failed one."""
    is_unsure: bool = False
    """Nothing speaks against the result, but the video does not show enough to confirm it."""

    @property
    def reason(self) -> str:
        return ": ".join(part for part in (self.cause.reason, self.what) if part)


class _Evidence:
    """Evidence in a ``run.json``; each method yields what speaks against the result."""

    def __init__(self, record: Mapping[str, Any], frames: int | None, config: VerdictConfig) -> None:
        self._record, self._config = record, config
        self._refinement = section(record, REFINEMENT)
        self._counts = section(record, "frames")
        self._pictures = section(section(record, "health"), "pictures")
        self.frames = float(frames) if frames is not None else _count(self._counts, "reconstructed")
        segments = self._refinement.get("fallback_segments")
        self._segments = segments if isinstance(segments, list) else []
        self._rejected = bool(self._refinement) and self._refinement.get("reprojection_px") is None
        self._stray = self.left(FallbackCause.UNTIED)
        """Frames that show nothing that the others show."""
        self._few = max(1.0, config.unconfirmed * self.frames)

    def _of_kept(self, name: str) -> float | None:
        """A figure of the poses that are kept, the map's or those that it was compared with."""
        return _number(self._refinement, f"{name}_before" if self._rejected else name)

    def left(self, cause: FallbackCause | None = None) -> float:
        """Frames that refinement left as they were, all or those of a cause."""
        named = (s for s in self._segments if cause is None or (isinstance(s, dict) and s.get("cause") == cause))
        return min(sum(map(_length, named)), self.frames)

    @property
    def more_advice(self) -> str:
        """What would help besides the advice on the cause."""
        return f". {causes.LEARNED}" if self._refinement.get("learned_matches") is False else ""

    @property
    def _cause(self) -> Cause:
        """Why frames or points cannot be confirmed, by pictures, points and the camera's motion."""
        if self._is_still:
            return causes.STILL
        judged = _count(self._pictures, "judged")
        for name, cause in (("dark", causes.DARK), ("blurred", causes.BLURRED), ("bare", causes.BARE)):
            if judged and _count(self._pictures, name) >= self._config.spoilt * judged:
                return cause
        keyframes, features = (_number(self._refinement, name) for name in ("keyframes", "features"))
        if keyframes and features is not None and features < self._config.min_features * keyframes:
            return causes.BARE
        if self.left(FallbackCause.MOVING) > 0:
            return causes.MOVING
        tried, accepted = (_number(self._refinement, f"pairs_{name}") for name in ("tried", "accepted"))
        is_apart = tried and accepted is not None and accepted < self._config.overlapping * tried
        return causes.APART if is_apart else causes.UNKNOWN

    @property
    def _is_still(self) -> bool:
        judged, still = (_count(self._pictures, name) for name in ("judged", "still"))
        return judged > 1 and still >= self._config.still * (judged - 1)

    @property
    def _is_turned(self) -> bool:
        parallax = _number(self._refinement, "parallax_deg")
        return parallax is not None and parallax < self._config.turned_deg

    def refinement(self) -> Iterator[_Finding]:
        """What points say that nothing was fitted to."""
        if self._is_still:
            yield _Finding(causes.STILL, weight=self._config.failed)
        if not self._refinement:
            stopped = self._record.get("interrupted") is True
            yield _Finding(causes.STOPPED if stopped else causes.UNREFINED, "nothing has checked its path", weight=0)
            return
        # The network's depth is no evidence where its path is wrong.
        by_lines = self._of_kept("line_disagreement") if self._is_network_refuted() else None
        contradicted = self._of_kept("disagreement") if by_lines is None else by_lines
        if _count(self._refinement, "keyframes") < self._config.min_keyframes or contradicted is None:
            yield _Finding(self._cause, "too few points are seen in several frames to check the result")
            return
        if self._stray > self._few:
            yield _Finding(causes.STRAY, f"{self._stray:.0f} of {self.frames:.0f}")
        left = self.left() - self._stray
        if left > self._few and (finding := self._unconfirmed(contradicted, left)):
            yield finding
        if contradicted >= self._config.contradicted and not self._rejected:
            yield _Finding(self._cause, "points kept aside contradict it")

    @property
    def confirmation(self) -> str:
        """What confirms a good result."""
        if self.left() - self._stray > self._few:
            return f"two ways to find the path agree, to {self._path_difference:.1%} of its length"
        confirmed = f"{self.frames - self.left():.0f} of {self.frames:.0f} frames"
        return f"{confirmed} were confirmed by points kept aside to check it"

    @property
    def _path_difference(self) -> float | None:
        return _number(self._refinement, "path_difference")

    def _unconfirmed(self, contradicted: float, left: float) -> _Finding | None:
        """What frames that are not refined say of a result; None: points kept aside confirm its path all the same."""
        finding = _Finding(self._cause, f"{left:.0f} of {self.frames:.0f} frames could not be confirmed")
        if contradicted >= self._config.agrees or self.left(FallbackCause.MOVING):
            return finding
        if _count(self._refinement, "keyframes") < self._config.short:
            return _Finding(causes.SHORT, f"{self.frames:.0f} frames are too few", weight=0, is_unsure=True)
        difference = self._path_difference if self._rejected else None
        if difference is None or difference >= self._config.difference:
            return finding
        even = _Finding(causes.EVEN, "points kept aside do not show which is better", weight=0, is_unsure=True)
        return even if difference >= self._config.same else None

    def geometry(self) -> Iterator[_Finding]:
        """Depth and parallax of a refinement, and its path next to the network's."""
        agreement = self._of_kept("depth_agreement")
        if agreement is not None and 1 - agreement >= self._config.depth_disagrees:
            yield _Finding(self._cause, "neighbouring frames disagree on how far away things are")
        error, lens = _number(self._refinement, "depth_error"), self._refinement.get("lens")
        if error is not None and error >= self._config.depth_error:
            # Where the lens is known, its depth maps are the network's, which takes every lens for a plain one.
            is_known = isinstance(lens, str) and "RADIAL" in lens
            why = "the network's depth does not fit it" if is_known else "depth and points differ"
            yield _Finding(causes.DISTORTED if is_known else causes.BENT, why)
        difference = _number(self._refinement, "network_difference")
        if difference is not None and difference >= self._config.difference and not self._is_network_refuted():
            yield _Finding(causes.TURNED if self._is_turned else causes.MOVING, "two ways to find the path differ")
        parallax = _number(self._refinement, "parallax_deg")
        if parallax is not None and parallax < self._config.parallax_deg and not self._is_still:
            yield _Finding(causes.TURNED, "everything is seen from one spot")

    def changes(self) -> Iterator[_Finding]:
        """Changes of scale that overlapping depth maps show, and of the focal length."""
        jumps = None if self._rejected else self._refinement.get("scale_jumps")
        tables = [each for each in jumps if isinstance(each, dict)] if isinstance(jumps, list) else []
        values = [(_number(each, "frame"), _number(each, "factor")) for each in tables]
        valid = [(frame, factor) for frame, factor in values if frame is not None and factor]
        if valid:
            frame, factor = max(valid, key=lambda each: max(each[1], 1 / each[1]))
            what = f"its scale seems to change by a factor of {factor:.2f} at frame {frame:.0f}"
            yield _Finding(causes.UNKNOWN, what)
        # After a cut, another part may have been filmed with another lens.
        change = {} if self._record.get("segments") else section(self._record, "focal_change")
        is_large = _count(change, "ratio") >= self._config.focal_ratio
        if is_large and _count(change, "steadiness") >= self._config.focal_steadiness:
            yield _Finding(causes.ZOOMED)

    def _is_network_refuted(self) -> bool:
        """Whether matches kept aside contradict the network nearly everywhere and the refined path far less.

        A difference of both paths then says nothing against the refined one.
        """
        if self._refinement.get("decided_by_matches") is True:
            return True
        config, half = self._config, 0.5
        for kind, least, explained in (
            ("disagreement", config.refuted, half),
            ("line_disagreement", config.refuted, half),
            ("line_disagreement", config.contradicted, config.explained),
        ):
            before, after = (_number(self._refinement, f"{kind}{name}") for name in ("_before", ""))
            if before is not None and after is not None and before >= least and after <= explained * before:
                return True
        return False

    def notes(self) -> str:
        """What makes no result a doubtful one: what the images do not say of the lens, and a few frames."""
        few = {
            "show nothing that the others show: their place is a guess": self._stray,
            "could not be confirmed": self.left() - self._stray,
        }
        each = (f". {n:.0f} of {self.frames:.0f} {what}" for what, n in few.items() if 0 < n <= self._few)
        notes = "".join(each)
        unmeasured = self._refinement.get("field_of_view_measured") is False and not self._rejected
        return f"{notes}. {causes.UNKNOWN_LENS}" if unmeasured else notes

    def losses(self) -> Iterator[_Finding]:
        """Frames that are missing, and parts whose place is a guess."""
        if self._record.get("source_lost") is True:
            yield _Finding(causes.LOST)
        parts = _number(self._refinement, "segments")
        if parts is None:
            breaks = self._record.get("segments")
            parts = 1.0 + (len(breaks) if isinstance(breaks, list) else 0)
        if parts > 1:
            yield _Finding(causes.PARTS, f"where its {parts:.0f} parts lie relative to each other is a guess")
        # A live source drops frames by design. Those that are left overlap, or points tell that they do not.
        for name, word in (("blank", "black or covered"), ("damaged", "damaged")):
            lost = _count(self._counts, name)
            if lost >= self._config.lost * (self.frames + lost):
                reason = f"{lost:.0f} of {self.frames + lost:.0f} frames are {word}"
                yield _Finding(Cause(reason, "Film again without the gap"))

    def others(self) -> Iterator[_Finding]:
        """What consecutive frames and stereo say."""
        low = _number(section(self._record, "health"), "weak_frames") or 0.0
        # Of the online poses, which an accepted refinement replaces.
        if low >= self._config.inconsistent * self.frames and (self._rejected or not self._refinement):
            yield _Finding(self._cause, f"{low:.0f} of {self.frames:.0f} frames do not fit the frame before")
        dense = section(self._record, DENSE)
        # Of an earlier refinement: its maps do not count.
        is_current = dense.get("refinement") == self._refinement.get("id")
        confirmed = _number(dense, "confirmed") if is_current else None
        if confirmed is not None and confirmed < self._config.confirmed:
            cause = causes.TURNED if self._is_turned else causes.BARE
            yield _Finding(cause, "hardly any surface is confirmed by another view")
        splats = section(self._record, SPLATS)
        psnr = _number(splats, "psnr")
        revision = section(self._record, "revisions").get("cameras", 0)
        done = splats.get("steps") == splats.get("wanted_steps") and splats.get("revision") == revision
        if psnr is not None and done and psnr < self._config.splats_psnr:
            yield _Finding(causes.UNKNOWN, f"splats show images that they have not seen at {psnr:.0f} dB only")


def _number(table: Mapping[str, Any], name: str) -> float | None:
    """A finite number; None where it is missing or damaged."""
    value = table.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    return float(value) if known and value is not None else None


def _count(table: Mapping[str, Any], name: str) -> float:
    """A number of an entry; 0 where it is none."""
    return _number(table, name) or 0.0


def _length(segment: object) -> float:
    first, last, frames = (
        _number(segment, name) if isinstance(segment, dict) else None for name in ("first", "last", "frames")
    )
    if frames is not None or first is None or last is None:
        return frames or 0.0
    return max(last - first + 1, 0.0)
