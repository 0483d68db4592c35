"""Tuned numbers of the online back end, a group for each mechanism.

A mechanism with ``is_enabled`` can be switched off alone. What a value was chosen by stands beside it.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from stream_recon.app.slam.ba.pose_only import LossSchedule
from stream_recon.app.slam.ba.problem import Priors
from stream_recon.app.slam.ba.robust_ba import ADJUSTMENT, AdjustmentConfig, BARound
from stream_recon.app.slam.matching.config import MatchingConfig


@dataclass(frozen=True)
class CornerConfig:
    """Corners of a keyframe."""

    count: int = 350
    """Tracks of a keyframe, if its image has enough corners; more cost time and improve poses little."""
    min_quality: float = 0.001
    """Corner response relative to the best one; small, or one rich texture would take all tracks."""
    candidates: int = 3
    """Ratio of detected corners to those kept, for an even distribution."""


@dataclass(frozen=True)
class DescriptorConfig:
    """Descriptors of keyframes, their matches with the last ones, and recovery of lost tracks by them."""

    count: int = 600
    """Features of a keyframe; with 400, errors at the end of the stream are a sixth larger."""
    is_enabled: bool = True
    """Whether keyframes are matched by descriptors. Their positions do not drift, as those that KLT follows do."""
    min_tracks: int = 60
    """Tracks of a new keyframe below which it is lost."""
    unguided: int = 2
    """Preceding keyframes that a lost frame is also matched with unguided, in case its predicted pose is wrong."""
    pnp: float = 1 / 96
    """Inlier distance of PnP, as a share of the longer side: depth errors of some percent move a projection by that."""
    min_inliers: int = 20
    """PnP inliers; fewer can agree by chance."""
    losses: LossSchedule = field(default=LossSchedule((20.0, 6.0, 2.0), 8, 1e-3))
    """Loss scales of the refinement after PnP, from its possible errors to those of tracks."""
    min_agreeing: float = 0.4
    """Share of inliers of a pose by PnP, unless it is odd."""
    odd_deg: float = 8.0
    """Rotation from the predicted pose from which a pose is odd."""
    odd_motion: float = 0.15
    """Distance from the predicted pose, as a share of the depth, from which a pose is odd."""
    min_odd_agreeing: float = 0.65
    """Share of inliers of an odd pose, since a large moving object supports one, too."""


@dataclass(frozen=True)
class TrackerConfig:
    """Front end: which frames become keyframes."""

    keyframe_step: float = 1 / 30
    """Image displacement between keyframes, as a share of the longer side."""
    min_tracked: float = 0.5
    """Share of points found in a frame below which it becomes a keyframe."""
    min_tracks: int = 30
    """Of a keyframe."""
    recent: int = 4
    """Newest keyframes whose images are kept. The last of them is matched with the others by descriptors: with three it
    is as accurate as with 6 or 12."""
    ratio_window: int = 6
    """Keyframes over which paths in the map and in the network's world are compared."""
    min_sharpness: float = 0.3
    """Sharpness relative to the recent median, below which a frame is not tracked."""
    sharpness_window: int = 15
    """Frames of that median."""
    point_px: float = 5.0
    """Distance of a map point's projection from its track, up to which a new keyframe takes the point."""


@dataclass(frozen=True)
class ResectioningConfig:
    """Pose of a frame from tracked points and the network's motion."""

    min_points: int = 25
    """Points of a pose: four for each unknown."""
    usual_quantile: float = 0.3
    """Quantile of the distances of points from their predictions; low, since most points may be on moving objects."""
    far_off: float = 3.0
    """Multiple of that quantile, plus ``allowance``, from which a point counts as moving."""
    allowance: float = 1 / 120
    """For errors of the prediction and noise, as a share of the longer side."""
    min_agreeing: float = 0.5
    """Share of tracked points that agree with a pose."""
    agreeing_px: float = 3.0
    """Reprojection error, in sigmas, up to which a point agrees."""
    losses: LossSchedule = field(default=LossSchedule((10.0, 3.0, 1.0), 8, 1e-3))
    """Loss scales from a predicted pose."""
    guessed_sigma: float = 1 / 120
    """Share of the longer side; of points that have only the network's depth."""
    dependent: float = 10.0
    """Divisor of the points' information, since errors of neighbouring points are correlated."""
    has_network_motion: bool = True
    """Whether the pose by points is combined with the network's motion since the keyframe."""
    rotation_sigma: float = float(np.radians(1.0))
    """Of that motion."""
    translation_sigma: float = 0.3
    """Of that motion, relative to its length."""
    min_motion: float = 0.005
    """Share of the depth; shorter motions have the sigma of this one."""


@dataclass(frozen=True)
class MapConfig:
    """Size of the map, and scales in it."""

    active: int = 150
    """Newest keyframes, which keep their tracks and can be adjusted; bounds memory and the time of global
    adjustment."""
    max_loop_ends: int = 300
    """Keyframes that keep loop tracks; bounds memory."""
    max_loop_tracks: int = 60
    """Loop tracks that a keyframe keeps when it drops the others; enough to constrain its pose."""
    max_fixed: int = 40
    """Inactive keyframes in a global adjustment: those with most loop tracks in common."""
    max_scale_ratio: float = 2.0
    """Deviation of the ratio of paths from the ratio of depths, in either direction."""


@dataclass(frozen=True)
class NetworkMotionConfig:
    """The network's motion between keyframes as a prior of adjustments."""

    is_enabled: bool = True
    firmer: float = 0.4
    """Factor of refinement's sigmas: online, fewer observations correct them."""


@dataclass(frozen=True)
class WindowConfig:
    """What local and global adjustments share."""

    min_observations: int = 60
    """Ten for each unknown of a pose."""
    max_point_px: float = 3.0
    """Reprojection error up to which a point is kept in the map."""
    is_robust: bool = True
    """Whether large errors count less and outliers are dropped."""
    priors: Priors = field(
        default=Priors(log_depth_scale_sigma=0.1, depth_sigma=ADJUSTMENT.depth_sigma, k1_sigma=ADJUSTMENT.k1_sigma)
    )
    """Priors without a focal length."""
    adjustment: AdjustmentConfig = ADJUSTMENT
    """Sigmas of the network's motion between keyframes, and the bound of the focal length."""
    focal_sigma: float = 0.1
    """Of the log of the network's focal length."""
    focal_share: float = 0.3
    """Share of the observations' information on the focal length that is used, since their errors are correlated."""
    still: float = 0.02
    """Motion that counts as noise, as a share of the depth."""
    max_scale_change: float = 1.3
    """Change of the map's scale in one alignment, so that output poses do not jump."""
    rotation_lever: float = 0.1
    """Weight of rotations in the alignment, as a lever in shares of the depth."""
    known_rounds: int = 0
    """Rounds of an alignment with the network's poses, which are known ones; 0: they are not."""
    max_known_error: float = 3.0
    """Distance of a known pose from the alignment, in medians of all, up to which it counts in the next round."""


@dataclass(frozen=True)
class LocalBAConfig:
    """Bundle adjustment of the latest keyframes."""

    is_enabled: bool = True
    window: int = 12
    """Keyframes in it."""
    free: int = 7
    """Newest keyframes of the window that move."""
    beginning: int = 6
    """First keyframes, at each of which it runs; later, at every other keyframe it is as accurate."""
    rounds: tuple[BARound, ...] = (BARound(5, None, 4, tolerance=3e-3), BARound(1.5, 6, 4, tolerance=3e-3))
    """From the map's points."""


@dataclass(frozen=True)
class GlobalBAConfig:
    """Bundle adjustment of the map while it grows."""

    is_enabled: bool = True
    first_keyframes: int = 4
    """Keyframes before the first adjustment: fewer show too little parallax."""
    focal_keyframes: int = 6
    """Keyframes that determine the focal length."""
    growth: float = 1.3
    """Ratio of keyframe numbers from one adjustment to the next, so that their total cost stays linear."""
    rounds: tuple[BARound, ...] = (BARound(3, 12, 4, tolerance=1e-2), BARound(1, 4, 5, tolerance=2e-3))
    """Errors of a growing map are small, and more iterations do not improve it."""
    delayed_from: int = 60
    """Keyframes from which a result is applied later, at a fixed keyframe, so that the stream need not wait for it."""
    delay: float = 0.1
    """Growth of the map until such a result is applied; about the time that the adjustment takes."""


@dataclass(frozen=True)
class FinalBAConfig:
    """Bundle adjustment at the end of a segment."""

    is_enabled: bool = True
    rounds: tuple[BARound, ...] = (
        BARound(10, None, 4, tolerance=1e-2),
        BARound(3, 12, 4, tolerance=1e-2),
        BARound(1, 4, 15, tolerance=1e-4),
    )


@dataclass(frozen=True)
class PlaceRecognitionConfig:
    """Keyframe database."""

    entry_spacing: float = 0.15
    """Image displacement between entries, as a share of the longer side."""
    max_entries: int = 150
    """Entries with features, which bounds memory; beyond it, those with the nearest neighbours are removed."""
    min_gap: int = 8
    """Keyframes between a query and its candidates; nearer ones share tracks anyway."""
    first_vocabulary: int = 5
    """Entries from which the vocabulary is learned first; it is learned again whenever their number doubles."""
    last_vocabulary: int = 80
    """Entries up to which the vocabulary is learned again; more change it little."""
    spacing: int = 2
    """Least spacing of candidates in entries, since neighbours give nearly the same matches."""
    max_queued: int = 2
    """Queries that wait before more of a live source are skipped."""


@dataclass(frozen=True)
class LoopConfig:
    """Loop closure."""

    is_enabled: bool = True
    delay: int = 6
    """Keyframes after which the result of a query or correction is applied, for a file."""
    same_deg: float = 5.0
    """Largest rotation between the corrections of two constraints that confirm each other."""
    same_scale: float = 1.25
    """Largest ratio of the scales of such corrections."""
    same_share: float = 0.3
    """Largest distance of the cameras after such corrections, as a share of the depth."""
    unconfirmed: int = 120
    """Keyframes for which a constraint waits for confirmation."""
    max_edges: int = 200
    """Loop constraints in the pose graph, and confirmed ones that wait for it; bounds time and memory."""
    max_steps: int = 400
    """Segments by which a path length is measured; bounds the time."""
    large_gap: float = 0.05
    """Loop gap, as a share of the depth, that is corrected at once."""
    growth: float = 1.1
    """Growth of the map until smaller gaps are corrected."""
    min_interval: int = 10
    """Least number of keyframes between two corrections."""
    rotation_sigma: float = float(np.radians(0.2))
    """Of the map between keyframes; grows with the square root of their number."""
    translation_sigma: float = 0.05
    """Of the map between keyframes, relative to the path; grows likewise."""
    still_sigma: float = 0.005
    """Of the map between keyframes, relative to the depth; grows likewise."""
    log_scale_sigma: float = 0.02
    """Of the map's scale between keyframes; grows likewise."""
    loop_rotation_sigma: float = float(np.radians(1.0))
    """Of a loop constraint with 100 inliers."""
    loop_translation_sigma: float = 0.05
    """Of a loop constraint with 100 inliers, relative to the depth; also of its log scale."""
    loss_scales: tuple[float, ...] = (100.0, 10.0, 3.0)
    """Of the pose graph's robust loss, one solution after the other."""


@dataclass(frozen=True)
class OnlineConfig:
    """All of the online back end."""

    matching: MatchingConfig = field(default_factory=MatchingConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    corners: CornerConfig = field(default_factory=CornerConfig)
    descriptors: DescriptorConfig = field(default_factory=DescriptorConfig)
    resectioning: ResectioningConfig = field(default_factory=ResectioningConfig)
    map: MapConfig = field(default_factory=MapConfig)
    network_motion: NetworkMotionConfig = field(default_factory=NetworkMotionConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    local_ba: LocalBAConfig = field(default_factory=LocalBAConfig)
    global_ba: GlobalBAConfig = field(default_factory=GlobalBAConfig)
    final_ba: FinalBAConfig = field(default_factory=FinalBAConfig)
    places: PlaceRecognitionConfig = field(default_factory=PlaceRecognitionConfig)
    loops: LoopConfig = field(default_factory=LoopConfig)
    late_s: float = 0.5
    """Delay beyond the least one, from which a live source's local adjustments are skipped."""
    frames_ahead: int = 12
    """Frames of a file that a back end in a process of its own may be behind. On average a frame takes half of the
    network's step, but those that wait for an adjustment take several steps. A live source's frames are waited for."""


DEFAULT_ONLINE = OnlineConfig()
KNOWN_POSES = replace(DEFAULT_ONLINE, window=replace(DEFAULT_ONLINE.window, known_rounds=3))
