"""What is wrong with single pictures: dark, blurred, bare, too far from the one before; and a camera that stays."""

from collections import Counter, deque
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.result.causes import BARE, BLURRED, DARK, Cause

FAST = Cause("too fast", "Move more slowly")

Grey = NDArray[np.float32]


@dataclass(frozen=True)
class PictureConfig:
    """When a picture is called bad."""

    side: int = 256
    """Longer side to which larger pictures are reduced."""
    dark_level: float = 40.0
    """Mean brightness, of 255, below which corners are lost in noise."""
    sharp_frames: int = 60
    """Latest pictures whose sharpness is the reference."""
    blurred_fineness: float = 0.49
    """Edges at full size relative to those at half size, below which a picture is blurred for certain.

    Sharp frames of phone videos and renderings have 0.52 to 0.85, frames blurred over a sixtieth of the width 0.35 to
    0.48.
    """
    doubtful_fineness: float = 0.56
    """The same below which it may be blurred."""
    blur_ratio: float = 0.35
    """Sharpness, as a share of the reference, below which a doubtful picture is blurred."""
    bare_contrast: float = 6.0
    """Standard deviation of brightness of a reduced picture below which only a bare surface is in view."""
    fast_shift: float = 0.2
    """Shift from one picture to the next, as a share of the longer side, above which they hardly overlap."""
    min_response: float = 0.08
    """Peak of phase correlation below which a shift is a guess."""
    edge: float = 4.0
    """Brightness steps a pixel, at half the size, that count as an edge."""
    cell: int = 8
    """Side of the cells, at half the size, in which edges are counted."""
    same: float = 0.3
    """Shift of an edge in pixels, at half the size, up to which it has not moved."""
    min_edges: float = 0.1
    """Share of a cell that edges cover, where it counts."""
    min_same: float = 0.7
    """Share of a cell's edges that have not moved, where it stays."""
    min_still: float = 0.3
    """Share of the cells that stay, in three quarters of the picture, where the camera has not moved. A car's bonnet or
    a logo covers fewer quarters."""


PICTURES = PictureConfig()
COUNTED = {"dark": DARK, "blurred": BLURRED, "bare": BARE}
STILL = "still"
"""Name of the pictures in which the camera stands where it began."""
COARSE = (24, 18)
"""Size of the picture in which contrast is measured."""


class PictureCheck:
    """Judges pictures in their order."""

    def __init__(self, config: PictureConfig = PICTURES) -> None:
        self._config = config
        self._sharpness: deque[float] = deque(maxlen=config.sharp_frames)
        self._previous: Grey | None = None
        self._first: _Edges | None = None
        self._counts: Counter[str] = Counter()

    def count(self, rgb: NDArray[np.uint8], is_whole: bool = True) -> None:
        """Count a picture [H, W, 3] for the `summary`; ``is_whole``: nothing that stays is masked."""
        grey = self._reduced(rgb)
        fault = self._quality(grey)
        self._counts["judged"] += 1
        self._counts.update(name for name, cause in COUNTED.items() if cause is fault)
        if self._first is None:
            self._first = _Edges(grey, self._config)
        elif is_whole and grey.shape == self._first.shape:
            self._counts[STILL] += self._first.still_share(grey) >= self._config.min_still

    def summary(self) -> dict[str, int]:
        """Numbers of pictures: all, bad ones by kind, and those in which the camera stands where it began."""
        return {name: int(self._counts[name]) for name in ("judged", *COUNTED, STILL)}

    def add(self, summary: object) -> None:
        """Add the `summary` of another part of the video; what is none is left out."""
        for name, count in summary.items() if isinstance(summary, dict) else ():
            if name in ("judged", *COUNTED, STILL) and isinstance(count, int) and count > 0:
                self._counts[name] += count

    def fault(self, rgb: NDArray[np.uint8]) -> Cause | None:
        """What is wrong with a picture [H, W, 3] that follows the one before."""
        grey, previous = self._reduced(rgb), self._previous
        self._previous = grey
        fault = self._quality(grey)
        has_detail = fault is None or fault is BLURRED
        if has_detail and previous is not None and previous.shape == grey.shape:
            (dx, dy), response = cv2.phaseCorrelate(previous, grey, _window(grey.shape[1], grey.shape[0]))
            is_far = max(abs(dx), abs(dy)) > self._config.fast_shift * max(grey.shape)
            if response > self._config.min_response and is_far:
                return FAST
        return fault

    def _reduced(self, rgb: NDArray[np.uint8]) -> Grey:
        scale = min(self._config.side / max(rgb.shape[:2]), 1.0)
        size = max(8, round(rgb.shape[1] * scale)), max(8, round(rgb.shape[0] * scale))
        small = cv2.resize(rgb, size, interpolation=cv2.INTER_AREA)
        return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.float32)

    def _quality(self, grey: Grey) -> Cause | None:
        config = self._config
        if float(grey.mean()) < config.dark_level:
            return DARK
        if float(cv2.resize(grey, COARSE, interpolation=cv2.INTER_AREA).std()) < config.bare_contrast:
            return BARE
        detail = _detail(grey)
        fineness = detail / max(_detail(_half_size(grey)), 0.01)
        # Relative to contrast, since a dim picture has weak edges, too.
        sharpness = detail / max(float(grey.std()), 1.0)
        reference = float(np.percentile(self._sharpness, 75)) if self._sharpness else 0.0
        is_doubtful = fineness < config.doubtful_fineness and sharpness < config.blur_ratio * reference
        if fineness < config.blurred_fineness or is_doubtful:
            return BLURRED
        self._sharpness.append(sharpness)
        return None


class _Edges:
    """Edges of the first picture, with which later ones are compared."""

    def __init__(self, grey: Grey, config: PictureConfig) -> None:
        self._config, self.shape, self._half_size = config, grey.shape, _half_size(grey)
        slope_x, slope_y = (cv2.Sobel(self._half_size, cv2.CV_32F, dx, 1 - dx) for dx in (1, 0))
        self._slope = np.hypot(slope_x, slope_y) / 8
        self._is_edge = self._slope > config.edge
        height, width = self._half_size.shape
        self._cells = max(width // config.cell, 2), max(height // config.cell, 2)
        self._edges = self._by_cell(self._is_edge)

    def still_share(self, grey: Grey) -> float:
        """Share of the cells with edges whose edges are where they were, in three of the picture's quarters at least.

        Where a thing moves before a fixed camera, what is around it stays.
        """
        change = _half_size(grey) - self._half_size
        change -= np.median(change)  # light
        same = self._by_cell(self._is_edge & (np.abs(change) < self._config.same * self._slope + 2))
        counted = self._edges >= self._config.min_edges
        stays = counted & (same >= self._config.min_same * self._edges)
        column, row = self._cells[0] // 2, self._cells[1] // 2
        quarters = [
            np.s_[rows, columns] for rows in (np.s_[:row], np.s_[row:]) for columns in (np.s_[:column], np.s_[column:])
        ]
        shares = [stays[each].sum() / max(counted[each].sum(), 1) for each in quarters]
        return float(sorted(shares)[1])

    def _by_cell(self, mask: NDArray[np.bool_]) -> Grey:
        """Share of each cell that a mask covers."""
        return np.asarray(cv2.resize(mask.astype(np.float32), self._cells, interpolation=cv2.INTER_AREA), np.float32)


def _half_size(grey: Grey) -> Grey:
    """A picture at half its width and height."""
    return np.asarray(cv2.resize(grey, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), np.float32)


def _detail(grey: Grey) -> float:
    """Mean strength of the finest edges."""
    return float(np.abs(cv2.Laplacian(grey, cv2.CV_32F)).mean())


@lru_cache(maxsize=2)
def _window(width: int, height: int) -> Grey:
    """Hann window of phase correlation."""
    return np.asarray(cv2.createHanningWindow((width, height), cv2.CV_32F), np.float32)
