"""Tuned numbers of features, matches and relative poses. What a value was chosen by stands beside it."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class FeatureConfig:
    """SIFT features, distributed over the image."""

    count: int = 1000
    """Most features of a keyframe in refinement: matching time grows with its square."""
    described: int = 2
    """Ratio of described features, the strongest, to those kept."""
    contrast: float = 0.01
    """Contrast threshold, below Lowe's 0.04: walls and night scenes have few strong features."""
    faint_contrast: float = 0.002
    """Threshold where that gives less than a quarter of the features; faint grain still matches well."""
    cells: int = 8
    """Cells along the longer side, between which features are distributed."""


@dataclass(frozen=True)
class VocabularyConfig:
    """Vocabulary and VLAD vectors of image retrieval."""

    words: int = 64
    """A single video needs few words."""
    max_descriptors: int = 20_000
    """Descriptors that it is learned from; bounds the time of k-means."""
    rounds: int = 8
    """Iterations of k-means; a vocabulary need not have converged."""
    strongest: int = 600
    """Features of a keyframe that are described; weaker ones are seldom seen again."""


@dataclass(frozen=True)
class DescriptorMatchConfig:
    """Matches of descriptors, and their verification by a fundamental matrix."""

    ratio: float = 0.8
    """Lowe's ratio test of unguided matches, at his threshold."""
    guided_ratio: float = 0.85
    """Ratio test of guided matches, which have fewer rivals."""
    guided_radius: float = 0.12
    """Search radius of guided matches, as a share of the image's longer side."""
    min_cosine: float = 0.6
    """Of the descriptors of a match; wrong matches are mostly below."""
    epipolar_px: float = 1.5
    """Inlier distance of the fundamental matrix: the noise of SIFT positions."""
    iterations: int = 1000
    """RANSAC iterations: enough for a sample of 7 inliers where half of the matches are inliers (99.9 %)."""
    min_guided: int = 15
    """Inliers of a guided pair; more are needed where poses do not confirm the pair."""
    min_unguided: int = 30
    """Inliers of an unguided pair; fewer can agree by chance."""
    cells: int = 10
    """Cells along the longer side, which measure how much of the image matches cover."""


@dataclass(frozen=True)
class LearnedConfig:
    """Learned features and matches, and where they are used."""

    count: int = 1024
    """Features of a keyframe; time grows with the square: .25 s a pair on one core."""
    side: int = 960
    """Longer side of the image that is searched. Positions are whole pixels of it: of 480, a third of the matches are
    wrong by more than 1.5 of its pixels, a tenth of 960."""
    min_cosine: float = 0.82
    """Of mutual nearest neighbours; the library's."""
    min_mutual: int = 40
    """Mutual nearest neighbours below which a pair is taken for unrelated; most that geometry verified were wrong."""
    min_confidence: float = 0.1
    """Of a match; the library's."""
    cells: int = 10
    """Cells along the longer side, which measure how much of the image matches cover."""
    weak: float = 0.25
    """Share of the image that the SIFT matches of a pair cover, below which it is weak."""
    weak_neighbours: float = 0.1
    """Share of neighbours that are weak pairs, from which a video gets learned features. Phone films that SIFT refines
    well had at most 0.04, those that it does not at least 0.3."""


@dataclass(frozen=True)
class KltConfig:
    """Points tracked from image to image."""

    window: int = 21
    """In pixels; OpenCV's default."""
    levels: int = 3
    """Pyramid levels above the base; with two, fast pans are lost."""
    round_trip_px: float = 1.0
    """Largest error after tracking forth and back."""


@dataclass(frozen=True)
class PairConfig:
    """Choice of the pairs of keyframes to match."""

    neighbours: int = 4
    """Preceding keyframes that each one is matched with, so that a blurred one does not break tracks."""
    max_covisible: int = 8
    """Covisible keyframes before the neighbours that each one is matched with."""
    min_overlap: float = 0.25
    """Share of common points of covisible keyframes; with less, few matches pass."""
    spacing: int = 3
    """Least spacing of chosen covisible or similar keyframes, since neighbours give nearly the same matches."""
    max_near: int = 300
    """Keyframes, nearest by position, that are tested for covisibility; it bounds the time."""
    max_guided_interval: int = 60
    """Frames; over longer intervals the drift of poses is too large to guide matching."""
    max_similar: int = 3
    """Candidates of each keyframe by image similarity."""
    min_similarity: float = 0.12
    """Cosine similarity of candidates; unrelated keyframes are mostly below."""
    max_exhaustive: int = 150
    """Keyframes of which all pairs are matched, where order and poses do not help."""
    retrieved: int = 30
    """Similar keyframes that each one of more keyframes is matched with."""
    min_unordered: int = 18
    """Inliers of a pair without order: chance pairs find no support when keyframes are registered."""
    max_failed: int = 2
    """Covisible keyframes in order of overlap that do not match, after which the others of a keyframe are not tried."""
    held_out_every: int = 8
    """Every 8th feature is excluded from the first pass, to test its result."""


@dataclass(frozen=True)
class RelativePoseConfig:
    """Relative poses by PnP, and which of them are plausible."""

    min_inliers: int = 20
    """PnP inliers; fewer can agree by chance."""
    pnp: float = 1 / 80
    """Inlier distance of PnP, as a share of the longer side: depth errors of some percent move a projection by that."""
    max_drift: float = 0.3
    """Plausible drift, as a share of the path between two keyframes."""
    drift_slack: float = 0.1
    """Allowance in addition, as a share of the distance of two keyframes."""
    contradiction: float = 5.0
    """Ratio of a pair's reprojection error by the network to the median of all pairs, above which it is checked."""
    contradiction_error: float = 1 / 32
    """Least reprojection error of a pair that is checked, as a share of the longer side; depth alone causes less."""
    max_contradicting: float = 0.25
    """Share of the pairs; if more contradict the network, the network is probably wrong."""
    jump: float = 3.0
    """Ratio of a pair's deviation from the usual pace to the network's, from which the pair is treated as wrong."""


@dataclass(frozen=True)
class TwoViewConfig:
    """Essential matrices."""

    epipolar_px: float = 2.0
    """Inlier distance; the focal length is not exact yet."""
    min_matches: int = 8
    """Inliers."""
    iterations: int = 1000
    """RANSAC iterations."""


@dataclass(frozen=True)
class MatchingConfig:
    """All of matching."""

    features: FeatureConfig = field(default_factory=FeatureConfig)
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    descriptors: DescriptorMatchConfig = field(default_factory=DescriptorMatchConfig)
    learned: LearnedConfig = field(default_factory=LearnedConfig)
    klt: KltConfig = field(default_factory=KltConfig)
    pairs: PairConfig = field(default_factory=PairConfig)
    relative_poses: RelativePoseConfig = field(default_factory=RelativePoseConfig)
    two_view: TwoViewConfig = field(default_factory=TwoViewConfig)


DEFAULT_MATCHING = MatchingConfig()
