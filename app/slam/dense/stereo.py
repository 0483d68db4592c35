"""Dense depth of keyframes in order, over a bounded window of neighbours.

For each keyframe: the prior depth is corrected by triangulated points, a plane sweep measures depth, neighbours' maps
confirm it, and confirmed depth is spread over the prior. Then neighbours' confirmed depth fills pixels where a
keyframe has none of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cores import usable_cores
from stream_recon.app.core.types import Certainty, Intrinsics
from stream_recon.app.core.worker import ProcessGroup, StopTest, may_start_processes
from stream_recon.app.slam.dense.arrays import Array, Arrays, NumpyArrays
from stream_recon.app.slam.dense.config import DEFAULT_STEREO, StereoConfig
from stream_recon.app.slam.dense.consistency import Bounds, Neighbours, Support, support
from stream_recon.app.slam.dense.interpolation import Interpolator, MeasuredRatios, without_reflections
from stream_recon.app.slam.dense.planar import Anchors, flattened
from stream_recon.app.slam.dense.priors import corrected_priors, other_surfaces
from stream_recon.app.slam.dense.sweep import Sources, SweepResult, sides, swept, with_other
from stream_recon.app.slam.dense.views import StereoView, pixel_transfers, source_views

MAX_PROCESSES = 4
"""Processes on a CPU: more wait for this one, which sends the images to them."""
KEYFRAMES_PER_PROCESS = 12
"""Keyframes that are worth the start of a process, which takes a second."""
TASKS_PER_PROCESS = 2
"""Keyframes of a group for each process: they end nearly at the same time."""
PROCESS_DIED = (
    "a process of dense depth has ended, perhaps out of memory: the result is complete without it; "
    "'stream-recon refine' computes it, '--dense off' leaves it out"
)
NEIGHBOURS_FIELD = {"_confirm": "matched", "_fill": "confirmed", "_complete": "confirmed"}
"""What each stage but the first reads of a keyframe's source views."""


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
    sources: list[int]
    grey: Array = None
    prior: Any = None
    """A `Prior`."""
    other: Array = None
    """Depth of the nearest triangulated point on another surface than the prior; 0 where there is none near."""
    matched: Array = None
    """Depth measured by stereo; 0 elsewhere."""
    step: Array = None
    """Change of inverse depth, a number, that moves a point by one pixel in the best source view."""
    depth: Array = None
    is_confirmed: Array = None
    confirmed: Array = None
    """``depth`` where it is confirmed; 0 elsewhere."""
    count: Array = None
    """Neighbours that agree, as far as their number counts."""
    anchor: Array = None
    """Depth that is confirmed here or by neighbours, and ``anchor_weight``."""
    anchor_weight: Array = None
    is_contradicted: Array = None


class DenseStereo:
    """Depth maps of keyframes, which are pushed in order."""

    def __init__(self, arrays: Arrays, side: int, processes: int = 1, config: StereoConfig = DEFAULT_STEREO) -> None:
        """
        Args:
            side: longer side of the depth maps in pixels; images are at least as large, unless the source is not.
            processes: number of them on a CPU; 1: this one alone.
        """
        self._arrays, self._side, self._config = arrays, side, config
        self._processes: ProcessGroup | None = None
        if processes > 1 and arrays.views_at_once == 1:
            target = partial(DenseStereo, arrays, side, config=config)
            self._processes = ProcessGroup("stereo", processes, target, PROCESS_DIED)
        self._sides, self._window = sides(side, config.sweep.coarse_side), config.sources.window
        self._group = arrays.views_at_once if self._processes is None else TASKS_PER_PROCESS * processes
        self._views: dict[int, StereoView] = {}
        self._frames: dict[int, _Keyframe] = {}
        self._levels: dict[tuple[int, int], tuple[Array, Intrinsics]] = {}
        """Images and cameras of views by number and side."""
        self._pushed = 0
        fills = config.fill.rounds if config.fill.is_enabled else 1
        self._stages = [self._sweep, self._confirm, *[self._fill] * (fills - 1), self._complete]
        self._done = [0] * len(self._stages)
        """Keyframes that each stage has done."""

    @classmethod
    def on(cls, device: str, side: int, config: StereoConfig, keyframes: int) -> "DenseStereo":
        """Stereo on a device, see `arrays_for`, with processes for the cores that this one may use."""
        most = MAX_PROCESSES if may_start_processes() else 1
        return cls(arrays_for(device), side, min(usable_cores(), most, keyframes // KEYFRAMES_PER_PROCESS), config)

    def close(self) -> None:
        """End the processes."""
        if self._processes is not None:
            self._processes.close()

    def push(self, view: StereoView) -> list[DenseDepth]:
        """Take the next keyframe; returns the maps that are complete."""
        self._views[self._pushed] = view
        for side in self._sides:
            # A copy to a GPU waits for what the GPU has been given, which is nothing here.
            self._level(self._pushed, side)
        self._pushed += 1
        return self._advanced(is_last=False)

    def finish(self) -> list[DenseDepth]:
        """The remaining maps."""
        return self._advanced(is_last=True)

    def _advanced(self, *, is_last: bool) -> list[DenseDepth]:
        """The maps that the stages complete with the keyframes so far."""
        completed, depths = self._done[-1], list[DenseDepth]()
        self._run_stages(is_last=is_last)
        while completed < self._done[-1]:
            numbers = self._of_one_size(range(completed, min(completed + self._arrays.views_at_once, self._done[-1])))
            depths += self._output(numbers)
            completed = numbers.stop
        self._forget()
        return depths

    def _run_stages(self, *, is_last: bool) -> None:
        available = self._pushed
        for number, stage in enumerate(self._stages):
            # A stage needs the last one's results of the whole window, and waits for a group.
            ready = available if is_last else max(available - self._window, 0)
            while ready > self._done[number] and (is_last or ready - self._done[number] >= self._group):
                group = range(self._done[number], min(self._done[number] + self._group, ready))
                if self._processes is None:
                    group = self._of_one_size(group)
                    stage(list(group))
                else:
                    results = self._processes.map("run_stage", [self._task(stage.__name__, n) for n in group])
                    for n, fields in zip(group, results, strict=True):
                        known = vars(self._frames[n]) if n in self._frames else {"view": self._views[n]}
                        self._frames[n] = _Keyframe(**{**known, **fields})
                self._done[number] = group.stop
            available = self._done[number]

    def _task(self, stage: str, number: int) -> tuple[Any, ...]:
        """Arguments of `run_stage`: no more than a stage of a keyframe reads."""
        frame = self._frames.get(number)
        if frame is None:
            views = {n: self._views[n].bare() for n in self._sources(number)}
            return stage, number, {**views, number: self._views[number]}, {}
        frames = {number: replace(frame, view=frame.view.bare(0))}
        for n in frame.sources:
            other, read = self._frames[n], NEIGHBOURS_FIELD[stage]
            frames[n] = _Keyframe(other.view.bare(0), other.camera, [], **{read: getattr(other, read)})
        return stage, number, {}, frames

    def run_stage(
        self, _stop: StopTest, stage: str, number: int, views: dict[int, StereoView], frames: dict[int, _Keyframe]
    ) -> dict[str, Any]:
        """Run a stage of a keyframe in a process of its own; returns the fields that it changes."""
        self._views, self._frames, self._levels = views, frames, {}
        before = dict(vars(frames[number])) if number in frames else {}
        getattr(self, stage)([number])
        after = vars(self._frames[number])
        return {name: value for name, value in after.items() if name != "view" and value is not before.get(name)}

    def _forget(self) -> None:
        """Drop what no later keyframe needs."""
        self._views = {n: view for n, view in self._views.items() if n >= self._done[0] - self._window}
        self._frames = {n: frame for n, frame in self._frames.items() if n >= self._done[-1] - self._window}
        self._levels = {key: level for key, level in self._levels.items() if key[0] in self._views}

    def _sweep(self, numbers: Sequence[int]) -> None:
        """Stage 1: the prior corrected by triangulated points, and depth measured by plane sweeps."""
        arrays, bounds = self._arrays, self._config.sweep
        images = [self._level(number, self._side) for number in numbers]
        views = [self._views[number] for number in numbers]
        priors = corrected_priors(arrays, views, [grey for grey, _ in images], self._config)
        # This is the CPU's work while a GPU is at the priors.
        sources = [self._sources(number) for number in numbers]
        others = other_surfaces(arrays, views, priors, self._config)
        for row, number in enumerate(numbers):
            prior, other, (grey, camera) = priors[row], others[row], images[row]
            matched, step = arrays.zeros_like(prior.depth), prior.depth[0, 0] * 0
            if sources[row]:
                result = self._sweeps(number, sources[row][: self._config.sources.max_swept], prior.depth, other)
                is_matched = (result.cost < bounds.max_cost) & prior.is_valid
                matched, step = arrays.where(is_matched, 1 / result.inverse_depth, 0.0), result.step
            self._frames[number] = _Keyframe(views[row], camera, sources[row], grey, prior, other, matched, step)

    def _sources(self, number: int) -> list[int]:
        """Numbers of a view's source views, best first."""
        view = self._views[number]
        window = [n for n in range(number - self._window, number + self._window + 1) if self._is_comparable(n, view)]
        chosen = source_views([self._views[n] for n in window], window.index(number), self._config.sources)
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
        level = self._levels.get((number, side))
        if level is None:
            grey, camera = self._views[number].level(side)
            level = self._levels[number, side] = self._arrays.array(grey), camera
        return level

    def _sweeps(self, number: int, sources: Sequence[int], prior: Array, other: Array) -> SweepResult:
        """Sweeps of a view against source views, from coarse to fine.

        ``prior``, ``other``: depths [h, w] that they begin from, see `_Keyframe`.
        """
        arrays, T, inputs = self._arrays, self._views[number].T_world_camera, [prior, other]
        poses = np.array([self._views[source].T_world_camera for source in sources])
        for side in self._sides:
            grey, camera = self._level(number, side)
            others = [self._level(source, side) for source in sources]
            cameras = np.array([other_camera.matrix for _, other_camera in others])
            inputs += [arrays.array(pixel_transfers(T, camera.matrix, poses, cameras))]
            inputs += [grey, *(image for image, _ in others)]
        length, config = 2 + len(sources), self._config

        def sweep_levels(prior: Array, other: Array, *flat: Array) -> tuple[Array, ...]:
            levels = [flat[first : first + length] for first in range(0, len(flat), length)]
            compared = [(grey, Sources(images, P)) for P, grey, *images in levels]
            result = swept(arrays, prior, compared, config.sweep)
            if config.other_surfaces.is_enabled:
                result = with_other(arrays, *compared[-1], result, other, config)
            return result.inverse_depth, result.cost, result.step

        return SweepResult(*arrays.replayed(("sweeps", config), sweep_levels, *inputs))

    def _support(self, frames: list[_Keyframe], depth: Array, name: str, bounds: Bounds) -> Support:
        """Support of keyframes' depth by their source views' maps, the field ``name``."""
        arrays = self._arrays
        count = max(len(frame.sources) for frame in frames)
        # A map without depth stands for a source view that is missing.
        nothing = arrays.zeros_like(depth[0])
        maps, forward, backward = list[list[Array]](), list[NDArray[np.float32]](), list[NDArray[np.float32]]()
        for frame in frames:
            others = [self._frames[n] for n in frame.sources]
            missing = count - len(others)
            maps.append([getattr(other, name) for other in others] + [nothing] * missing)
            T, K = frame.view.T_world_camera, frame.camera.matrix
            others += [frame] * missing
            poses = np.array([other.view.T_world_camera for other in others]).reshape(-1, 4, 4)
            cameras = np.array([other.camera.matrix for other in others]).reshape(-1, 3, 3)
            forward.append(pixel_transfers(T, K, poses, cameras))
            backward.append(pixel_transfers(poses, cameras, T, K))
        depths = [arrays.stack([row[k] for row in maps]) for k in range(count)]
        neighbours = Neighbours(depths, arrays.array(np.array(forward)), arrays.array(np.array(backward)))
        return support(arrays, depth, neighbours, bounds)

    def _stacked(self, frames: list[_Keyframe], *names: str) -> list[Array]:
        """Fields of keyframes, each [n, h, w]."""
        return [self._arrays.stack([attrgetter(name)(frame) for frame in frames]) for name in names]

    def _measured_support(self, frames: list[_Keyframe], matched: Array, step: Array) -> Support:
        """Support of measured depth by the depth that neighbours measure."""
        arrays, config = self._arrays, self._config.support
        if not config.is_enabled:
            nothing = arrays.zeros_like(matched)
            return Support(nothing + config.confirming, nothing, matched)
        relative = arrays.maximum(matched * step[:, None, None], config.min_difference)
        relative = arrays.minimum(relative, config.max_difference)
        bounds = Bounds(config.max_pixels, relative, self._config.free_space.min_ratio)
        return self._support(frames, matched, "matched", bounds)

    def _confirm(self, numbers: Sequence[int]) -> None:
        """Stage 2: measured depth that neighbours confirm, interpolated with the prior."""
        arrays, frames, config = self._arrays, [self._frames[number] for number in numbers], self._config
        confirmation, others = config.support, config.other_surfaces
        grey, prior, is_valid, other = self._stacked(frames, "grey", "prior.depth", "prior.is_valid", "other")
        points = self._stacked(frames, "prior.points.ratio", "prior.points.weight")
        matched, step = self._stacked(frames, "matched", "step")
        support = self._measured_support(frames, matched, step)

        def confirmed(grey: Array, prior: Array, is_valid: Array, other: Array, *rest: Array) -> tuple[Array, ...]:
            point_ratio, point_weight, matched, agreeing, mean_depth = rest
            count = arrays.minimum(agreeing, float(len(confirmation.weights) - 1))
            weight = arrays.zeros_like(prior)
            for number, value in enumerate(confirmation.weights):
                weight = arrays.where(count == number, value, weight)
            is_measured = (matched > 0) & is_valid
            weight = arrays.where(is_measured, weight, 0.0)
            ratio = arrays.where(weight > 0, arrays.log(arrays.maximum(mean_depth, 1e-9) / prior), 0.0)
            if config.reflections.is_enabled:
                # Near a triangulated point on another surface there are two surfaces, and no reflection.
                alone = without_reflections(arrays, MeasuredRatios(ratio, weight), config.reflections)
                weight = arrays.where(other > 0, weight, alone)
            point_weight = arrays.where(is_valid, point_weight * config.points.weight, 0.0)
            total = weight + point_weight
            ratio = (weight * ratio + point_weight * point_ratio) / arrays.maximum(total, 1e-9)
            outlier = arrays.where(count >= confirmation.sure, confirmation.sure_outlier, 1.0)
            interpolator = Interpolator(arrays, grey, prior, config.interpolation)
            depth = prior * arrays.exp(interpolator.spread_robustly(MeasuredRatios(ratio, total), outlier))
            is_confirmed = (agreeing >= confirmation.confirming) & is_measured
            # Smoothness would mix what points and stereo measure on another surface, such as a pole, with the prior.
            from_point = abs(arrays.log(arrays.maximum(mean_depth, 1e-9) / arrays.maximum(other, 1e-9)))
            is_other = is_confirmed & (abs(ratio) > others.min_prior_log_ratio)
            is_other = is_other & (from_point < others.max_point_log_ratio)
            depth = arrays.where(is_other, mean_depth, depth)
            return depth, arrays.where(is_confirmed, depth, 0.0), is_confirmed, count

        inputs = grey, prior, is_valid, other, *points, matched, support.agreeing, support.depth
        results = arrays.batched(("confirmed", config), confirmed, *inputs)
        for frame, *values in zip(frames, *results, strict=True):
            frame.depth, frame.confirmed, frame.is_confirmed, frame.count = values

    def _fill(self, numbers: Sequence[int]) -> None:
        """A later stage: neighbours' confirmed depth where a keyframe has none of its own."""
        arrays, frames, config = self._arrays, [self._frames[number] for number in numbers], self._config
        fill, free_space = config.fill, config.free_space
        grey, depth, is_confirmed, count = self._stacked(frames, "grey", "depth", "is_confirmed", "count")
        bounds = Bounds(fill.max_pixels, fill.max_difference, free_space.min_ratio)
        support = self._support(frames, depth, "confirmed", bounds)
        spreading = replace(config.interpolation, smoothness=fill.smoothness)

        def filled(grey: Array, depth: Array, is_confirmed: Array, count: Array, *support: Array) -> tuple[Array, ...]:
            agreeing, contradicting, mean_depth = support
            is_contradicted = (contradicting >= free_space.contradicting) & (agreeing == 0) & ~is_confirmed
            weight = arrays.where(is_confirmed, count * 0.5, 0.0)
            if fill.is_enabled:
                is_new = (agreeing > 0) & ~is_confirmed
                ratio = arrays.where(is_new, arrays.log(arrays.maximum(mean_depth, 1e-9) / depth), 0.0)
                weight = arrays.where(is_new, agreeing * fill.weight, weight)
                interpolator = Interpolator(arrays, grey, depth, spreading)
                depth = depth * arrays.exp(interpolator.spread(MeasuredRatios(ratio, weight)))
            return depth, arrays.where(is_confirmed, depth, mean_depth), weight, is_contradicted

        inputs = grey, depth, is_confirmed, count, support.agreeing, support.contradicting, support.depth
        for frame, *values in zip(frames, *arrays.batched(("filled", config), filled, *inputs), strict=True):
            frame.depth, frame.anchor, frame.anchor_weight, frame.is_contradicted = values

    def _complete(self, numbers: Sequence[int]) -> None:
        """The last stage: `_fill`, then planes between what is confirmed here and by neighbours."""
        self._fill(numbers)
        if not self._config.planes.is_enabled:
            return
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        inputs = self._stacked(
            frames, "grey", "prior.depth", "depth", "confirmed", "is_confirmed", "anchor", "anchor_weight"
        )

        def flat(grey: Array, prior: Array, depth: Array, own: Array, *rest: Array) -> tuple[Array, ...]:
            is_confirmed, *anchors = rest
            error = arrays.where(own > 0, arrays.log(arrays.maximum(own, 1e-9) / prior), 0.0)
            plane = flattened(arrays, grey, depth, error, Anchors(*anchors), self._config)
            return (arrays.where(is_confirmed, depth, plane),)

        (depth,) = arrays.batched(("flat", self._config), flat, *inputs)
        for frame, values in zip(frames, depth, strict=True):
            frame.depth = values

    def _output(self, numbers: Sequence[int]) -> list[DenseDepth]:
        arrays, frames = self._arrays, [self._frames[number] for number in numbers]
        depth, is_confirmed, is_valid, is_contradicted = self._stacked(
            frames, "depth", "is_confirmed", "prior.is_valid", "is_contradicted"
        )
        certainty = arrays.where(is_confirmed, float(Certainty.CONFIRMED), float(Certainty.NETWORK))
        near = arrays.box(arrays.to_float(is_confirmed), self._config.near_pixels) > 0
        certainty = arrays.where(near & ~is_confirmed, float(Certainty.NEAR), certainty)
        known = is_valid & ~is_contradicted if self._config.free_space.is_enabled else is_valid
        if any(frame.view.is_guess is not None for frame in frames):
            views = [frame.view for frame in frames]
            guesses = [np.zeros(v.prior.shape) if v.is_guess is None else v.is_guess for v in views]
            guess = arrays.array(np.array(guesses, np.float32))
            known = known & (is_confirmed | (arrays.repeated(guess, (depth.shape[-1], depth.shape[-2])) < 0.5))
        depths = arrays.numpy(arrays.where(known, depth, 0.0)).astype(np.float32)
        certainties = arrays.numpy(arrays.where(known, certainty, float(Certainty.NONE))).astype(np.uint8)
        indices = [frame.view.index for frame in frames]
        return [DenseDepth(*values) for values in zip(indices, depths, certainties, strict=True)]


def arrays_for(device: str) -> Arrays:
    """The backend of a device: ``cpu``, ``cuda``, or ``auto``, a GPU where there is one."""
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return NumpyArrays()
    from stream_recon.app.slam.dense.torch_arrays import TorchArrays

    return TorchArrays(device)
