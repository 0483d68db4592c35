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
from stream_recon.app.slam.dense.consistency import Support, Transfers, support
from stream_recon.app.slam.dense.fusion import Interpolator, Measured
from stream_recon.app.slam.dense.planar import Anchors, flattened
from stream_recon.app.slam.dense.priors import corrected_priors
from stream_recon.app.slam.dense.reflections import without_reflections
from stream_recon.app.slam.dense.sweep import Sources, SweepRange, SweepResult, sweep
from stream_recon.app.slam.dense.views import PixelTransfer, StereoView, source_views

WINDOW = 12
"""Keyframes before and after, among which source views are chosen."""
SOURCES = 6
"""Source views of a keyframe."""
COARSE_SIDE, COARSE = 192, SweepRange(40, 0.55, 1.8, distance_cost=0.001, has_margin=True)
"""The first sweep: about the prior, whose errors it has to span. Far things are often several times as far."""
FINE = SweepRange(9, 0.3, 3.0)
"""Each further sweep, at up to twice the size, about the depth of the last one."""
OTHER, MIN_GAIN = SweepRange(3, 0.3, 3.0), 0.02
"""The sweep about the depth of triangulated points that are on another surface, and how much less its cost must be."""
MAX_COST, MIN_MARGIN = 0.6, 0.02
"""Bounds of cost and margin of a pixel that is matched."""
SUPPORT_WEIGHTS = (0.0, 0.05, 1.0, 1.5, 2.0)
"""Weight of measured depth by the number of neighbours that agree."""
MIN_DIFFERENCE, MAX_DIFFERENCE = 0.01, 0.05
"""Bounds of the relative difference of depth up to which a neighbour agrees: that of one pixel's displacement."""
CONFIRMING = 2
"""Neighbours that confirm a pixel."""
OTHER_LOG_RATIO, SAME_LOG_RATIO = 0.1, 0.05
"""Log ratio of confirmed depth to the prior, from which it is on another surface, and to the depth of a triangulated
point, up to which it is on the point's surface."""
POINT_WEIGHT = 2.0
"""Weight of a triangulated point whose depth is exact."""
SMOOTHNESS, FILL_SMOOTHNESS = 10.0, 2.0
"""Weights of smoothness when measured depth and neighbours' depth are spread."""
ROUNDS = 2
"""Times that neighbours' confirmed depth is passed on."""
FILL_WEIGHT = 0.3
"""Weight of a neighbour's confirmed depth, against about 1 for a keyframe's own."""
FILL_AGREEMENT = 0.1
"""Relative difference of depth up to which a neighbour's depth is taken for that of the same surface."""
NEAR_PIXELS = 3
"""Distance from a confirmed pixel, on the same surface, up to which depth is `Certainty.NEAR`."""


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
    points: Measured
    """Triangulated points: log ratios to ``prior``."""
    other: Array
    """Depth of the nearest point on another surface than the prior, see `Prior`."""
    sources: list[int]
    matched: Array
    """Depth measured by stereo; 0 elsewhere."""
    step: Array
    """Change of inverse depth, a number, that moves a point by one pixel in the best source view."""
    transfers: Transfers | None = None
    """To the source views and back."""
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
                        some = self._of_one_size(some)
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
        for number, grey, (_, camera), known in zip(numbers, greys, images, priors, strict=True):
            prior, is_valid = known.depth, known.is_valid
            view = self._views[number]
            window = [n for n in range(number - WINDOW, number + WINDOW + 1) if self._is_comparable(n, view)]
            views = [self._views[n] for n in window]
            chosen = source_views(views, window.index(number), SOURCES)
            matched, step = arrays.zeros_like(prior), prior[0, 0] * 0
            if chosen:
                result = self._sweeps(number, [window[n] for n in chosen], prior, known.other)
                is_matched = (result.cost < MAX_COST) & (result.margin > MIN_MARGIN) & is_valid
                matched, step = arrays.where(is_matched, 1 / result.inverse_depth, 0.0), result.step
            sources = [window[n] for n in chosen]
            self._frames[number] = _Keyframe(
                view, camera, grey, prior, is_valid, known.points, known.other, sources, matched, step
            )

    def _of_one_size(self, some: range) -> range:
        """The first of these keyframes, as far as they have the first one's size."""
        sizes = [(self._views.get(n) or self._frames[n].view).size for n in some]
        return range(some.start, some.start + next((n for n, size in enumerate(sizes) if size != sizes[0]), len(some)))

    def _is_comparable(self, number: int, view: StereoView) -> bool:
        """Whether the backend can compare a keyframe in the window with the view."""
        other = self._views.get(number)
        return other is not None and (self._arrays.views_at_once == 1 or other.size == view.size)

    def _level(self, number: int, side: int) -> tuple[Array, Intrinsics]:
        """Image of a view with a longer side of at most ``side``, and its camera."""
        found = self._levels.get((number, side))
        if found is None:
            grey, camera = self._views[number].level(side)
            found = self._levels[number, side] = self._arrays.array(grey), camera
        return found

    def _sweeps(self, number: int, sources: Sequence[int], prior: Array, other: Array) -> SweepResult:
        """Sweeps of a view against source views, from coarse to fine. ``prior``, ``other``: see `Prior`."""
        arrays, T, inputs = self._arrays, self._views[number].T_world_camera, [prior, other]
        for side in sides(self._side):
            grey, camera = self._level(number, side)
            others = [self._level(source, side) for source in sources]
            transfers = [
                PixelTransfer.between(T, camera, self._views[source].T_world_camera, other_camera)
                for source, (_, other_camera) in zip(sources, others, strict=True)
            ]
            inputs += [arrays.array(np.array([getattr(t, name) for t in transfers])) for name in ("M", "v")]
            inputs += [grey, *(image for image, _ in others)]
        length = 3 + len(sources)

        def found(prior: Array, other: Array, *rest: Array) -> tuple[Array, ...]:
            levels = [rest[first : first + length] for first in range(0, len(rest), length)]
            compared = [(grey, Sources(images, M, v)) for M, v, grey, *images in levels]
            result = with_other(arrays, *compared[-1], swept(arrays, prior, compared), other)
            return result.inverse_depth, result.cost, result.margin, result.step

        return SweepResult(*arrays.replayed("sweeps", found, *inputs))

    def _support(self, number: int, name: str, maps: str, pixels: float, relative: Array | float) -> Support:
        """Support of a keyframe's map by its source views'; ``name``, ``maps``: fields of both."""
        arrays, frame = self._arrays, self._frames[number]
        others = [self._frames[n] for n in frame.sources]
        here, depth = (frame.view.T_world_camera, frame.camera), getattr(frame, name)
        if frame.transfers is None:
            there = [(other.view.T_world_camera, other.camera) for other in others]
            frame.transfers = Transfers.of(
                arrays,
                [PixelTransfer.between(*here, *other) for other in there],
                [PixelTransfer.between(*other, *here) for other in there],
            )
        return support(arrays, depth, [getattr(other, maps) for other in others], frame.transfers, pixels, relative)

    def _fuse(self, numbers: Sequence[int]) -> None:
        """Stage 2: measured depth that neighbours confirm, spread over the prior."""
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        measured, exact = [], []
        for number, frame in zip(numbers, frames, strict=True):
            relative = arrays.minimum(arrays.maximum(frame.matched * frame.step, MIN_DIFFERENCE), MAX_DIFFERENCE)
            found = self._support(number, "matched", "matched", 1.0, relative)
            count = arrays.minimum(found.agreeing, 4.0)
            weight = arrays.zeros_like(frame.prior)
            for agreeing, value in enumerate(SUPPORT_WEIGHTS):
                weight = arrays.where(count == agreeing, value, weight)
            is_measured = (frame.matched > 0) & frame.is_valid
            weight = arrays.where(is_measured, weight, 0.0)
            ratio = arrays.where(weight > 0, arrays.log(arrays.maximum(found.depth, 1e-9) / frame.prior), 0.0)
            # Near a triangulated point on another surface there are two surfaces, and no reflection.
            alone = without_reflections(arrays, Measured(ratio, weight))
            weight = arrays.where(frame.other > 0, weight, alone)
            point_weight = arrays.where(frame.is_valid, frame.points.weight * POINT_WEIGHT, 0.0)
            total = weight + point_weight
            ratio = (weight * ratio + point_weight * frame.points.ratio) / arrays.maximum(total, 1e-9)
            weight = total
            frame.is_confirmed, frame.count = (found.agreeing >= CONFIRMING) & is_measured, count
            # What three and more views see is seldom wrong.
            outlier = arrays.where(count >= 3, 0.1, 1.0)
            # Smoothness would mix what points and stereo measure on another surface, such as a pole, with the prior.
            from_point = abs(arrays.log(arrays.maximum(found.depth, 1e-9) / arrays.maximum(frame.other, 1e-9)))
            is_other = frame.is_confirmed & (abs(ratio) > OTHER_LOG_RATIO) & (from_point < SAME_LOG_RATIO)
            measured.append((ratio, weight, outlier))
            exact.append(arrays.where(is_other, found.depth, 0.0))
        ratio, weight, outlier = (arrays.stack(list(column)) for column in zip(*measured, strict=True))
        grey, prior = arrays.stack([f.grey for f in frames]), arrays.stack([f.prior for f in frames])

        def fused(grey: Array, prior: Array, ratio: Array, weight: Array, outlier: Array) -> tuple[Array, ...]:
            interpolator = Interpolator(arrays, grey, prior, SMOOTHNESS)
            return (prior * arrays.exp(interpolator.spread_robustly(Measured(ratio, weight), outlier)),)

        (depth,) = arrays.batched("fused", fused, grey, prior, ratio, weight, outlier)
        for number, frame in enumerate(frames):
            frame.depth = arrays.where(exact[number] > 0, exact[number], depth[number])
            frame.confirmed = arrays.where(frame.is_confirmed, frame.depth, 0.0)

    def _fill(self, numbers: Sequence[int]) -> None:
        """A later stage: neighbours' confirmed depth where a keyframe has none of its own."""
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        measured, found = [], []
        for number, frame in zip(numbers, frames, strict=True):
            seen = self._support(number, "depth", "confirmed", 4.0, FILL_AGREEMENT)
            is_new = (seen.agreeing > 0) & ~frame.is_confirmed
            ratio = arrays.where(is_new, arrays.log(arrays.maximum(seen.depth, 1e-9) / frame.depth), 0.0)
            own = arrays.where(frame.is_confirmed, frame.count * 0.5, 0.0)
            weight = arrays.where(is_new, seen.agreeing * FILL_WEIGHT, own)
            measured.append((ratio, weight))
            found.append(seen.depth)
            frame.is_contradicted = (seen.contradicting >= 2) & (seen.agreeing == 0) & ~frame.is_confirmed
        ratio, weight = (arrays.stack(list(column)) for column in zip(*measured, strict=True))
        grey, depth = arrays.stack([f.grey for f in frames]), arrays.stack([f.depth for f in frames])

        def filled(grey: Array, depth: Array, ratio: Array, weight: Array) -> tuple[Array, ...]:
            interpolator = Interpolator(arrays, grey, depth, FILL_SMOOTHNESS)
            return (depth * arrays.exp(interpolator.spread(Measured(ratio, weight))),)

        (depth,) = arrays.batched("filled", filled, grey, depth, ratio, weight)
        for number, frame in enumerate(frames):
            frame.depth = depth[number]
            measured_depth = arrays.where(frame.is_confirmed, frame.depth, found[number])
            frame.anchors = Anchors(measured_depth, weight[number])

    def _complete(self, numbers: Sequence[int]) -> None:
        """The last stage: `_fill`, then planes between what is confirmed here and by neighbours."""
        self._fill(numbers)
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        anchors = [arrays.stack([getattr(f.anchors, name) for f in frames]) for name in ("depth", "weight")]
        grey, depth, own, prior = (
            arrays.stack([getattr(frame, name) for frame in frames]) for name in ("grey", "depth", "confirmed", "prior")
        )
        error = arrays.where(own > 0, arrays.log(arrays.maximum(own, 1e-9) / prior), 0.0)

        def flat(grey: Array, depth: Array, error: Array, *anchors: Array) -> tuple[Array, ...]:
            return (flattened(arrays, grey, depth, error, Anchors(*anchors)),)

        (depth,) = arrays.batched("flat", flat, grey, depth, error, *anchors)
        for number, frame in enumerate(frames):
            frame.depth = arrays.where(frame.is_confirmed, frame.depth, depth[number])

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


def swept(arrays: Arrays, prior: Array, levels: Sequence[tuple[Array, Sources]]) -> SweepResult:
    """Sweeps about a prior depth [h, w] at several sizes, from coarse to fine: images [h, w] and their sources."""
    result: SweepResult | None = None
    margin: Array = None
    for grey, sources in levels:
        size = grey.shape[1], grey.shape[0]
        if result is None:
            result = sweep(arrays, grey, sources, 1 / arrays.repeated(prior, size), COARSE)
            margin = result.margin
        else:
            inverse = result.inverse_depth
            smooth, nearest = arrays.enlarged(inverse, size), arrays.repeated(inverse, size)
            # Between two surfaces, a mean of both depths is on neither.
            about = arrays.where(abs(smooth - nearest) < result.step, smooth, nearest)
            result = sweep(arrays, grey, sources, about, FINE)
        margin = arrays.repeated(margin, size)
    assert result is not None
    return SweepResult(result.inverse_depth, result.cost, margin, result.step)


def with_other(arrays: Arrays, grey: Array, sources: Sources, result: SweepResult, other: Array) -> SweepResult:
    """The result with another depth [h, w], 0 where unknown, where images agree clearly better with it."""
    about = arrays.where(other > 0, 1 / arrays.maximum(other, 1e-9), result.inverse_depth)
    found = sweep(arrays, grey, sources, about, OTHER)
    is_better = (other > 0) & (found.cost < result.cost - MIN_GAIN)
    is_better = is_better & (abs(found.inverse_depth - result.inverse_depth) > 2 * result.step)
    gain = (result.cost - found.cost) / arrays.maximum(found.cost, 0.004)
    return SweepResult(
        arrays.where(is_better, found.inverse_depth, result.inverse_depth),
        arrays.where(is_better, found.cost, result.cost),
        arrays.where(is_better, gain, result.margin),
        result.step,
    )


def sides(side: int) -> list[int]:
    """Longer sides of the images of the sweeps, from coarse to ``side``, each at most twice the last one."""
    found = [side]
    while found[0] > COARSE_SIDE * 1.2:
        found.insert(0, max((found[0] + 1) // 2, COARSE_SIDE))
    return found
