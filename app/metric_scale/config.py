"""Tuned numbers of the metric scale, a group for each source of scale. What a value was chosen by stands beside it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class MarkerConfig:
    """Detection of printed markers, and the fit of a marker's pose and side."""

    min_side_px: float = 12.0
    """Shortest side of a marker in the image: corners of a smaller one are too inaccurate."""
    edge_rounds: int = 2
    """Iterations of corner refinement: the second one has profiles at the right positions."""
    edge_profiles: int = 24
    """Brightness profiles across each edge of a marker: enough for a robust line."""
    min_contrast: float = 20.0
    """Least contrast of a marker's border against its paper, in levels of 255."""
    min_detections: int = 3
    """Fewest detections of a marker: with two, no outlier can be found."""
    min_baseline: float = 0.02
    """Least extent of the cameras' positions as a share of the marker's distance: with less the scale is
    unobservable."""
    loss_scale_px: float = 1.0
    """Scale of the robust loss: beyond it an error counts less than by its square."""
    max_error_share: float = 0.1
    """Largest corner error as a share of a marker's side in the image: beyond it detections or poses are wrong."""
    max_error: float = 0.1
    """Largest relative error of a scale that is accepted."""
    max_starts: int = 40
    """Most initial rotations that are tried: a planar marker has two in each detection."""
    max_frames: int = 1000
    """Most frames in which markers are detected, every n-th of the result: more take longer without a better scale."""


@dataclass(frozen=True)
class GroundConfig:
    """Search for the ground plane."""

    max_slope_deg: float = 15.0
    """Largest angle between the ground's normal and the cameras' up direction."""
    samples: int = 400
    """Random triples of points (RANSAC): a plane with a fifth of the points is found in 96 of 100 cases."""
    thickness: float = 0.03
    """Largest distance of an inlier from the plane, as a share of the camera's height."""
    min_share: float = 0.4
    """Least size of the ground as a share of the largest level plane: a table top may show more points than the
    floor."""
    max_points: int = 100_000
    """Most points that planes are fitted to: more take longer, without a better plane."""
    min_points: int = 200
    """Fewest inliers of the ground."""
    max_cloud_points: int = 300_000
    """Most points of the cloud that are read: more take longer without a better plane."""


@dataclass(frozen=True)
class FitConfig:
    """Robust similarity from a trajectory to known positions, and the error of its scale."""

    rounds: int = 30
    """Iterations of reweighted least squares, enough to converge."""
    samples: int = 300
    """Random triples of the initial estimate: with half of the positions wrong, one triple in eight has no outlier."""
    blocks: int = 8
    """Blocks of the jackknife: each must leave enough positions for an estimate."""
    student: float = 1.35
    """Factor on the jackknife's error, so that 95 % of the true errors lie within two stated ones: 1.2 by Student's
    distribution for 8 blocks, and the rest for the correlation of neighbouring blocks."""
    max_tilt: float = 0.05
    """Largest standard error in radians, about the main direction of a trajectory, of axes taken from positions."""
    min_positions: int = 4
    """Fewest positions of a fit: one more than determine a similarity."""
    max_misfit: float = 0.5
    """Largest RMS distance of a fit, as a share of the track's extent: beyond it the track is of another path."""
    max_error: float = 0.2
    """Largest relative error of a scale that is accepted."""


@dataclass(frozen=True)
class ClockOffsetConfig:
    """Search for the offset between the clocks of a trajectory and a track."""

    max_grid: int = 1 << 21
    """Most points of the grid on which the track is sampled: 24 days at one position a second."""
    candidates: int = 30
    """Offsets whose robust misfit is computed: robust and plain fits rank them nearly alike."""
    refined: int = 6
    """Offsets that are refined."""
    halvings: int = 9
    """Steps of the local refinement: to about a hundredth of the track's interval."""
    min_difference: float = 0.1
    """Difference of two offsets, as a share of the common time, from which they are different solutions."""
    min_difference_steps: int = 4
    """The same in intervals of the track."""
    ambiguous: float = 1.6
    """Ratio of misfits up to which another offset fits about as well."""
    noise_floor: float = 1e-3
    """Misfit below which differences are rounding and interpolation."""
    same_common: float = 0.92
    """Share of the best offset's common time that another one needs: less proves less."""


@dataclass(frozen=True)
class TrackConfig:
    """Alignment of a trajectory with a track of positions."""

    min_overlap: float = 0.8
    """Least common time of trajectory and track, as a share of the shorter one: a lesser one may be a chance match."""
    rounds: int = 4
    """Iterations of reweighted least squares for each offset: enough to rank offsets."""
    clock_error_s: float = 30.0
    """Seconds by which the clock of a camera is wrong, beside the length of the video: some write the time of its
    end."""
    max_gap: float = 5.0
    """Largest time between two known positions that is interpolated, in medians: beyond it the path is unknown."""
    fit: FitConfig = field(default_factory=FitConfig)
    offset: ClockOffsetConfig = field(default_factory=ClockOffsetConfig)


@dataclass(frozen=True)
class MetricScaleConfig:
    """All sources of metric scale."""

    marker: MarkerConfig = field(default_factory=MarkerConfig)
    ground: GroundConfig = field(default_factory=GroundConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    max_scale: float = 1e5
    """Largest number of metres in a unit of a reconstruction, and its inverse the smallest: first surfaces are at 1."""


DEFAULT_SCALE = MetricScaleConfig()
