"""How well tracking goes, from the results alone: each frame's against the one before, where no truth is known.

A frame's points, moved by its pose into the frame before, should fall on pixels of like brightness and like depth.
Where neither holds for some frames in a row, pose or depth is wrong, whatever the network says of its own sureness.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import UNSURE
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import FrameResult

COLUMNS = 56
"""Of the grid of points that are compared."""
LIKE = 0.1
"""Relative difference of depth up to which two frames see one surface."""
LEAST_IN_VIEW = 0.3
"""Share of a frame's points in view of the one before: with less, what agrees tells little."""
TYPICAL_OF = 50
"""Frames whose confidence tells what is usual."""
WINDOW = 5
"""Frames over which health is looked at: a single frame of blur is nothing to tell."""
WEAK, WELL = 0.25, 0.4
"""Mean health below which tracking is weak, and above which it is well again."""
MOST_SPANS = 100
"""Weak spans that are kept, the latest ones: a run may have no end."""


@dataclass(frozen=True)
class WeakInterval:
    """Frames in a row that were tracked badly; times in seconds of the source."""

    first: int
    last: int
    begin: float
    end: float
    frames: int
    why: str


@dataclass(frozen=True)
class _LastFrame:
    """What of a frame the next one is held against."""

    result: FrameResult
    grey: NDArray[np.float32]
    depth: NDArray[np.float32]


@dataclass(frozen=True)
class _Parts:
    """Each in 0 to 1; health is their product."""

    agreement: float
    """Of brightness and of depth with the frame before."""
    in_view: float
    sure: float

    @property
    def health(self) -> float:
        return self.agreement * self.in_view * self.sure

    @property
    def why(self) -> str:
        low = min(self.agreement, self.in_view, self.sure)
        if low == self.sure:
            return "hardly any depth is sure"
        if low == self.in_view:
            return "the view changes too fast"
        return "neighbouring frames do not fit one another"


class HealthWatch:
    """Asked once for each result, in order, after whatever places it. `weak` may be read by other threads."""

    def __init__(self, known: Iterable[float] = (), spans: Iterable[WeakInterval] = ()) -> None:
        """``known``, ``spans``: of a run that this one goes on with."""
        values = list(known)
        self._frames, self._total = len(values), sum(values)
        self._spans = deque(spans, maxlen=MOST_SPANS)
        self._weak_frames = sum(span.frames for span in self._spans)
        self._before: _LastFrame | None = None
        self._typical: deque[float] = deque(maxlen=TYPICAL_OF)
        self._recent: deque[tuple[FrameResult, _Parts]] = deque(maxlen=WINDOW)
        self._is_weak = False

    @property
    def weak(self) -> str | None:
        """Since when and why tracking is weak, if it is."""
        span = self._spans[-1] if self._is_weak else None
        return None if span is None else f"tracking is weak since {clock(span.begin)}: {span.why}"

    def judge(self, result: FrameResult) -> float | None:
        """Health of a frame, 0 (nothing fits) to 1; None for the first one of a stretch, which has no neighbour."""
        if self._before is not None and self._before.result.segment != result.segment:
            self._before, self._is_weak = None, False
            self._recent.clear()
        before, self._before = self._before, _seen(result)
        confidence = result.confidence[~result.masked]
        self._typical.append(float(np.median(confidence)) if len(confidence) else 0.0)
        if before is None or before.depth.shape != self._before.depth.shape:
            return None
        sure = float((confidence >= UNSURE * median(self._typical)).mean()) if len(confidence) else 0.0
        parts = _Parts(*_agreement(before, self._before), sure)
        health = round(parts.health, 3)
        self._frames += 1
        self._total += health
        self._note(result, parts)
        return health

    def summary(self) -> dict[str, Any]:
        """What ``run.json`` says of it."""
        return {
            "mean": round(self._total / self._frames, 3) if self._frames else None,
            "weak_frames": self._weak_frames,
            "weak": [asdict(span) for span in list(self._spans)],
        }

    def _note(self, result: FrameResult, parts: _Parts) -> None:
        self._recent.append((result, parts))
        mean = sum(parts.health for _, parts in self._recent) / len(self._recent)
        if self._is_weak:
            span = self._spans.pop()
            span = WeakInterval(span.first, result.index, span.begin, result.timestamp, span.frames + 1, span.why)
            self._weak_frames += 1
            self._spans.append(span)
            self._is_weak = mean < WELL
        elif mean < WEAK and len(self._recent) == WINDOW:
            low = [entry for entry in self._recent if entry[1].health < WELL]
            first, why = low[0][0], min(low, key=lambda entry: entry[1].health)[1].why
            self._spans.append(
                WeakInterval(first.index, result.index, first.timestamp, result.timestamp, len(low), why)
            )
            self._weak_frames += len(low)
            self._is_weak = True


def weak_spans(record: Mapping[str, Any]) -> list[WeakInterval]:
    """The spans that a ``run.json`` tells of; none where it is damaged."""
    try:
        spans = [WeakInterval(**span) for span in record["weak"]]
        return [span for span in spans if np.isfinite([span.begin, span.end, span.frames]).all()]
    except (KeyError, TypeError, ValueError):
        return []


def clock(seconds: float) -> str:
    """``0:41``, ``1:02:03``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _cell(width: int) -> int:
    return max(1, round(width / COLUMNS))


def _seen(result: FrameResult) -> _LastFrame:
    height, width = result.depth.shape
    cell = _cell(width)
    size = (max(1, width // cell), max(1, height // cell))
    grey = cv2.resize(cv2.cvtColor(result.rgb, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA)
    depth = np.ascontiguousarray(result.depth[cell // 2 :: cell, cell // 2 :: cell][: size[1], : size[0]])
    return _LastFrame(result, grey.astype(np.float32), depth)


def _agreement(before: _LastFrame, now: _LastFrame) -> tuple[float, float]:
    """How well a frame fits the one before, and whether enough of it is in view there; both in 0 to 1."""
    T = invert_pose(before.result.T_world_camera) @ now.result.T_world_camera
    if not np.isfinite(T).all():
        return 0.0, 1.0
    cell = _cell(now.result.depth.shape[1])
    height, width = now.depth.shape
    k, there = now.result.network_intrinsics, before.result.network_intrinsics
    R, t = T[:3, :3].astype(np.float32), T[:3, 3].astype(np.float32)
    x = ((np.arange(width, dtype=np.float32) + 0.5) * cell - k.cx) / k.fx
    y = ((np.arange(height, dtype=np.float32) + 0.5) * cell - k.cy) / k.fy
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # [3, h, w]: rays along x and y, scaled by depth and moved.
        moved = (
            R[:, 0, None, None] * x[None, None] + R[:, 1, None, None] * y[None, :, None] + R[:, 2, None, None]
        ) * now.depth + t[:, None, None]
        u = (moved[0] / moved[2] * np.float32(there.fx) + np.float32(there.cx)) / cell - 0.5
        v = (moved[1] / moved[2] * np.float32(there.fy) + np.float32(there.cy)) / cell - 0.5
        usable = (now.depth > 0) & (moved[2] > 0)
        seen = usable & (u >= 0) & (u <= width - 1) & (v >= 0) & (v <= height - 1)
    in_view = float(seen.sum() / max(1, usable.sum()))
    u, v = (np.where(seen, pixel, np.float32(0)).astype(np.float32) for pixel in (u, v))
    brightness = cv2.remap(before.grey, u, v, cv2.INTER_LINEAR)[seen]
    surface = cv2.remap(before.depth, u, v, cv2.INTER_NEAREST)[seen]
    if not len(brightness):
        return 0.0, 0.0
    known = surface > 0  # what a mask left out before says nothing
    like = np.abs(moved[2][seen][known] / surface[known] - 1) < LIKE if known.any() else np.ones(1, bool)
    # A geometric mean: the one may not hide that there is nothing of the other.
    agreement = (max(0.0, _correlation(now.grey[seen], brightness)) * float(like.mean())) ** 0.5
    return agreement, min(1.0, in_view / LEAST_IN_VIEW)


def _correlation(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """1 where neither has any contrast: there is nothing that could disagree."""
    a, b = a - a.mean(), b - b.mean()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms > len(a) else 1.0
