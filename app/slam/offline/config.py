"""Tuned numbers of a refinement; each part's are described where it is."""

from dataclasses import dataclass, replace

from stream_recon.app.slam.evidence.judgement import JUDGE, JudgeConfig
from stream_recon.app.slam.matching.config import DEFAULT_MATCHING
from stream_recon.app.slam.offline.all_frames import BETWEEN, BetweenConfig
from stream_recon.app.slam.offline.depth_fields import FIELDS, FieldConfig
from stream_recon.app.slam.offline.incremental_sfm import SFM, SfmConfig
from stream_recon.app.slam.offline.initialization import START, StartConfig
from stream_recon.app.slam.offline.keyframe_selection import KEYFRAMES, KeyframeConfig
from stream_recon.app.slam.offline.motion_errors import MOTIONS, MotionConfig
from stream_recon.app.slam.offline.path_error import PATH, PathConfig
from stream_recon.app.slam.offline.scale_consistency import SCALES, ScaleConfig
from stream_recon.app.slam.offline.segments import SEGMENTS, SegmentConfig


@dataclass(frozen=True)
class RefineConfig:
    """What a refinement tries, and its parts' numbers."""

    min_keyframes: int = 3
    """Fewer give no points in three views."""
    min_observations: int = 100
    """Least number of observations of an adjustment."""
    doubtful: float = 0.8
    """Share of observations explained from the online poses, below which the network's poses are tried, too."""
    wrong_turn_deg: float = 1.5
    """Median error of the rotations between neighbours, by two-view geometry, from which the network's poses are
    wrong."""
    wrong_turn_px: float = 10.0
    """The same in pixels, since small images tell turns less well: in one of 320 pixels a pixel is 0.3 degrees, and
    right paths had up to 2."""
    tested_turns: int = 60
    """Neighbours whose rotation is tested; bounds the time."""
    tied_neighbours: float = 0.5
    """Share of neighbours with matches, below which keyframes are in no order."""
    max_unordered: int = 600
    """Most keyframes that are reconstructed from images alone: time grows with their number times that of all."""
    min_photograph_features: int = DEFAULT_MATCHING.features.count
    max_photograph_features: int = 3 * DEFAULT_MATCHING.features.count
    total_photograph_features: int = 60 * DEFAULT_MATCHING.features.count
    """Features of each photograph, and of all together as far as these limits allow; bounds the time of matching."""
    clear_evidence: float = 0.1
    """Evidence for the map, as a share of the image, from which its path is surely more accurate than the network's."""
    companion_frames: int = 48
    """Frames that are worth another process, whose start takes half a second of a core."""
    keyframes: KeyframeConfig = KEYFRAMES
    segments: SegmentConfig = SEGMENTS
    start: StartConfig = START
    sfm: SfmConfig = SFM
    judge: JudgeConfig = JUDGE
    path: PathConfig = PATH
    motions: MotionConfig = MOTIONS
    scales: ScaleConfig = SCALES
    fields: FieldConfig = FIELDS
    between: BetweenConfig = BETWEEN

    def for_rig(self) -> "RefineConfig":
        """The same, but all keyframes are adjusted together: views hold each other at all of them."""
        hierarchy = replace(self.start.hierarchy, min_skeletal=self.start.hierarchy.max_at_once)
        return replace(self, start=replace(self.start, hierarchy=hierarchy))

    def feature_count(self, keyframes: int, unordered: bool) -> int:
        """Features of each keyframe; few photographs in no order show a place from far apart, and need more."""
        if not unordered:
            return DEFAULT_MATCHING.features.count
        share = self.total_photograph_features // max(keyframes, 1)
        return min(max(share, self.min_photograph_features), self.max_photograph_features)


REFINE = RefineConfig()
