"""Refinement of a finished video: from the network's poses and depth to poses, lens, depth scales and sparse points.

Keyframes are matched with their neighbours, with what else should see the same, and with what looks alike; the tracks
are adjusted in two passes, the second one matched anew where the first one says; all other frames follow.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mapping import between, fit, graph, judgement, pairs, skeleton
from stream_recon.app.mapping.features import Features, detect
from stream_recon.app.mapping.fit import Fit
from stream_recon.app.mapping.following import fit_frame, points_of_keyframes
from stream_recon.app.mapping.handover import Known
from stream_recon.app.mapping.keyframes import choose_keyframes
from stream_recon.app.mapping.levenberg import SingularError
from stream_recon.app.mapping.outcome import Refinement, Report, Sketch
from stream_recon.app.mapping.pairs import held_out
from stream_recon.app.mapping.problem import Lens, Priors, RelativePoses
from stream_recon.app.mapping.retrieval import likeness
from stream_recon.app.mapping.tracks import build_tracks
from stream_recon.app.mapping.views import DepthReader, Scale, View

logger = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
Grey = NDArray[np.uint8]

MIN_KEYFRAMES = 3
MIN_OBSERVATIONS = 100
AGREEING = 0.6
"""Where less than this share of the matches can be explained from a start, another one is tried."""
BENT, GAIN = 0.85, 0.03
"""Below this share a radial term is tried, and kept if it explains so much more."""
LOOSE_K1_SIGMA = 0.1
MOST_FOCAL = 0.45
"""By so much the log of the focal length may leave the network's; it was at most .27 off where truth was known."""
DEPTH_SCALE_SIGMA = 0.1
FREE_DEPTH_SCALE_SIGMA = 0.5
"""After a start from matches: each keyframe's depth map may have a unit of its own."""


class Images(Protocol):
    """Where the working images and depth maps come from."""

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, Grey, DepthReader]]:
        """Those of some frames, by their ascending positions in the result; a frame that cannot be read is left out."""
        ...


Progress = Callable[[float, str], None]
"""Told the share that is done, and what is under way."""


def refine(
    views: Sequence[View],
    images: Images,
    scale: Scale,
    progress: Progress = lambda share, what: None,
    workers: int = 2,
    known: Known | None = None,
    on_sketch: Callable[[Sketch], None] | None = None,
    known_lens: bool = False,
) -> Refinement:
    """Refine a whole result.

    Args:
        views: every frame, in order.
        scale: of the working images.
        known: where the stream has left off; None: all is done here.
        on_sketch: told where everything is after each pass.
        known_lens: the views' focal length is right, and nothing is bent.
    """
    refiner = _Refiner(views, images, scale, progress, workers, known, on_sketch, known_lens)
    try:
        return refiner.run()
    except (SingularError, np.linalg.LinAlgError, cv2.error) as error:
        # A result that is complete must not be lost for want of a better one.
        logger.exception("refinement")
        return refiner.unchanged(f"the refinement failed: {error}")


class _Refiner:
    def __init__(
        self,
        views: Sequence[View],
        images: Images,
        scale: Scale,
        progress: Progress,
        workers: int,
        known: Known | None,
        on_sketch: Callable[[Sketch], None] | None,
        known_lens: bool,
    ) -> None:
        self._views, self._images, self._scale, self._workers = views, images, scale, workers
        self._known, self._on_sketch, self._known_lens = known, on_sketch, known_lens
        self._progress = progress
        self._report = Report()
        self._keyframes: list[int] = []
        focal = float(np.median([view.focal for view in views]))
        self._lens = Lens(focal, scale.size[0] / 2, scale.size[1] / 2)
        self._T_network = np.array([view.T_world_camera for view in views])
        self._report.focal_before = focal / scale.factor

    def run(self) -> Refinement:
        with self._stage("keyframes"):
            known = self._known
            self._keyframes = known.keyframes if known else choose_keyframes(self._views, self._scale.size)
        with self._stage("features"):
            self._features = known.features if known else self._detected()
        self._kept = [self._views[k] for k in self._keyframes]
        self._T_keyframes = self._T_network[self._keyframes]
        report = self._report
        report.keyframes, report.features = len(self._keyframes), sum(len(f) for f in self._features)
        if len(self._keyframes) < MIN_KEYFRAMES:
            return self.unchanged("too few keyframes")
        with self._stage("matches"):
            first = self._matched(self._kept, self._features, self._lens)
        with self._stage("adjustment"):
            fitted = self._first_pass(first)
        if fitted is None:
            return self.unchanged("too few matches")
        self._sketch(fitted, first)
        with self._stage("judgement"):
            left = self._judged(fitted, first)
        if left.all():
            return self.unchanged("held-out matches agree better with the network")
        with self._stage("adjustment again"):
            fitted = self._second_pass(fitted, first, left)
        self._sketch(fitted, first)
        with self._stage("frames between"):
            return self._completed(fitted, first)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begun = time.monotonic()
        self._progress(STAGES[name], name)
        yield
        self._report.seconds[name] = round(time.monotonic() - begun, 3)

    def _detected(self) -> list[Features]:
        from concurrent.futures import ThreadPoolExecutor

        empty = Features(np.zeros((0, 2), np.float32), np.zeros((0, 128), np.float32), np.zeros(0, np.float32))
        place = {position: k for k, position in enumerate(self._keyframes)}
        found = [empty] * len(self._keyframes)
        with ThreadPoolExecutor(self._workers) as pool:
            waiting = []
            for position, grey, reader in self._images.read(self._keyframes):
                waiting.append((place[position], pool.submit(detect, grey, reader)))
                # Decoding must not run ahead: images are large.
                while len(waiting) > 2 * self._workers:
                    k, future = waiting.pop(0)
                    found[k] = future.result()
                    self._progress(_between("features", k / len(found)), "features")
            for k, future in waiting:
                found[k] = future.result()
        return found

    def _matched(self, views: Sequence[View], features: Sequence[Features], lens: Lens) -> pairs.PairMatches:
        wanted = pairs.candidates(views, lens, likeness(features))
        known = self._known.matches if self._known else {}
        wanted = [pair for pair in wanted if (pair.first, pair.second) not in known]
        found = pairs.match_pairs(views, features, lens, wanted, self._workers, self._counter("matches", len(wanted)))
        found.tried += len(known)
        found.matches.update({pair: m for pair, m in known.items() if len(m)})
        found.held_out.update(self._known.held_out if self._known else {})
        far = {pair: found.matches[pair] for pair in found.loops}
        edges = graph.match_edges(features, lens, far)
        wrong = (far.keys() - edges.keys()) | graph.implausible(self._T_keyframes, edges)
        near = {pair: m for pair, m in found.matches.items() if pair not in found.loops}
        wrong |= graph.contradicting(views, features, lens, near)
        for pair in wrong:
            del found.matches[pair]
        found.loops -= wrong
        self._report.pairs_tried, self._report.pairs_accepted = found.tried, len(found.matches)
        self._report.loops = len(found.loops)
        return found

    def _counter(self, stage: str, total: int) -> Callable[[], None]:
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            self._progress(_between(stage, done / max(total, 1)), stage)

        return advance

    def _first_pass(self, found: pairs.PairMatches) -> Fit | None:
        fitted_to = {
            (i, j): m[~(held_out(self._features[i])[m[:, 0]] | held_out(self._features[j])[m[:, 1]])]
            for (i, j), m in found.matches.items()
        }
        tracks = build_tracks([len(f) for f in self._features], fitted_to)
        if len(tracks.track) < MIN_OBSERVATIONS:
            return None
        T = self._known.T_world_camera if self._known else None
        start = fit.start(self._T_keyframes if T is None else T, self._lens, self._features, tracks)
        self._report.reprojection_px_before = float(np.median(start.errors))
        steps = fit.network_steps(self._T_keyframes)
        rounds = fit.WIDE + fit.FINE if found.loops else fit.NARROWING
        self._free_focal = True
        self._priors = Priors(
            focal=self._lens.focal,
            log_depth_scale_sigma=DEPTH_SCALE_SIGMA,
            known_lens=self._known_lens,
            **fit.PRIORS,
        )
        fitted = skeleton.narrow(start, steps, rounds, self._priors)
        if abs(np.log(fitted.scene.lens.focal / self._lens.focal)) > MOST_FOCAL:
            # What moves by itself, or a motion that says nothing of the lens.
            self._free_focal = False
            fitted = skeleton.narrow(start, steps, rounds, self._priors, free_focal=False)
        share = len(fitted.observations) / len(tracks.track)
        self.shares = {"network": share}
        if share < BENT and not self._known_lens and self._bends(start, fitted, steps):
            # Perhaps the lens is bent more than its prior allows for.
            loose = replace(self._priors, k1_sigma=LOOSE_K1_SIGMA)
            bent = skeleton.narrow(start, steps, fit.NARROWING, loose, free_focal=self._free_focal)
            if len(bent.observations) > (share + GAIN) * len(tracks.track):
                share = len(bent.observations) / len(tracks.track)
                self.shares["bent"] = share
                self._priors, fitted = loose, bent
        if share < AGREEING:
            edges = graph.match_edges(self._features, self._lens, found.matches)
            depths = np.array([_usual_depth(view) for view in self._kept])
            T, log_scale = graph.graph_start(self._T_keyframes, edges, depths)
            priors = replace(self._priors, log_depth_scale_sigma=FREE_DEPTH_SCALE_SIGMA)
            other = fit.start(T, self._lens, self._features, tracks, log_scale)
            other = skeleton.narrow(other, None, fit.WIDE + fit.FINE, priors)
            self.shares["matches"] = len(other.observations) / len(tracks.track)
            if self.shares["matches"] > share:
                self._report.start, self._priors, fitted = "matches", priors, other
        return fitted

    def _bends(self, start: Fit, fitted: Fit, steps: RelativePoses) -> bool:
        """Whether it is worth a try: where there is a skeleton, what a loose prior explains of it says so."""
        bones = skeleton.bones(len(self._keyframes))
        if len(bones) == len(self._keyframes):
            return True
        # From where the keyframes are by now, with all observations.
        scene = replace(fitted.scene, points=start.scene.points)
        scene = replace(scene, points=fit.placed(scene, start.observations))
        trial = skeleton.part(fit.triangulated(fit.measured(scene, start.observations, start.feature)), bones)
        rounds = (fit.Round(6, None, free_k1=True), *fit.FINE)
        tight, bent = (
            fit.narrow(trial, skeleton.joined(steps, bones), rounds, priors, free_focal=self._free_focal)
            for priors in (self._priors, replace(self._priors, k1_sigma=LOOSE_K1_SIGMA))
        )
        return len(bent.observations) > len(tight.observations) + GAIN * len(trial.observations)

    def _judged(self, fitted: Fit, found: pairs.PairMatches) -> NDArray[np.bool_]:
        """[keyframes] those that are left to the network."""
        ones = np.ones(len(self._keyframes))
        network = judgement.Side(self._T_keyframes, self._lens, ones)
        scales = self._scales(fitted)
        mapped = judgement.Side(fitted.scene.T_world_camera, fitted.scene.lens, scales)
        sides = [judgement.disagreement(side, self._features, found.held_out) for side in (network, mapped)]
        means = [float(np.mean([e.mean() for e in side.values()])) if side else 1.0 for side in sides]
        self.means = [np.mean(list(s.values()), axis=0) if s else None for s in sides]
        self._report.disagreement_before, self._report.disagreement = (round(m, 4) for m in means)
        worse = judgement.worse_keyframes(sides[1], sides[0], len(self._keyframes))
        return np.ones_like(worse) if means[1] > means[0] else worse

    def _scales(self, fitted: Fit) -> FloatArray:
        positions = range(len(self._keyframes))
        scales = fit.depth_scales(fitted, len(self._keyframes))
        fallback = fitted.scene.log_depth_scale
        if fallback is not None:
            scales = np.where(np.isfinite(scales), scales, np.exp(fallback))
        return between.interpolated(positions, scales, len(self._keyframes))

    def _second_pass(self, fitted: Fit, found: pairs.PairMatches, left: NDArray[np.bool_]) -> Fit:
        """With the features that were held out, without keyframes that are left to the network."""
        usable = {pair: m for pair, m in found.matches.items() if not left[list(pair)].any()}
        tracks = build_tracks([len(f) for f in self._features], usable)
        scene = fitted.scene
        start = fit.start(scene.T_world_camera, scene.lens, self._features, tracks, scene.log_depth_scale)
        start = fit.triangulated(start)
        steps = None if self._report.start == "matches" else fit.network_steps(self._T_keyframes)
        return skeleton.narrow(start, steps, fit.LAST, self._priors, free_focal=self._free_focal)

    def _completed(self, fitted: Fit, found: pairs.PairMatches) -> Refinement:
        """Frames between keyframes, and every frame's depth scale."""
        T, depth_scale = self._carried(fitted)
        count = len(self._views)
        if len(self._keyframes) < count:
            self._follow(fitted, T, depth_scale)
        report, lens = self._report, fitted.scene.lens
        report.tracks, report.observations = len(fitted.scene.points), len(fitted.observations)
        report.reprojection_px = float(np.median(fitted.errors)) if len(fitted.errors) else None
        report.focal, report.k1 = lens.focal / self._scale.factor, lens.k1
        loops = sorted(found.loops)
        return Refinement(T, depth_scale, lens, self._scale, self._keyframes, fitted, loops, report)

    def _carried(self, fitted: Fit) -> tuple[FloatArray, FloatArray]:
        """Poses [N, 4, 4] and depth scales [N] of all frames, those between keyframes carried along."""
        scales = self._scales(fitted)
        positions, count = np.array(self._keyframes), len(self._views)
        carrier = between.Carrier(positions, self._T_network, fitted.scene.T_world_camera, scales)
        T = np.array([carrier.pose(frame) for frame in range(count)])
        return T, between.interpolated(self._keyframes, scales, count)

    def _sketch(self, fitted: Fit, found: pairs.PairMatches) -> None:
        if self._on_sketch is not None:
            loops = [(self._keyframes[i], self._keyframes[j]) for i, j in sorted(found.loops)]
            scene = fitted.scene
            self._on_sketch(Sketch(*self._carried(fitted), scene.lens, scene.points, loops))

    def _follow(self, fitted: Fit, T: FloatArray, depth_scale: FloatArray) -> None:
        """Fit each frame between to the points of the keyframes on either side; changes ``T`` and ``depth_scale``."""
        points = points_of_keyframes(fitted, self._features, len(self._keyframes))
        place = {position: k for k, position in enumerate(self._keyframes)}
        waiting: list[tuple[int, Grey, DepthReader]] = []
        left: tuple[int, Grey] | None = None
        count = len(self._views)
        for position, grey, reader in self._images.read(range(count)):
            self._progress(_between("frames between", position / count), "frames between")
            if position not in place:
                waiting.append((position, grey, reader))
                continue
            right = (place[position], grey)
            for frame, image, depth in waiting:
                sides = [points[k] + (g,) for k, g in ((left, right) if left else (right,))]
                fit_frame(fitted, frame, image, depth, sides, T, depth_scale)
            left, waiting = right, []

    def unchanged(self, why: str) -> Refinement:
        """Everything as the network has it."""
        count = len(self._views)
        self._report.left_to_network.append({"first": self._views[0].index, "last": self._views[-1].index, "why": why})
        return Refinement(
            self._T_network, np.ones(count), self._lens, self._scale, self._keyframes, None, [], self._report
        )


STAGES = {
    "keyframes": 0.0,
    "features": 0.02,
    "matches": 0.3,
    "adjustment": 0.5,
    "judgement": 0.68,
    "adjustment again": 0.7,
    "frames between": 0.85,
}
"""Which share of the time is usually over when a stage begins."""


def _between(stage: str, share: float) -> float:
    names = list(STAGES)
    begin = STAGES[stage]
    after = names.index(stage) + 1
    end = STAGES[names[after]] if after < len(names) else 1.0
    return begin + share * (end - begin)


def _usual_depth(view: View) -> float:
    _, z = view.grid.pixels()
    return float(np.median(z)) if len(z) else 1.0
