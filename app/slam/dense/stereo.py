"""Dense depth of keyframes in order, over a bounded window of neighbours.

For each keyframe: the prior depth is corrected by triangulated points, a plane sweep measures depth, neighbours' maps
confirm it, and confirmed depth is spread over the prior. Then neighbours' confirmed depth fills pixels where a
keyframe has none of its own.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Certainty, Intrinsics
from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.consistency import NeighbourMap, Tolerance, support
from stream_recon.app.slam.dense.fusion import Interpolator, Measured
from stream_recon.app.slam.dense.planar import Anchors, flattened
from stream_recon.app.slam.dense.sweep import SourceImage, SweepRange, SweepResult, sweep
from stream_recon.app.slam.dense.views import PixelTransfer, StereoView, source_views

WINDOW = 12
"""Keyframes before and after, among which source views are chosen."""
SOURCES = 6
"""Source views of a keyframe."""
COARSE_SIDE, COARSE = 192, SweepRange(40, 0.55, 1.8, distance_cost=0.001)
"""The first sweep: about the prior, whose errors it has to span."""
FINE = SweepRange(9, 0.3, 3.0)
"""Each further sweep, at up to twice the size, about the depth of the last one."""
MAX_COST, MIN_MARGIN = 0.6, 0.02
"""Bounds of cost and margin of a pixel that is matched."""
SUPPORT_WEIGHTS = (0.0, 0.05, 1.0, 1.5, 2.0)
"""Weight of measured depth by the number of neighbours that agree."""
MIN_DIFFERENCE, MAX_DIFFERENCE = 0.01, 0.05
"""Bounds of the relative difference of depth up to which a neighbour agrees: that of one pixel's displacement."""
CONFIRMING = 2
"""Neighbours that confirm a pixel."""
POINT_SMOOTHNESS, SMOOTHNESS, FILL_SMOOTHNESS = 10.0, 10.0, 2.0
"""Weights of smoothness when triangulated points, measured depth and neighbours' depth are spread."""
ROUNDS = 2
"""Times that neighbours' confirmed depth is passed on."""
FILL_WEIGHT = 0.3
"""Weight of a neighbour's confirmed depth, against about 1 for a keyframe's own."""
FILL_AGREEMENT = 0.1
"""Relative difference of depth up to which a neighbour's depth is taken for that of the same surface."""
NEAR_PIXELS = 3
"""Distance from a confirmed pixel, on the same surface, up to which depth is `Certainty.NEAR`."""
MAX_LOG_RATIO = 1.6
"""Largest log ratio of a triangulated point's depth to the network's: beyond it one of both is wrong."""


@dataclass(frozen=True)
class DenseDepth:
    """Dense depth of a keyframe."""

    index: int
    """Number of the frame in its source."""
    depth: NDArray[np.float32]  # [h, w]; 0 where unknown
    certainty: NDArray[np.uint8]  # [h, w], see `Certainty`


@dataclass
class _Keyframe:
    """A view in the window, with what is known of it."""

    view: StereoView
    camera: Intrinsics
    grey: Array
    prior: Array
    """Depth by the network and triangulated points; positive everywhere."""
    is_valid: Array
    """Whether the network gives depth."""
    sources: list[int]
    matched: Array
    """Depth measured by stereo; 0 elsewhere."""
    step: float
    """Change of inverse depth that moves a point by one pixel in the best source view."""
    transfers: list[tuple[PixelTransfer, PixelTransfer]] | None = None
    """To each source view and back."""
    depth: Array = None
    is_confirmed: Array = None
    confirmed: Array = None
    """``depth`` where it is confirmed; 0 elsewhere."""
    count: Array = None
    anchors: Anchors | None = None
    """Depth that is confirmed here or by neighbours."""
    is_contradicted: Array = None


class DenseStereo:
    """Depth maps of keyframes, which are pushed in order."""

    def __init__(self, arrays: Arrays, side: int, workers: int = 1) -> None:
        """
        Args:
            side: longer side of the depth maps in pixels; images are at least as large, unless the source is not.
            workers: threads of the backend on a CPU.
        """
        self._arrays, self._side = arrays, side
        self._workers = workers if arrays.views_at_once == 1 else 1
        self._group = max(workers, arrays.views_at_once)
        self._views: dict[int, StereoView] = {}
        self._frames: dict[int, _Keyframe] = {}
        self._levels: dict[tuple[int, int], tuple[Array, Intrinsics]] = {}
        """Images and cameras of views by number and side."""
        self._pushed = 0
        self._stages = [self._sweep, self._fuse, *[self._fill] * (ROUNDS - 1), self._complete]
        self._done = [0] * len(self._stages)
        """Keyframes that each stage has done."""

    def push(self, view: StereoView) -> list[DenseDepth]:
        """Take the next keyframe; returns the maps that are complete."""
        self._views[self._pushed] = view
        self._pushed += 1
        return self._advanced(is_last=False)

    def finish(self) -> list[DenseDepth]:
        """The remaining maps."""
        return self._advanced(is_last=True)

    def _advanced(self, *, is_last: bool) -> list[DenseDepth]:
        available = self._pushed
        before = self._done[-1]
        with ThreadPoolExecutor(self._workers, "stereo") as pool:
            for number, stage in enumerate(self._stages):
                # A stage needs the last one's results of the whole window, and waits for a group.
                ready = available if is_last else max(available - WINDOW, 0)
                while ready > self._done[number] and (is_last or ready - self._done[number] >= self._group):
                    some = range(self._done[number], min(self._done[number] + self._group, ready))
                    if self._workers > 1:
                        list(pool.map(lambda one, stage=stage: stage([one]), some))
                    else:
                        stage(list(some))
                    self._done[number] = some.stop
                available = self._done[number]
        found = [self._output(number) for number in range(before, self._done[-1])]
        for number in [n for n in self._views if n < self._done[0] - WINDOW]:
            del self._views[number]
        for number in [n for n in self._frames if n < self._done[-1] - WINDOW]:
            del self._frames[number]
        for key in [key for key in self._levels if key[0] not in self._views]:
            del self._levels[key]
        return found

    def _sweep(self, numbers: Sequence[int]) -> None:
        """Stage 1: the prior corrected by triangulated points, and depth measured by plane sweeps."""
        arrays = self._arrays
        images = [self._level(number, self._side) for number in numbers]
        greys = [grey for grey, _ in images]
        priors = corrected_priors(arrays, [self._views[number] for number in numbers], greys)
        for number, grey, (_, camera), (prior, is_valid) in zip(numbers, greys, images, priors, strict=True):
            view = self._views[number]
            window = [n for n in range(number - WINDOW, number + WINDOW + 1) if n in self._views]
            views = [self._views[n] for n in window]
            chosen = source_views(views, window.index(number), SOURCES)
            matched, step = arrays.zeros_like(prior), 0.0
            if chosen:
                result = self._sweeps(number, [window[n] for n in chosen], prior)
                is_matched = (result.cost < MAX_COST) & (result.margin > MIN_MARGIN) & is_valid
                matched, step = arrays.where(is_matched, 1 / result.inverse_depth, 0.0), result.step
            sources = [window[n] for n in chosen]
            self._frames[number] = _Keyframe(view, camera, grey, prior, is_valid, sources, matched, step)

    def _level(self, number: int, side: int) -> tuple[Array, Intrinsics]:
        """Image of a view with a longer side of at most ``side``, and its camera."""
        found = self._levels.get((number, side))
        if found is None:
            grey, camera = self._views[number].level(side)
            found = self._levels[number, side] = self._arrays.array(grey), camera
        return found

    def _sweeps(self, number: int, sources: Sequence[int], prior: Array) -> SweepResult:
        """Sweeps of a view against source views, from coarse to fine."""
        arrays, T = self._arrays, self._views[number].T_world_camera
        result: SweepResult | None = None
        margin: Array | None = None
        for side in sides(self._side):
            grey, camera = self._level(number, side)
            size = grey.shape[1], grey.shape[0]
            images = []
            for source in sources:
                other, other_camera = self._level(source, side)
                transfer = PixelTransfer.between(T, camera, self._views[source].T_world_camera, other_camera)
                images.append(SourceImage(other, transfer))
            if result is None:
                result = sweep(arrays, grey, images, 1 / arrays.repeated(prior, size), COARSE)
                margin = result.margin
            else:
                inverse = result.inverse_depth
                smooth, nearest = arrays.enlarged(inverse, size), arrays.repeated(inverse, size)
                # Between two surfaces, a mean of both depths is on neither.
                about = arrays.where(abs(smooth - nearest) < result.step, smooth, nearest)
                result = sweep(arrays, grey, images, about, FINE)
            assert margin is not None
            margin = arrays.repeated(margin, size)
        assert result is not None and margin is not None
        return SweepResult(result.inverse_depth, result.cost, margin, result.step)

    def _neighbours(self, number: int, maps: str) -> list[NeighbourMap]:
        """Maps of a keyframe's source views; ``maps``: their field."""
        frame = self._frames[number]
        others = [self._frames[n] for n in frame.sources]
        if frame.transfers is None:
            here = frame.view.T_world_camera
            frame.transfers = [
                (
                    PixelTransfer.between(here, frame.camera, other.view.T_world_camera, other.camera),
                    PixelTransfer.between(other.view.T_world_camera, other.camera, here, frame.camera),
                )
                for other in others
            ]
        return [
            NeighbourMap(getattr(other, maps), there, back)
            for other, (there, back) in zip(others, frame.transfers, strict=True)
        ]

    def _fuse(self, numbers: Sequence[int]) -> None:
        """Stage 2: measured depth that neighbours confirm, spread over the prior."""
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        measured = []
        for number, frame in zip(numbers, frames, strict=True):
            relative = arrays.minimum(arrays.maximum(frame.matched * frame.step, MIN_DIFFERENCE), MAX_DIFFERENCE)
            found = support(arrays, frame.matched, self._neighbours(number, "matched"), Tolerance(1.0, relative))
            count = arrays.minimum(found.agreeing, 4.0)
            weight = arrays.zeros_like(frame.prior)
            for agreeing, value in enumerate(SUPPORT_WEIGHTS):
                weight = arrays.where(count == agreeing, value, weight)
            is_measured = (frame.matched > 0) & frame.is_valid
            weight = arrays.where(is_measured, weight, 0.0)
            ratio = arrays.where(weight > 0, arrays.log(arrays.maximum(found.depth, 1e-9) / frame.prior), 0.0)
            frame.is_confirmed, frame.count = (found.agreeing >= CONFIRMING) & is_measured, count
            # What three and more views see is seldom wrong.
            measured.append((ratio, weight, arrays.where(count >= 3, 0.1, 1.0)))
        ratio, weight, outlier = (arrays.stack(list(column)) for column in zip(*measured, strict=True))
        grey, prior = arrays.stack([f.grey for f in frames]), arrays.stack([f.prior for f in frames])
        interpolator = Interpolator(arrays, grey, prior, SMOOTHNESS)
        depth = prior * arrays.exp(interpolator.spread_robustly(Measured(ratio, weight), outlier))
        for number, frame in enumerate(frames):
            frame.depth = depth[number]
            frame.confirmed = arrays.where(frame.is_confirmed, frame.depth, 0.0)

    def _fill(self, numbers: Sequence[int]) -> None:
        """A later stage: neighbours' confirmed depth where a keyframe has none of its own."""
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        measured, found = [], []
        for number, frame in zip(numbers, frames, strict=True):
            seen = support(arrays, frame.depth, self._neighbours(number, "confirmed"), Tolerance(4.0, FILL_AGREEMENT))
            is_new = (seen.agreeing > 0) & ~frame.is_confirmed
            ratio = arrays.where(is_new, arrays.log(arrays.maximum(seen.depth, 1e-9) / frame.depth), 0.0)
            own = arrays.where(frame.is_confirmed, frame.count * 0.5, 0.0)
            weight = arrays.where(is_new, seen.agreeing * FILL_WEIGHT, own)
            measured.append((ratio, weight))
            found.append(seen.depth)
            frame.is_contradicted = (seen.contradicting >= 2) & (seen.agreeing == 0) & ~frame.is_confirmed
        ratio, weight = (arrays.stack(list(column)) for column in zip(*measured, strict=True))
        grey, depth = arrays.stack([f.grey for f in frames]), arrays.stack([f.depth for f in frames])
        interpolator = Interpolator(arrays, grey, depth, FILL_SMOOTHNESS)
        depth = depth * arrays.exp(interpolator.spread(Measured(ratio, weight)))
        for number, frame in enumerate(frames):
            frame.depth = depth[number]
            measured_depth = arrays.where(frame.is_confirmed, frame.depth, found[number])
            frame.anchors = Anchors(measured_depth, weight[number])

    def _complete(self, numbers: Sequence[int]) -> None:
        """The last stage: `_fill`, then planes between what is confirmed here and by neighbours."""
        self._fill(numbers)
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        anchors = Anchors(*(arrays.stack([getattr(f.anchors, name) for f in frames]) for name in ("depth", "weight")))
        grey, depth, own, prior = (
            arrays.stack([getattr(frame, name) for frame in frames]) for name in ("grey", "depth", "confirmed", "prior")
        )
        error = arrays.where(own > 0, arrays.log(arrays.maximum(own, 1e-9) / prior), 0.0)
        flat = flattened(arrays, grey, depth, error, anchors)
        for number, frame in enumerate(frames):
            frame.depth = arrays.where(frame.is_confirmed, frame.depth, flat[number])

    def _output(self, number: int) -> DenseDepth:
        arrays, frame = self._arrays, self._frames[number]
        certainty = arrays.where(frame.is_confirmed, float(Certainty.CONFIRMED), float(Certainty.NETWORK))
        near = arrays.box(arrays.to_float(frame.is_confirmed), NEAR_PIXELS) > 0
        certainty = arrays.where(near & ~frame.is_confirmed, float(Certainty.NEAR), certainty)
        known = frame.is_valid & ~frame.is_contradicted
        if frame.view.is_guess is not None:
            guess = arrays.array(frame.view.is_guess.astype(np.float32))
            size = frame.depth.shape[1], frame.depth.shape[0]
            known = known & (frame.is_confirmed | (arrays.repeated(guess, size) < 0.5))
        return DenseDepth(
            frame.view.index,
            arrays.numpy(arrays.where(known, frame.depth, 0.0)).astype(np.float32),
            arrays.numpy(arrays.where(known, certainty, float(Certainty.NONE))).astype(np.uint8),
        )


def sides(side: int) -> list[int]:
    """Longer sides of the images of the sweeps, from coarse to ``side``, each at most twice the last one."""
    found = [side]
    while found[0] > COARSE_SIDE * 1.2:
        found.insert(0, max((found[0] + 1) // 2, COARSE_SIDE))
    return found


def corrected_priors(arrays: Arrays, views: Sequence[StereoView], greys: Sequence[Array]) -> list[tuple[Array, Array]]:
    """The network's depth [h, w] of views, corrected by triangulated points, and where it is known.

    Unknown pixels get the median depth. ``greys``: the views' images at the size of the depth.
    """
    size = greys[0].shape[1], greys[0].shape[0]
    priors, valid, points = [], [], []
    for view in views:
        known = view.prior > 0
        filled = np.where(known, view.prior, np.float32(np.median(view.prior[known]) if known.any() else 1))
        priors.append(arrays.repeated(arrays.array(filled), size))
        valid.append(arrays.repeated(arrays.array(known.astype(np.float32)), size) > 0.5)
        points.append(_log_ratios(view, arrays.numpy(priors[-1])))
    prior = arrays.stack(priors)
    ratio, weight = (arrays.array(np.array(column)) for column in zip(*points, strict=True))
    interpolator = Interpolator(arrays, arrays.stack(list(greys)), prior, POINT_SMOOTHNESS)
    prior = prior * arrays.exp(interpolator.spread_robustly(Measured(ratio, weight), 0.1))
    return [(prior[number], valid[number]) for number in range(len(views))]


def _log_ratios(view: StereoView, prior: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Mean log ratios [h, w] of triangulated to prior depth, and their weights."""
    height, width = prior.shape
    column, row = (view.pixels * (width / view.size[0], height / view.size[1])).astype(np.intp).T
    inside = (column >= 0) & (row >= 0) & (column < width) & (row < height) & (view.depths > 0)
    cell = row[inside] * width + column[inside]
    ratio = np.log(view.depths[inside] / prior.ravel()[cell])
    usable = np.abs(ratio) < MAX_LOG_RATIO
    cell, ratio = cell[usable], ratio[usable]
    weights = np.ones(len(cell)) if view.weights is None else view.weights[inside][usable]
    weight = np.bincount(cell, weights, minlength=prior.size)
    total = np.bincount(cell, weights * ratio, minlength=prior.size)
    mean = total / np.maximum(weight, 1e-9)
    shape = prior.shape
    return mean.reshape(shape).astype(np.float32), np.minimum(weight, 2).reshape(shape).astype(np.float32)
