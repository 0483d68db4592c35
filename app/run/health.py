"""Tracking quality ("health" in files) without ground truth: consistency of each frame with the previous one.

A frame's points, transformed into the previous frame, should fall on pixels of similar brightness and depth. Where
that fails for several frames in a row, pose or depth is wrong, however high the network's confidence is.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import UNSURE
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import FrameResult
from stream_recon.app.run.pictures import PictureCheck


@dataclass(frozen=True)
class HealthConfig:
    """How frames are compared, and from when tracking quality is low."""

    columns: int = 56
    """Columns of the grid of compared points."""
    same_depth: float = 0.1
    """Largest relative difference of depth at which two frames see the same surface."""
    min_overlap: float = 0.3
    """Share of a frame's points visible in the previous frame; with less, their agreement means little."""
    typical_frames: int = 50
    """Latest frames whose median confidence is the reference."""
    window: int = 5
    """Frames over which health is averaged: one blurred frame is no warning."""
    low: float = 0.25
    """Mean health below which an interval of low quality begins."""
    recovered: float = 0.4
    """Mean health above which it ends."""
    max_intervals: int = 100
    """Latest intervals that are kept, since a run may have no end."""


DEFAULT_HEALTH = HealthConfig()


@dataclass(frozen=True)
class LowQualityInterval:
    """Consecutive frames of low tracking quality; times in seconds of the source."""

    first: int
    last: int
    begin: float
    end: float
    frames: int
    why: str


@dataclass(frozen=True)
class _ReducedFrame:
    """Frame reduced to the grid of compared points."""

    result: FrameResult
    grey: NDArray[np.float32]
    depth: NDArray[np.float32]


@dataclass(frozen=True)
class _Factors:
    """Three factors in 0 to 1; health is their product."""

    agreement: float
    """Agreement of brightness and depth with the previous frame."""
    in_view: float
    """Share of the points visible in the previous frame, up to `HealthConfig.min_overlap`, over it."""
    confident: float
    """Share of the pixels of usual confidence."""

    @property
    def health(self) -> float:
        return self.agreement * self.in_view * self.confident

    @property
    def why(self) -> str:
        low = min(self.agreement, self.in_view, self.confident)
        if low == self.confident:
            return "almost all depth has low confidence"
        if low == self.in_view:
            return "the view changes too fast"
        return "consecutive frames are inconsistent"


class HealthMonitor:
    """Health of each result, in order, with its final online pose. `notice` may be read by other threads."""

    def __init__(
        self,
        intervals: Iterable[LowQualityInterval] = (),
        pictures: Iterable[object] = (),
        config: HealthConfig = DEFAULT_HEALTH,
    ) -> None:
        """``intervals``, ``pictures``: recorded of the runs that this one continues or joins."""
        self._config = config
        self._intervals = deque(intervals, maxlen=self._config.max_intervals)
        self._low_frames = sum(interval.frames for interval in self._intervals)
        self._previous: _ReducedFrame | None = None
        self._typical: deque[float] = deque(maxlen=self._config.typical_frames)
        self._recent: deque[tuple[FrameResult, _Factors]] = deque(maxlen=self._config.window)
        self._is_low = False
        self._pictures = PictureCheck()
        for summary in pictures:
            self._pictures.add(summary)

    @property
    def notice(self) -> str | None:
        """Since when and why tracking quality is low, if it is."""
        interval = self._intervals[-1] if self._is_low else None
        return None if interval is None else f"low tracking quality since {clock(interval.begin)}: {interval.why}"

    def judge(self, result: FrameResult) -> float | None:
        """Health of a frame, 0 (inconsistent) to 1; None for the first frame of a segment, which has no predecessor."""
        if self._previous is not None and self._previous.result.segment != result.segment:
            self._previous, self._is_low = None, False
            self._recent.clear()
        self._pictures.count(result.rgb, not result.masked.any())
        previous, self._previous = self._previous, _reduced(result, self._config)
        confidence = result.confidence[~result.masked]
        self._typical.append(float(np.median(confidence)) if len(confidence) else 0.0)
        if previous is None or previous.depth.shape != self._previous.depth.shape:
            return None
        confident = float((confidence >= UNSURE * median(self._typical)).mean()) if len(confidence) else 0.0
        factors = _Factors(*_agreement(previous, self._previous, self._config), confident)
        health = round(factors.health, 3)
        self._note(result, factors)
        return health

    def summary(self) -> dict[str, Any]:
        """The object ``health`` of ``run.json``.

        It has no mean: how well consecutive frames agree depends on the scene's texture more than on the errors of a
        path, which drifts or bends while they agree.
        """
        weak = [asdict(interval) for interval in list(self._intervals)]
        return {"weak_frames": self._low_frames, "weak": weak, "pictures": self._pictures.summary()}

    def _note(self, result: FrameResult, factors: _Factors) -> None:
        self._recent.append((result, factors))
        mean = sum(factors.health for _, factors in self._recent) / len(self._recent)
        if self._is_low:
            interval = self._intervals.pop()
            interval = replace(interval, last=result.index, end=result.timestamp, frames=interval.frames + 1)
            self._low_frames += 1
            self._intervals.append(interval)
            self._is_low = mean < self._config.recovered
        elif mean < self._config.low and len(self._recent) == self._config.window:
            low = [entry for entry in self._recent if entry[1].health < self._config.recovered]
            first, why = low[0][0], min(low, key=lambda entry: entry[1].health)[1].why
            self._intervals.append(
                LowQualityInterval(first.index, result.index, first.timestamp, result.timestamp, len(low), why)
            )
            self._low_frames += len(low)
            self._is_low = True


def recorded_pictures(run: Mapping[str, Any]) -> object:
    """The counts of pictures in a ``run.json``."""
    health = run.get("health")
    return health.get("pictures") if isinstance(health, dict) else None


def low_quality_intervals(record: Mapping[str, Any]) -> list[LowQualityInterval]:
    """The intervals in the object ``health`` of a ``run.json``; none where it is damaged."""
    try:
        intervals = [LowQualityInterval(**entry) for entry in record["weak"]]
        return [each for each in intervals if np.isfinite([each.begin, each.end, each.frames]).all()]
    except (KeyError, TypeError, ValueError):
        return []


def clock(seconds: float) -> str:
    """Time as ``0:41`` or ``1:02:03``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _cell(width: int, config: HealthConfig) -> int:
    return max(1, round(width / config.columns))


def _reduced(result: FrameResult, config: HealthConfig) -> _ReducedFrame:
    height, width = result.depth.shape
    cell = _cell(width, config)
    size = (max(1, width // cell), max(1, height // cell))
    grey = cv2.resize(cv2.cvtColor(result.rgb, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA)
    depth = np.ascontiguousarray(result.depth[cell // 2 :: cell, cell // 2 :: cell][: size[1], : size[0]])
    return _ReducedFrame(result, grey.astype(np.float32), depth)


def _agreement(previous: _ReducedFrame, now: _ReducedFrame, config: HealthConfig) -> tuple[float, float]:
    """Agreement of a frame with the previous one, and `_Factors.in_view`."""
    T = invert_pose(previous.result.T_world_camera) @ now.result.T_world_camera
    if not np.isfinite(T).all():
        return 0.0, 1.0
    cell = _cell(now.result.depth.shape[1], config)
    height, width = now.depth.shape
    k, k_previous = now.result.network_intrinsics, previous.result.network_intrinsics
    R, t = T[:3, :3].astype(np.float32), T[:3, 3].astype(np.float32)
    x = ((np.arange(width, dtype=np.float32) + 0.5) * cell - k.cx) / k.fx
    y = ((np.arange(height, dtype=np.float32) + 0.5) * cell - k.cy) / k.fy
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        # [3, h, w]: rays along x and y, scaled by depth and moved.
        moved = (
            R[:, 0, None, None] * x[None, None] + R[:, 1, None, None] * y[None, :, None] + R[:, 2, None, None]
        ) * now.depth + t[:, None, None]
        u = (moved[0] / moved[2] * np.float32(k_previous.fx) + np.float32(k_previous.cx)) / cell - 0.5
        v = (moved[1] / moved[2] * np.float32(k_previous.fy) + np.float32(k_previous.cy)) / cell - 0.5
        usable = (now.depth > 0) & (moved[2] > 0)
        in_image = usable & (u >= 0) & (u <= width - 1) & (v >= 0) & (v <= height - 1)
    in_view = float(in_image.sum() / max(1, usable.sum()))
    u, v = (np.where(in_image, pixel, np.float32(0)).astype(np.float32) for pixel in (u, v))
    brightness = cv2.remap(previous.grey, u, v, cv2.INTER_LINEAR)[in_image]
    surface = cv2.remap(previous.depth, u, v, cv2.INTER_NEAREST)[in_image]
    if not len(brightness):
        return 0.0, 0.0
    known = surface > 0  # pixels masked in the previous frame have no depth
    same = (
        np.abs(moved[2][in_image][known] / surface[known] - 1) < config.same_depth if known.any() else np.ones(1, bool)
    )
    # A geometric mean: one factor cannot hide that the other is zero.
    agreement = (max(0.0, _correlation(now.grey[in_image], brightness)) * float(same.mean())) ** 0.5
    return agreement, min(1.0, in_view / config.min_overlap)


def _correlation(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Correlation of brightness; 1 where neither image has contrast, since nothing can disagree."""
    a, b = a - a.mean(), b - b.mean()
    norms = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norms if norms > len(a) else 1.0
