"""Tuned numbers of dense stereo, a group for each mechanism.

A mechanism with ``is_enabled`` can be switched off alone, as ``python scripts/bench ablation`` does. The reason of a
value stands beside it. Figures are AbsRel of three rendered rooms, 20 keyframes of 256x192 each, whose prior has 7.38 %
and blurred edges, and of whose points 3 % are wrong: 3.12 % with all mechanisms, 2.33 % of confirmed depth, with six
source views.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SourceConfig:
    """Choice of the source views of a keyframe."""

    window: int = 12
    """Keyframes before and after, among which they are chosen; bounds memory."""
    max_count: int = 10
    """Views whose depth may confirm a keyframe's."""
    max_swept: int = 7
    """The best of them, with which the sweep compares: it costs most, and takes the best three of each point."""
    best_angle_deg: float = 6.0
    """Angle between the rays of two views at which matching is best: exact enough, and still similar in the images."""
    angle_spread: float = 0.7
    """Standard deviation of the preference for that angle, as the logarithm of the angle: a factor of two."""
    zoom_spread: float = 0.4
    """The same for the ratio of distances: a view from farther away shows less detail."""
    min_overlap: float = 0.25
    """Share of a view's points that a source view has to see."""
    min_score: float = 0.02
    """Product of overlap and preferences."""
    min_baseline: float = 0.012
    """Distance between two source views, as a share of the median depth: closer ones say the same."""
    probes: tuple[int, int] = (12, 16)
    """Rows and columns of the pixels whose points measure overlap and angle."""


@dataclass(frozen=True)
class SweepRange:
    """Inverse depths of a sweep: ``steps`` hypotheses about the prior, one pixel apart in the best source view."""

    steps: int
    lowest: float
    highest: float
    """Bounds as factors of the prior's inverse depth."""
    distance_cost: float = 0.0
    """Cost for each step away from the prior, which decides between equal ones."""


@dataclass(frozen=True)
class SweepConfig:
    """Plane sweeps from small to large images, and which pixels count as matched."""

    radius: int = 2
    """The correlation window has 5x5 pixels: smaller ones are ambiguous, larger ones blur edges."""
    noise_variance: float = 9.0
    """Added to variances of grey values, so that windows without texture correlate with nothing: noise of 3 levels."""
    best_views: int = 3
    """Source views with the least cost that count."""
    probe_step: int = 12
    """Pixels between those at which the step of the sweep is measured."""
    coarse_side: int = 192
    """Longer side of the first sweep's image in pixels."""
    coarse: SweepRange = SweepRange(40, 0.55, 1.8, distance_cost=0.001)
    """The first sweep: about the prior, whose errors it has to span. A wider range gained nothing beyond the spread
    of repeated runs."""
    fine: SweepRange = SweepRange(9, 0.3, 3.0)
    """Each further sweep, at up to twice the size, about the depth of the last one: four steps span two coarse ones."""
    max_cost: float = 0.6
    """Bound of the cost of a matched pixel. It is wide, since neighbours confirm afterwards."""


@dataclass(frozen=True)
class TriangulatedPointConfig:
    """Triangulated points: they correct the prior, and count where stereo's depth is interpolated. Without: 3.16 %."""

    is_enabled: bool = True
    smoothness: float = 10.0
    """Weight of smoothness when the points' ratios are spread."""
    outlier: float = 0.1
    """How much a point that differs from its surroundings loses: little, since points are seldom wrong."""
    max_log_ratio: float = 1.6
    """Log ratio of a point's depth to the network's, a factor of five: beyond it one of both is wrong."""
    weight: float = 2.0
    """Weight of a point whose depth is exact: that of a pixel which four neighbours confirm."""


@dataclass(frozen=True)
class OtherSurfaceConfig:
    """Depth of triangulated points on other surfaces than the prior, as on thin things: stereo tries it, too.

    Without: 3.13 %; the rooms have few thin things.
    """

    is_enabled: bool = True
    min_log_ratio: float = 0.05
    """Log ratio of a point's depth to that of its surroundings, from which it is on another surface."""
    surroundings: int = 4
    """Pixels on either side whose median is the depth of a point's surroundings."""
    radius: float = 12.0
    """Pixels about a point on another surface at which stereo tries its depth."""
    companion_log_ratio: float = 0.1
    """Log ratio of the depths of two points up to which they may be on the same surface: a wrong point is alone."""
    sweep: SweepRange = SweepRange(3, 0.3, 3.0)
    min_gain: float = 0.05
    """How much less the cost has to be: less widens thin things."""
    min_prior_log_ratio: float = 0.1
    max_point_log_ratio: float = 0.05
    """Log ratios of confirmed depth to the prior, from which, and to a point, up to which it is kept as it is:
    smoothness would mix it with the prior."""


@dataclass(frozen=True)
class SupportConfig:
    """Confirmation of measured depth by neighbours' maps. Disabled: each measurement counts as confirmed by two.

    Without: 3.36 %, 3.00 % of confirmed depth.
    """

    is_enabled: bool = True
    max_pixels: float = 2.0
    """Distance of a point, projected into another map and back, from its pixel: poses of films err by one. With half of
    this and of the least difference, and six views, AbsRel of 14 runs on seven sequences is 7 % larger."""
    min_difference: float = 0.02
    max_difference: float = 0.05
    """Bounds of the relative difference of depth up to which a neighbour agrees: that of one pixel's displacement."""
    confirming: int = 2
    """Neighbours that confirm a pixel: two chance agreements are rare."""
    weights: tuple[float, ...] = (0.0, 0.05, 1.0, 1.5, 2.0)
    """Weight of measured depth by the number of neighbours that agree; the last one also of more."""
    sure: int = 3
    sure_outlier: float = 0.1
    """How much a measurement that differs from its surroundings loses, against 1, from how many agreeing neighbours:
    what three and more views see is seldom wrong."""


@dataclass(frozen=True)
class ReflectionConfig:
    """Less weight for reflections: few measured pixels behind a good prior.

    Without: 3.08 %; the rooms have no reflections, and this is what the mechanism costs there.
    """

    is_enabled: bool = True
    radius: int = 6
    """Half the side in pixels of the square in which other pixels have to agree."""
    agreement: float = 0.05
    """Difference of log ratios from their mean in the square up to which pixels agree."""
    full_share: float = 0.9
    """Share of agreeing pixels of the square from which a measurement keeps its weight."""
    behind: tuple[float, float] = (0.05, 0.15)
    """Log ratios to the prior between which a measurement loses its weight."""
    prior_variance: float = 8e-3
    """Variance of measured log depth about the prior, up to which measurements lose weight; the less, the larger it
    is: an error of the prior of 9 %."""


@dataclass(frozen=True)
class InterpolationConfig:
    """Edge-aware interpolation of log ratios of measured to prior depth."""

    smoothness: float = 10.0
    """Weight of the links between pixels against that of a measurement."""
    grey_edge: float = 8.0
    """Difference of grey values that divides a link by e."""
    depth_edge: float = 0.03
    """Relative difference of depth that divides a link by e."""
    min_link: float = 1e-3
    """Added to each link, so that every pixel is reached."""
    prior_variance: float = 2e-4
    """Weight of a ratio of 1 for a variance of 1: the prior counts the more, the less measured depth varies about
    it."""
    damping: tuple[float, float] = (1e-4, 0.1)
    """Bounds of that weight, against 1 for a measurement: where the prior is good, regions without measurements keep
    it."""
    levels: int = 5
    iterations: int = 12
    """Steps of conjugate gradients a level."""
    robust_ratio: float = 0.04
    """Difference of a measured log ratio from its surroundings at which its weight is halved in the second round."""


@dataclass(frozen=True)
class FillConfig:
    """Neighbours' confirmed depth where a keyframe has none of its own. Without: 3.17 %."""

    is_enabled: bool = True
    rounds: int = 2
    """Times that neighbours' confirmed depth is passed on."""
    smoothness: float = 2.0
    """Less than for own measurements: there are many more pixels with depth."""
    weight: float = 0.3
    """Weight of a neighbour's confirmed depth, against about 1 for a keyframe's own."""
    max_pixels: float = 4.0
    max_difference: float = 0.1
    """Bounds, as of `SupportConfig`, up to which a neighbour's depth is taken for that of the same surface: the prior
    is compared here."""


@dataclass(frozen=True)
class FreeSpaceConfig:
    """Unconfirmed depth that neighbours see through is left out. Without: 3.13 %; nothing moves in the rooms."""

    is_enabled: bool = True
    min_ratio: float = 1.08
    """Factor of a point's depth from which another view sees through it: more than the error of confirmed depth."""
    contradicting: int = 2
    """Neighbours that see through a pixel, where none agrees."""


@dataclass(frozen=True)
class PlaneConfig:
    """Planes between measured pixels of surfaces without texture. Without: 3.68 %."""

    is_enabled: bool = True
    iterations: int = 12
    """Steps of conjugate gradients at half size; up to four times as many on coarser levels."""
    slope: float = 20.0
    bend: float = 3000.0
    """Weights of a difference from the slope, and of a change of slope, against 1 for a measurement."""
    min_link: float = 1e-5
    """Added to each link: over an edge, planes hold nothing."""
    prior_weight: float = 1e-2
    prior_variance: float = 2e-3
    prior_power: int = 2
    """Weight of the depth found so far where the network's log depth has this variance about measured depth, and how it
    falls with that variance."""
    prior_bounds: tuple[float, float] = (3e-3, 0.3)
    """Bounds of that weight."""
    unreached_weight: float = 0.3
    """Further weight of it where no measurement is on the same surface."""
    reach_smoothness: float = 10.0
    reach_damping: float = 1e-3
    """Smoothness and damping of the question how far a measurement reaches: about 100 pixels."""
    min_measured: int = 50
    """Fewest measured pixels that tell how good the network's depth is."""
    max_change: float = 0.5
    """Change of log depth."""


@dataclass(frozen=True)
class StereoConfig:
    """All of dense stereo."""

    sources: SourceConfig = field(default_factory=SourceConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    points: TriangulatedPointConfig = field(default_factory=TriangulatedPointConfig)
    other_surfaces: OtherSurfaceConfig = field(default_factory=OtherSurfaceConfig)
    support: SupportConfig = field(default_factory=SupportConfig)
    reflections: ReflectionConfig = field(default_factory=ReflectionConfig)
    interpolation: InterpolationConfig = field(default_factory=InterpolationConfig)
    fill: FillConfig = field(default_factory=FillConfig)
    free_space: FreeSpaceConfig = field(default_factory=FreeSpaceConfig)
    planes: PlaneConfig = field(default_factory=PlaneConfig)
    near_pixels: int = 3
    """Distance from a confirmed pixel, on the same surface, up to which depth is `Certainty.NEAR`."""


DEFAULT_STEREO = StereoConfig()
