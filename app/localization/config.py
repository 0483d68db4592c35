"""Tuned numbers of localization and of alignments. What a value was chosen by stands beside it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FeatureMapConfig:
    """Features of a map's keyframes."""

    max_features: int = 650
    """Of a keyframe: with its VLAD vector they take less than 60 kB."""
    same_px: float = 0.05
    """Distance of a feature from an observation that is the same one, in working pixels."""
    tracked_sigma: float = 0.01
    depth_sigma: float = 0.04
    """Standard deviations of the depth of triangulated points, and of the depth of others, as a share."""
    outline_points: int = 32
    """Points of a keyframe by which it is known what it sees."""
    cached: int = 256
    """Keyframes whose unpacked features stay in memory, about 0.4 MB each."""


@dataclass(frozen=True)
class PoseConfig:
    """Pose and focal length of an image from matches."""

    ransac_px: float = 6.0
    """Inlier distance of PnP in working pixels: depth errors of some percent move a projection by some pixels."""
    max_iterations: int = 2000
    """Of RANSAC for each camera: enough for samples of 3 where a seventh of the matches is right (99 %)."""
    confidence: float = 0.999
    min_matches: int = 8
    loss_px: float = 2.0
    """Scale of the Cauchy loss."""
    inlier_px: float = 5.0
    """Reprojection error up to which a match agrees with the fitted pose."""
    typical_px: float = 1.5
    """Usual error of a match, which weighs matches against the prior of the focal length."""
    correlated: float = 12.0
    """Divisor of the matches' information: errors of the map's points are common to a surface, and many matches are of
    one feature."""


@dataclass(frozen=True)
class QueryConfig:
    """Localization of single images."""

    candidates: int = 8
    """Similar keyframes that an image is matched with first."""
    spacing: int = 2
    """Least spacing of these in keyframes: neighbours give nearly the same matches."""
    clear: int = 80
    """Agreeing matches from which no more keyframes are matched."""
    more_candidates: int = 24
    """Similar keyframes, neighbours too, that an image with fewer agreeing matches is matched with in all."""
    learned: int = 4
    """Keyframes that an image which SIFT does not recognize is matched with by learned features."""
    compared: int = 100
    """Keyframes from which these are chosen; bounds time and memory."""
    own_share: float = 0.85
    """Share of the matches that agree with a pose of the map's own camera, from which no other camera is tried."""
    fovs_deg: tuple[float, ...] = (25.0, 35.0, 45.0, 55.0, 65.0, 78.0, 95.0)
    """Fields of view along the longer side that are tried for an unknown camera."""
    own_focal_sigma: float = 0.01
    focal_sigma: float = 0.3
    """Priors of the log focal length: about that of the map's camera, and about that of the best field of view."""
    guided: int = 16
    """Keyframes that are matched again from the first pose: those that see the most of what the image shows."""
    guided_px: tuple[float, ...] = (20.0, 8.0, 4.0)
    """Search radii of these matches in working pixels, each from the pose of the one before."""
    min_staying: float = 0.6
    """Least share of the unguided matches that agree with the pose of the guided ones: any pose finds some of its
    own."""
    same_side: float = 0.5
    """Least cosine of the directions from which an image and a keyframe see a point: SIFT seldom bridges more."""
    min_inliers: int = 20
    """Least number of features whose unguided matches agree with one pose: chance matches reach about half of it."""
    min_share: float = 0.12
    """Least share of the unguided matches that agree with the pose."""
    min_cells: int = 4
    """Least number of cells of a 4x4 grid over the image with such matches: a poster that was moved fills few."""
    max_position_sigma: float = 0.1
    max_rotation_sigma_deg: float = 3.0
    """Largest standard deviations of an accepted pose: of the position, as a share of the distance of the points."""


@dataclass(frozen=True)
class FilmConfig:
    """Localization of a film's frames."""

    relocalize_every: int = 15
    """Frames after which the place is recognized again, which bounds the drift of tracked points."""
    min_tracked: int = 40
    """Least number of tracked points that agree with a pose; with fewer the place is recognized again."""
    min_agreeing: float = 0.6
    """Least share of the tracked points that agree."""
    focal_frames: int = 5
    """Frames whose median focal length becomes the film's: one camera made them all."""


@dataclass(frozen=True)
class RunAlignmentConfig:
    """Alignment of a run's world by its recognized frames."""

    recent: int = 16
    """Recognized frames that the similarity is fitted to: the run drifts, and the latest frames count."""
    min_depths: int = 12
    """Least number of matched points with a depth in both worlds, whose ratio gives the scale."""
    max_error: float = 0.08
    """Largest error of a recognized frame that agrees, as a share of the distance of what it sees."""
    rounds: int = 5
    """Fits to the frames that agree."""


@dataclass(frozen=True)
class AlignmentConfig:
    """Alignment of two results."""

    first_tried: int = 24
    """Keyframes that are tried first, spread over the result: without a match among them few others have one."""
    max_tried: int = 120
    """Keyframes that are tried in all."""
    min_support: int = 15
    """Least number of features of a keyframe that agree with one pose."""
    min_keyframes: int = 3
    """Least number of such keyframes that agree with one similarity: single ones may show a repeated structure."""
    max_error: float = 0.08
    """Distance of matched points, as a share of their distance from the camera, up to which they agree."""
    loose: float = 3.0
    """Times `max_error` up to which a keyframe was found where an alignment has it: results drift away from each
    other."""
    same_focal: float = 0.015
    """Relative difference of focal lengths up to which two results have one camera."""
    correlated: int = 5
    """Keyframes whose focal lengths count as one measurement."""
    sure: float = 2.0
    """Standard deviations by which focal lengths of two cameras differ."""
    rival: float = 0.5
    """Share of the features of a keyframe's best pose with which another pose of it counts."""
    elsewhere: float = 0.5
    """Distance between two alignments, as a share of the points' distance from the camera, from which they differ."""
    rounds: int = 5
    """Fits of the similarity to the points that agree."""


@dataclass(frozen=True)
class PlausibilityConfig:
    """When two results that look alike are of different places."""

    min_overlap: float = 0.6
    """Least share of each view's points that the other one has in its image, of views that show the same."""
    max_angle_deg: float = 25.0
    """Largest angle between the optical axes of such views: SIFT bridges it."""
    max_zoom: float = 1.4
    """Largest ratio of the distances from which they see their points."""
    min_tracked: int = 40
    """Least number of triangulated features of such a view: its own video matches it, so it is sharp and textured."""
    min_missed: int = 4
    """Least number of successive views that should match and do not."""
    chance: float = 1e-3
    """Chance of such a row of misses, by the share of the other views that match, below which the places differ."""
    max_in_front: float = 0.25
    """Share of points that lie before what is seen there, above which two places differ; 0.01 to 0.07 in true
    ones."""
    nearer: float = 0.85
    """Ratio of depths below which a point lies before another one."""
    same_depth: float = 0.1
    """Difference of the ratio of depths from 1 up to which two points are one."""
    near_px: float = 14.0
    """Distance in the image up to which two points have one depth."""
    min_compared: int = 100
    """Least number of compared points."""
    compared_views: int = 12
    """Pairs of keyframes whose points are compared."""


@dataclass(frozen=True)
class PlacingConfig:
    """Which results are compared and aligned, and how exact alignments are."""

    open_maps: int = 6
    """Maps that stay in memory."""
    compared: int = 12
    """Keyframes of a result that it is compared by."""
    best_pairs: int = 3
    """Pairs of keyframes whose mean similarity is that of two results."""
    partners: int = 8
    """Most similar results that each one is aligned with."""
    sure_keyframes: int = 12
    sure_share: float = 0.3
    """Keyframes that agree, or their share, from which an alignment is taken at once; else others are tried before."""
    loop_steps: int = 4
    """Alignments between two results, from which one more between them tells something new."""
    max_loops: int = 4
    """Alignments of a result that are tried for that; 0: loops stay open."""
    rotation_sigma: float = 0.01
    translation_sigma: float = 0.02
    log_scale_sigma: float = 0.02
    """Errors of an alignment: in rad, as a share of the distance of what is seen, and of the log scale."""
    dimensions: int = 1024
    """Length of a projected image vector: fewer hide what two results share behind the error of the projection."""
    sampled: int = 300
    """Descriptors of a result from which the common vocabulary is learned."""


@dataclass(frozen=True)
class ChangeConfig:
    """Changes between two results of one place."""

    views: int = 6
    """Views of the other result that a frame is compared with."""
    cached_views: int = 48
    """Views that stay in memory."""
    witnesses: int = 2
    """Views that have to see through a point; single ones are wrong at edges."""
    min_area: float = 0.003
    """Least area of a change, as a share of the image: smaller ones are errors of depth."""
    step: int = 2
    """Every n-th row and column is compared."""
    max_points: int = 4000
    """Points of a frame that are written."""


@dataclass(frozen=True)
class LocalizationConfig:
    """All of localization and alignment."""

    map: FeatureMapConfig = field(default_factory=FeatureMapConfig)
    pose: PoseConfig = field(default_factory=PoseConfig)
    image: QueryConfig = field(default_factory=QueryConfig)
    film: FilmConfig = field(default_factory=FilmConfig)
    run: RunAlignmentConfig = field(default_factory=RunAlignmentConfig)
    alignment: AlignmentConfig = field(default_factory=AlignmentConfig)
    plausibility: PlausibilityConfig = field(default_factory=PlausibilityConfig)
    placing: PlacingConfig = field(default_factory=PlacingConfig)
    changes: ChangeConfig = field(default_factory=ChangeConfig)


DEFAULT_LOCALIZATION = LocalizationConfig()
