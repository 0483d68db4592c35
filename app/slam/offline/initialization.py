"""Initial candidates of a refinement, each adjusted: from the network's or the online poses, from structure from
motion, or with another camera model. `attempts` chooses between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity, invert_pose
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.problem import BAScene, FloatArray, Mask, Observations, Priors, RelativePoses, rows_by
from stream_recon.app.slam.ba.robust_ba import ADJUSTMENT, AdjustmentConfig, BAState, SolveOptions
from stream_recon.app.slam.evidence.depth_scales import keyframe_depth_scales
from stream_recon.app.slam.matching import relative_poses
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches, Tracks
from stream_recon.app.slam.matching.relative_poses import Edge
from stream_recon.app.slam.offline import camera_model_selection, hierarchical_ba
from stream_recon.app.slam.offline.all_frames import PoseInterpolator
from stream_recon.app.slam.offline.camera_model_selection import DISTORTION, CameraModelFit, DistortionConfig
from stream_recon.app.slam.offline.hierarchical_ba import HIERARCHY, HierarchyConfig
from stream_recon.app.slam.offline.incremental_sfm import Reconstruction
from stream_recon.app.slam.offline.report import InitialPoses


@dataclass(frozen=True)
class StartConfig:
    """From where keyframes are adjusted, and with which priors."""

    min_explained: float = 0.7
    """Share of observations explained from the given poses, below which structure from motion is tried."""
    closed_gap: float = 1 / 40
    """Median reprojection error of a closed loop's matches, as a share of the longer side; depth alone causes some."""
    open_gap: float = 1 / 12
    """The same of an open loop."""
    max_open_share: float = 0.25
    """Share of the loops that may have small gaps."""
    still: float = 0.003
    """Translation, as a share of the depth, below which tracks have no parallax and the network's translation is
    used."""
    max_probed: int = 30
    """Keyframes by which the lens is chosen; bounds the time."""
    depth_scale_sigma: float = 0.1
    """Of log depth scales about the network's common scale."""
    free_depth_scale_sigma: float = 0.5
    """Of log depth scales after structure from motion, where each depth map may have another scale."""
    sure_focal: float = 0.01
    """Relative error of the focal length by the matches up to which it may be far from the network's: 0.001 on
    turntables, 0.027 to 0.16 where a map follows a moving object."""
    same_focal: float = 0.02
    """Relative difference of focal lengths that is too small for another adjustment."""
    squared_loss_scale: float = 100.0
    """Scale of a loss, in sigmas, that is squared for all errors that occur."""
    min_depths: int = 10
    """Least number of points of a keyframe from which its depth scale is taken."""
    min_shared: int = 12
    """Least number of points that tie a keyframe to others that see them."""
    adjustment: AdjustmentConfig = ADJUSTMENT
    hierarchy: HierarchyConfig = HIERARCHY
    distortion: DistortionConfig = DISTORTION


START = StartConfig()


AFTER_SFM_ROUNDS = (robust_ba.BARound(6, 20), *robust_ba.FINE_ROUNDS)
"""Rounds from structure from motion, whose poses are nearly exact."""

Start = Literal["network", "stream", "matches"]


@dataclass(frozen=True)
class InitialCandidate:
    """Adjusted candidate."""

    start: Start
    fit: BAState
    priors: Priors
    motions: RelativePoses | None
    """The network's motions, if they were used as priors."""
    free_focal: bool
    share: float
    """Share of the observations that the fit explains."""
    untied: Mask | None = None
    """[N], keyframes that no matches tie to the others; None: none."""


@dataclass(frozen=True)
class Initializer:
    """Data of all candidates, and their computation."""

    T_network: FloatArray  # [N, 4, 4], of the keyframes
    camera_model: CameraModel
    features: Sequence[Features]
    tracks: Tracks
    loops: Mapping[tuple[int, int], Matches]
    """Matches of keyframes far apart in time, over which the network may have drifted."""
    known_intrinsics: bool = False
    segment: Sequence[int] | None = None
    """[N], segment of each keyframe; None: one."""
    online: InitialPoses | None = None
    """Online poses of the keyframes, approximately in the network's world and scale."""
    fixed: bool = False
    """The poses stay as they are, and depth follows them."""
    config: StartConfig = START
    ties: RelativePoses | None = None
    """What holds the views of a rig together; None: one camera."""

    @property
    def before_px(self) -> float:
        """Median reprojection error of the network's poses and depth."""
        return float(np.median(self._network.errors))

    @property
    def from_online(self) -> bool:
        """Whether it starts from the online poses."""
        return self._initial is not self._network

    def from_poses(self) -> InitialCandidate:
        """Candidate from the network's or the online poses, without radial distortion."""
        priors = self._priors(self.camera_model, self.config.depth_scale_sigma)
        name: Start = "stream" if self.from_online else "network"
        return self._adjusted(name, self._initial, self.network_motions(), self._rounds, priors)

    def camera_model_choice(
        self, candidate: InitialCandidate, held_out: camera_model_selection.Held
    ) -> Callable[[], CameraModelFit | None]:
        """Function that chooses the lens of a candidate; another process may call it.

        ``held_out``: matches of features that the candidate was not fitted to.
        """
        start = self._state(self._begin(candidate), replace(candidate.fit.scene.camera_model, k1=0.0))
        part = _part(held_out, len(self.features), self.config)
        return partial(
            camera_model_selection.best_camera_model,
            hierarchical_ba.subset(start, part),
            hierarchical_ba.composed(candidate.motions, part, self.config.hierarchy),
            candidate.priors,
            (round(2 * self.camera_model.cx), round(2 * self.camera_model.cy)),
            self.config.distortion,
        )

    def with_camera_model(self, candidate: InitialCandidate, best: CameraModelFit) -> InitialCandidate | None:
        """Candidate with the lens that was chosen; None: about that of the candidate."""
        begin, camera_model, config = self._begin(candidate), best.state.scene.camera_model, self.config
        if best.priors.k1_sigma == candidate.priors.k1_sigma:
            change = abs(float(np.log(camera_model.focal / candidate.fit.scene.camera_model.focal)))
            error = camera_model_selection.focal_error(best.state, best.priors, config.distortion)
            if error is None or error > config.distortion.max_focal_error or change < config.same_focal + 2 * error:
                return None
        own, priors = replace(self, camera_model=camera_model), best.priors
        if candidate.start != "matches":
            # Far from the solution, the focal length would follow errors of the poses.
            fixed = SolveOptions(free_focal=False)
            rounds = [r for r in self._rounds if r not in robust_ba.FINE_ROUNDS]
            begin = self._solve(self._state(begin, camera_model), candidate.motions, rounds, priors, fixed).scene
        start = robust_ba.retriangulated(self._state(begin, camera_model))
        fitted = own._adjusted(candidate.start, start, candidate.motions, AFTER_SFM_ROUNDS, priors)
        return replace(fitted, untied=candidate.untied)

    def _begin(self, candidate: InitialCandidate) -> BAScene:
        """The scene from which another lens is tried."""
        return candidate.fit.scene if candidate.start == "matches" else self._initial.scene

    def with_motions(
        self, candidate: InitialCandidate, motions: RelativePoses, least_px: float = 0.0
    ) -> InitialCandidate:
        """A candidate adjusted once more, from the network's or the online poses, with priors of known motions.

        These poses are taken for nearly right: matches that contradict them are wrong, or of something that moves. The
        candidate's motions are those that weigh as much next to observations of their own standard deviation, of
        ``least_px`` at least.
        """
        scene = candidate.fit.scene
        priors = replace(candidate.priors, relative_loss_scale=self.config.squared_loss_scale)
        start = self.state_of(replace(scene, T_world_camera=self._initial.scene.T_world_camera))
        fit = self._solve(start, motions, AFTER_SFM_ROUNDS, priors, SolveOptions(candidate.free_focal))
        share = len(fit.observations) / max(len(self.tracks.track), 1)
        sigma = min(max(float(np.sqrt(robust_ba.variance(fit, self.config.adjustment))), least_px), 1.0)
        rotation, translation = motions.rotation_sigma / sigma, motions.translation_sigma / sigma
        weighed = replace(motions, rotation_sigma=rotation, translation_sigma=translation)
        return replace(candidate, fit=fit, motions=weighed, share=share)

    def state_of(self, scene: BAScene) -> BAState:
        """State of all tracks, triangulated, with a scene's poses, lens and depth scales."""
        return robust_ba.retriangulated(self._state(scene, scene.camera_model))

    def _state(self, scene: BAScene, camera_model: CameraModel) -> BAState:
        """State of all tracks with a scene's poses and depth scales, and a lens."""
        return initial_state(scene.T_world_camera, camera_model, self.features, self.tracks, scene.log_depth_scale)

    def from_reconstruction(
        self, reconstruction: Reconstruction, matches: Mapping[tuple[int, int], Matches], T_otherwise: FloatArray
    ) -> InitialCandidate:
        """Candidate from structure from motion, onto whose points the network's depth maps are scaled.

        Keyframes that are not registered follow ``matches`` with depth, or else ``T_otherwise`` [N, 4, 4].
        """
        registered, camera_model = reconstruction.registered, reconstruction.camera_model
        loose = {pair: m for pair, m in matches.items() if not registered[list(pair)].all()}
        edges = relative_poses.estimate_relative_poses(self.features, camera_model, loose)
        aligned = depth_aligned(reconstruction, self.features, edges, T_otherwise, self.config)
        log_scale = np.log(aligned.depth_scale)
        start = initial_state(aligned.T_world_camera, camera_model, self.features, self.tracks, log_scale)
        priors = self._priors(camera_model, self.config.free_depth_scale_sigma)
        # Where matches give no pose, the network's motion is all there is.
        motions = self.network_motions()
        free = ~registered[motions.first] | ~registered[motions.second]
        own = replace(self, camera_model=camera_model)
        fit = own._adjusted("matches", robust_ba.retriangulated(start), motions.take(free), AFTER_SFM_ROUNDS, priors)
        tied = registered.copy()
        tied[[k for pair in edges for k in pair]] = True
        return replace(fit, untied=~tied_by_points(fit.fit.observations, tied, self.config.min_shared))

    def _priors(self, camera_model: CameraModel, log_depth_scale_sigma: float) -> Priors:
        return robust_ba.first_pass_priors(
            camera_model.focal, log_depth_scale_sigma, self.known_intrinsics, self.config.adjustment
        )

    def _solve(
        self,
        start: BAState,
        motions: RelativePoses | None,
        rounds: Sequence[robust_ba.BARound],
        priors: Priors,
        options: SolveOptions | None = None,
    ) -> BAState:
        if self.fixed:
            return solve_fixed(start, rounds, priors, options)
        return hierarchical_ba.solve(start, motions, rounds, priors, options, self.config.hierarchy)

    @property
    def _rounds(self) -> Sequence[robust_ba.BARound]:
        if self.from_online:
            gaps = self._gaps(self._initial.scene)
            if (gaps < self.config.closed_gap).all():
                return robust_ba.CLOSED_LOOP_ROUNDS + robust_ba.FINE_ROUNDS
            if (gaps < self.config.open_gap).all() and (
                gaps >= self.config.closed_gap
            ).mean() <= self.config.max_open_share:
                return robust_ba.SMALL_GAP_ROUNDS + robust_ba.FINE_ROUNDS
        return robust_ba.OPEN_LOOP_ROUNDS + robust_ba.FINE_ROUNDS if self.loops else robust_ba.STANDARD_ROUNDS

    def _gaps(self, scene: BAScene) -> FloatArray:
        """Median reprojection errors of the loops' matches, as shares of the longer side."""
        assert scene.log_depth_scale is not None
        T, scale, camera_model = scene.T_world_camera, np.exp(scene.log_depth_scale), scene.camera_model
        errors = relative_poses.reprojection_errors_px(T, scale, camera_model, self.features, self.loops)
        return np.array(list(errors.values())) / camera_model.longer_side

    @cached_property
    def _network(self) -> BAState:
        return initial_state(self.T_network, self.camera_model, self.features, self.tracks)

    @cached_property
    def _initial(self) -> BAState:
        """State of the online poses if their error is smaller, else of the network's."""
        online = self.online
        if online is None:
            return self._network
        camera_model, scale = replace(self.camera_model, focal=online.focal), np.log(online.depth_scale)
        state = initial_state(online.T_world_camera, camera_model, self.features, self.tracks, scale)
        return state if np.median(state.errors) < self.before_px else self._network

    def network_motions(self) -> RelativePoses:
        """The network's motions from keyframe to keyframe, as weak priors; and what holds the views of a rig."""
        motions = replace(
            robust_ba.network_motion_priors(self.T_network, self.segment, self.config.adjustment),
            still=self.config.still,
        )
        return motions if self.ties is None else motions.joined(self.ties)

    def _adjusted(
        self,
        name: Start,
        start: BAState,
        motions: RelativePoses | None,
        rounds: Sequence[robust_ba.BARound],
        priors: Priors,
    ) -> InitialCandidate:
        fit, free = self._solve(start, motions, rounds, priors), True
        if self._is_implausible(fit, priors):
            # A moving object, or a motion that does not determine the focal length.
            start = replace(start, scene=replace(start.scene, camera_model=self.camera_model))
            options = SolveOptions(free_focal=False)
            fit, free = self._solve(start, motions, rounds, priors, options), False
        share = len(fit.observations) / max(len(self.tracks.track), 1)
        return InitialCandidate(name, fit, priors, motions, free, share)

    def _is_implausible(self, fit: BAState, priors: Priors) -> bool:
        """Whether the focal length is far from the network's without the matches determining it."""
        change = abs(np.log(fit.scene.camera_model.focal / self.camera_model.focal))
        if change <= self.config.adjustment.max_focal_change:
            return False
        error = camera_model_selection.focal_error(fit, priors, self.config.distortion)
        return error is None or error > self.config.sure_focal


def solve_fixed(
    start: BAState, rounds: Sequence[robust_ba.BARound], priors: Priors, options: SolveOptions | None = None
) -> BAState:
    """State after rounds that leave all poses as they are; the depth scales follow the points."""
    count = len(start.scene.T_world_camera)
    options = replace(options or SolveOptions(), fixed=np.ones(count, bool))
    fit = robust_ba.solve(robust_ba.retriangulated(start), None, rounds, priors, options)
    log_scale = np.log(keyframe_depth_scales(fit, count))
    return replace(fit, scene=replace(fit.scene, log_depth_scale=log_scale))


def tied_by_points(observations: Observations, tied: Mask, least: int) -> Mask:
    """Mask [N] of tied keyframes with those that see ``least`` of their points, and those that see these, and so on."""
    while True:
        is_seen = np.isin(observations.point, observations.point[tied[observations.camera]])
        more = tied | (np.bincount(observations.camera[is_seen], minlength=len(tied)) >= least)
        if (more == tied).all():
            return tied
        tied = more


def _part(held_out: camera_model_selection.Held, count: int, config: StartConfig) -> NDArray[np.intp]:
    """Indices, ascending, of at most `max_probed` of ``count`` keyframes that share many matches, from the middle
    on."""
    shared = np.zeros((count, count), np.int64)
    for (i, j), matches in held_out.items():
        shared[i, j] = shared[j, i] = len(matches)
    chosen = np.zeros(count, bool)
    chosen[count // 2] = True
    while chosen.sum() < min(config.max_probed, count):
        links = np.where(chosen, -1, shared[chosen].sum(axis=0))
        chosen[int(links.argmax())] = True
    return np.flatnonzero(chosen)


def initial_state(
    T_world_camera: FloatArray,
    camera_model: CameraModel,
    features: Sequence[Features],
    tracks: Tracks,
    log_depth_scale: FloatArray | None = None,
) -> BAState:
    """State before any adjustment; each point is the mean of its positions by its keyframes' depth maps."""
    scale = np.zeros(len(T_world_camera)) if log_depth_scale is None else log_depth_scale
    uv = np.concatenate([f.uv for f in features]).astype(np.float64)
    depth = np.concatenate([f.z for f in features]).astype(np.float64)
    starts = np.cumsum([0, *(len(f) for f in features)])
    at = starts[tracks.keyframe] + tracks.feature
    observations = Observations(tracks.keyframe, tracks.track, uv[at], depth=np.maximum(depth[at], 0.0))
    scene = BAScene(T_world_camera, np.zeros((len(tracks), 3)), camera_model, scale)
    return robust_ba.from_depth(scene, observations, tracks.feature)


def depth_aligned(
    reconstruction: Reconstruction,
    features: Sequence[Features],
    edges: Mapping[tuple[int, int], Edge],
    T_otherwise: FloatArray,
    config: StartConfig = START,
) -> InitialPoses:
    """Poses of all keyframes in the network's unit, and scales of their depth maps.

    The first registered keyframe gets its pose of ``T_otherwise`` [N, 4, 4]. Keyframes that are not registered follow
    ``edges`` from those that are, or these poses between them.
    """
    observations, registered = reconstruction.observations, np.flatnonzero(reconstruction.registered)
    inverse = invert_pose(reconstruction.T_world_camera)[observations.camera]
    depth = np.einsum("nj,nj->n", inverse[:, 2, :3], reconstruction.points[observations.point]) + inverse[:, 2, 3]
    log_scale = np.full(len(features), np.nan)
    for k, rows in enumerate(rows_by(observations.camera, len(features))):
        z = features[k].z[reconstruction.feature[rows]].astype(np.float64)
        usable = (z > 0) & (depth[rows] > 0)
        if usable.sum() >= config.min_depths:
            log_scale[k] = np.median(np.log(depth[rows][usable] / z[usable]))
    common = float(np.nanmedian(log_scale)) if np.isfinite(log_scale).any() else 0.0
    scale = np.exp(np.nan_to_num(log_scale - common))
    first = int(registered[0])
    T = invert_pose(reconstruction.T_world_camera[first]) @ reconstruction.T_world_camera
    T[:, :3, 3] *= np.exp(-common)
    T = T_otherwise[first] @ T
    has_pose = _followed(edges, reconstruction.registered, T, scale)
    known = np.flatnonzero(has_pose)
    interpolator = PoseInterpolator(known, T_otherwise, T[known], scale[known], np.zeros(len(features), np.intp))
    for k in np.flatnonzero(~has_pose).tolist():
        T[k] = interpolator.pose(k)
    return InitialPoses(T, scale, reconstruction.camera_model.focal)


def _followed(
    edges: Mapping[tuple[int, int], Edge], registered: Mask, T_world_camera: FloatArray, scale: FloatArray
) -> Mask:
    """Mask [N] of keyframes with a pose after following edges, those of most inliers first; changes poses and scales.

    ``T_world_camera`` [N, 4, 4] and ``scale`` [N], of depth maps, are known at ``registered`` [N].
    """
    has_pose = registered.copy()
    while open_edges := [edge for edge in edges.values() if has_pose[edge.first] != has_pose[edge.second]]:
        edge = max(open_edges, key=lambda each: each.inliers)
        S, (source, target) = edge.S_first_second, (edge.first, edge.second)
        if has_pose[target]:
            S, source, target = np.asarray(np.linalg.inv(S), np.float64), target, source
        similarity = Similarity.of_matrix(T_world_camera[source] @ np.diag([scale[source]] * 3 + [1.0]) @ S)
        T_world_camera[target] = similarity.move_pose(np.eye(4))
        scale[target] = similarity.scale
        has_pose[target] = True
    return has_pose
