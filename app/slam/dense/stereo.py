"""Dense depth of keyframes in order, over a bounded window of neighbours.

For each keyframe: the prior depth is corrected by triangulated points, a plane sweep measures depth, neighbours' maps
confirm it, and confirmed depth is spread over the prior. Then neighbours' confirmed depth fills pixels where a
keyframe has none of its own.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Certainty, Intrinsics
from stream_recon.app.slam.dense.arrays import Array, Arrays
from stream_recon.app.slam.dense.coarse_to_fine import sides, swept, with_other
from stream_recon.app.slam.dense.consistency import Neighbours, Support, support
from stream_recon.app.slam.dense.fusion import Interpolator, Measured
from stream_recon.app.slam.dense.planar import Anchors, flattened
from stream_recon.app.slam.dense.priors import Prior, corrected_priors, other_surfaces
from stream_recon.app.slam.dense.reflections import without_reflections
from stream_recon.app.slam.dense.sweep import Sources, SweepResult
from stream_recon.app.slam.dense.views import StereoView, pixel_transfers, source_views

WINDOW = 12
"""Keyframes before and after, among which source views are chosen."""
SOURCES = 6
"""Source views of a keyframe."""
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
    prior: Prior
    other: Array
    """Depth of the nearest triangulated point on another surface than the prior; 0 where there is none near."""
    sources: list[int]
    matched: Array
    """Depth measured by stereo; 0 elsewhere."""
    step: Array
    """Change of inverse depth, a number, that moves a point by one pixel in the best source view."""
    depth: Array = None
    is_confirmed: Array = None
    confirmed: Array = None
    """``depth`` where it is confirmed; 0 elsewhere."""
    count: Array = None
    """Neighbours that agree, at most 4."""
    anchor: Array = None
    """Depth that is confirmed here or by neighbours, and ``anchor_weight``."""
    anchor_weight: Array = None
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
        for side in sides(self._side):
            # A copy to a GPU waits for what the GPU has been given, which is nothing here.
            self._level(self._pushed, side)
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
        found = list[DenseDepth]()
        while before < self._done[-1]:
            some = self._of_one_size(range(before, min(before + self._arrays.views_at_once, self._done[-1])))
            found += self._output(some)
            before = some.stop
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
        views = [self._views[number] for number in numbers]
        priors = corrected_priors(arrays, views, [grey for grey, _ in images])
        # This is the CPU's work while a GPU is at the priors.
        sources = [self._sources(number) for number in numbers]
        others = other_surfaces(arrays, views, priors)
        for place, number in enumerate(numbers):
            prior, other, (grey, camera) = priors[place], others[place], images[place]
            matched, step = arrays.zeros_like(prior.depth), prior.depth[0, 0] * 0
            if sources[place]:
                result = self._sweeps(number, sources[place], prior.depth, other)
                is_matched = (result.cost < MAX_COST) & (result.margin > MIN_MARGIN) & prior.is_valid
                matched, step = arrays.where(is_matched, 1 / result.inverse_depth, 0.0), result.step
            self._frames[number] = _Keyframe(views[place], camera, grey, prior, other, sources[place], matched, step)

    def _sources(self, number: int) -> list[int]:
        """Numbers of a view's source views, best first."""
        view = self._views[number]
        window = [n for n in range(number - WINDOW, number + WINDOW + 1) if self._is_comparable(n, view)]
        chosen = source_views([self._views[n] for n in window], window.index(number), SOURCES)
        return [window[n] for n in chosen]

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
        """Sweeps of a view against source views, from coarse to fine.

        ``prior``, ``other``: depths [h, w] that they begin from, see `_Keyframe`.
        """
        arrays, T, inputs = self._arrays, self._views[number].T_world_camera, [prior, other]
        poses = np.array([self._views[source].T_world_camera for source in sources])
        for side in sides(self._side):
            grey, camera = self._level(number, side)
            others = [self._level(source, side) for source in sources]
            cameras = np.array([other_camera.matrix for _, other_camera in others])
            inputs += [arrays.array(pixel_transfers(T, camera.matrix, poses, cameras))]
            inputs += [grey, *(image for image, _ in others)]
        length = 2 + len(sources)

        def found(prior: Array, other: Array, *rest: Array) -> tuple[Array, ...]:
            levels = [rest[first : first + length] for first in range(0, len(rest), length)]
            compared = [(grey, Sources(images, P)) for P, grey, *images in levels]
            result = with_other(arrays, *compared[-1], swept(arrays, prior, compared), other)
            return result.inverse_depth, result.cost, result.margin, result.step

        return SweepResult(*arrays.replayed("sweeps", found, *inputs))

    def _support(
        self, frames: list[_Keyframe], depth: Array, name: str, pixels: float, relative: Array | float
    ) -> Support:
        """Support of keyframes' depth by their source views' maps, the field ``name``."""
        arrays = self._arrays
        count = max(len(frame.sources) for frame in frames)
        # A map without depth stands for a source view that is missing.
        nothing = arrays.zeros_like(depth[0])
        maps, there, back = list[list[Array]](), list[NDArray[np.float32]](), list[NDArray[np.float32]]()
        for frame in frames:
            others = [self._frames[n] for n in frame.sources]
            missing = count - len(others)
            maps.append([getattr(other, name) for other in others] + [nothing] * missing)
            T, K = frame.view.T_world_camera, frame.camera.matrix
            others += [frame] * missing
            poses = np.array([other.view.T_world_camera for other in others]).reshape(-1, 4, 4)
            cameras = np.array([other.camera.matrix for other in others]).reshape(-1, 3, 3)
            there.append(pixel_transfers(T, K, poses, cameras))
            back.append(pixel_transfers(poses, cameras, T, K))
        depths = [arrays.stack([row[k] for row in maps]) for k in range(count)]
        neighbours = Neighbours(depths, arrays.array(np.array(there)), arrays.array(np.array(back)))
        return support(arrays, depth, neighbours, pixels, relative)

    def _stacked(self, frames: list[_Keyframe], *names: str) -> list[Array]:
        """Fields of keyframes, each [n, h, w]."""
        return [self._arrays.stack([attrgetter(name)(frame) for frame in frames]) for name in names]

    def _fuse(self, numbers: Sequence[int]) -> None:
        """Stage 2: measured depth that neighbours confirm, spread over the prior."""
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        grey, prior, is_valid, other = self._stacked(frames, "grey", "prior.depth", "prior.is_valid", "other")
        points = self._stacked(frames, "prior.points.ratio", "prior.points.weight")
        matched, step = self._stacked(frames, "matched", "step")
        relative = arrays.maximum(matched * step[:, None, None], MIN_DIFFERENCE)
        found = self._support(frames, matched, "matched", 1.0, arrays.minimum(relative, MAX_DIFFERENCE))

        def fused(grey: Array, prior: Array, is_valid: Array, other: Array, *rest: Array) -> tuple[Array, ...]:
            point_ratio, point_weight, matched, agreeing, found = rest
            count = arrays.minimum(agreeing, 4.0)
            weight = arrays.zeros_like(prior)
            for number, value in enumerate(SUPPORT_WEIGHTS):
                weight = arrays.where(count == number, value, weight)
            is_measured = (matched > 0) & is_valid
            weight = arrays.where(is_measured, weight, 0.0)
            ratio = arrays.where(weight > 0, arrays.log(arrays.maximum(found, 1e-9) / prior), 0.0)
            # Near a triangulated point on another surface there are two surfaces, and no reflection.
            alone = without_reflections(arrays, Measured(ratio, weight))
            weight = arrays.where(other > 0, weight, alone)
            point_weight = arrays.where(is_valid, point_weight * POINT_WEIGHT, 0.0)
            total = weight + point_weight
            ratio = (weight * ratio + point_weight * point_ratio) / arrays.maximum(total, 1e-9)
            # What three and more views see is seldom wrong.
            outlier = arrays.where(count >= 3, 0.1, 1.0)
            interpolator = Interpolator(arrays, grey, prior, SMOOTHNESS)
            depth = prior * arrays.exp(interpolator.spread_robustly(Measured(ratio, total), outlier))
            is_confirmed = (agreeing >= CONFIRMING) & is_measured
            # Smoothness would mix what points and stereo measure on another surface, such as a pole, with the prior.
            from_point = abs(arrays.log(arrays.maximum(found, 1e-9) / arrays.maximum(other, 1e-9)))
            is_other = is_confirmed & (abs(ratio) > OTHER_LOG_RATIO) & (from_point < SAME_LOG_RATIO)
            depth = arrays.where(is_other, found, depth)
            return depth, arrays.where(is_confirmed, depth, 0.0), is_confirmed, count

        inputs = grey, prior, is_valid, other, *points, matched, found.agreeing, found.depth
        results = arrays.batched("fused", fused, *inputs)
        for frame, *values in zip(frames, *results, strict=True):
            frame.depth, frame.confirmed, frame.is_confirmed, frame.count = values

    def _fill(self, numbers: Sequence[int]) -> None:
        """A later stage: neighbours' confirmed depth where a keyframe has none of its own."""
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        grey, depth, is_confirmed, count = self._stacked(frames, "grey", "depth", "is_confirmed", "count")
        seen = self._support(frames, depth, "confirmed", 4.0, FILL_AGREEMENT)

        def filled(grey: Array, depth: Array, is_confirmed: Array, count: Array, *seen: Array) -> tuple[Array, ...]:
            agreeing, contradicting, found = seen
            is_new = (agreeing > 0) & ~is_confirmed
            ratio = arrays.where(is_new, arrays.log(arrays.maximum(found, 1e-9) / depth), 0.0)
            own = arrays.where(is_confirmed, count * 0.5, 0.0)
            weight = arrays.where(is_new, agreeing * FILL_WEIGHT, own)
            interpolator = Interpolator(arrays, grey, depth, FILL_SMOOTHNESS)
            depth = depth * arrays.exp(interpolator.spread(Measured(ratio, weight)))
            is_contradicted = (contradicting >= 2) & (agreeing == 0) & ~is_confirmed
            return depth, arrays.where(is_confirmed, depth, found), weight, is_contradicted

        inputs = grey, depth, is_confirmed, count, seen.agreeing, seen.contradicting, seen.depth
        for frame, *values in zip(frames, *arrays.batched("filled", filled, *inputs), strict=True):
            frame.depth, frame.anchor, frame.anchor_weight, frame.is_contradicted = values

    def _complete(self, numbers: Sequence[int]) -> None:
        """The last stage: `_fill`, then planes between what is confirmed here and by neighbours."""
        self._fill(numbers)
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        inputs = self._stacked(
            frames, "grey", "prior.depth", "depth", "confirmed", "is_confirmed", "anchor", "anchor_weight"
        )

        def flat(grey: Array, prior: Array, depth: Array, own: Array, *rest: Array) -> tuple[Array, ...]:
            is_confirmed, *anchors = rest
            error = arrays.where(own > 0, arrays.log(arrays.maximum(own, 1e-9) / prior), 0.0)
            return (arrays.where(is_confirmed, depth, flattened(arrays, grey, depth, error, Anchors(*anchors))),)

        (depth,) = arrays.batched("flat", flat, *inputs)
        for frame, found in zip(frames, depth, strict=True):
            frame.depth = found

    def _output(self, numbers: Sequence[int]) -> list[DenseDepth]:
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        depth, is_confirmed, is_valid, is_contradicted = self._stacked(
            frames, "depth", "is_confirmed", "prior.is_valid", "is_contradicted"
        )
        certainty = arrays.where(is_confirmed, float(Certainty.CONFIRMED), float(Certainty.NETWORK))
        near = arrays.box(arrays.to_float(is_confirmed), NEAR_PIXELS) > 0
        certainty = arrays.where(near & ~is_confirmed, float(Certainty.NEAR), certainty)
        known = is_valid & ~is_contradicted
        if any(frame.view.is_guess is not None for frame in frames):
            views = [frame.view for frame in frames]
            guesses = [np.zeros(v.prior.shape) if v.is_guess is None else v.is_guess for v in views]
            guess = arrays.array(np.array(guesses, np.float32))
            known = known & (is_confirmed | (arrays.repeated(guess, (depth.shape[-1], depth.shape[-2])) < 0.5))
        depths = arrays.numpy(arrays.where(known, depth, 0.0)).astype(np.float32)
        certainties = arrays.numpy(arrays.where(known, certainty, float(Certainty.NONE))).astype(np.uint8)
        indices = [frame.view.index for frame in frames]
        return [DenseDepth(*found) for found in zip(indices, depths, certainties, strict=True)]
