"""Input and output of a refinement: warm start, initial poses, intermediate states, result and report."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import KeptPoses
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.frame_data import Scale
from stream_recon.app.slam.matching.features import Features


@dataclass(frozen=True)
class RefinementReport:
    """Figures of a refinement; its fields are keys of ``run.json``."""

    keyframes: int = 0
    features: int = 0
    learned_matches: bool | None = None
    """Whether learned matches were used; False: they would help, but there are none; None: SIFT's are enough."""
    pairs_tried: int = 0
    pairs_accepted: int = 0
    loops: int = 0
    segments: int = 1
    """Segments that matches do not connect; their relative poses are the network's."""
    tracks: int = 0
    observations: int = 0
    reprojection_px_before: float | None = None
    reprojection_px: float | None = None
    focal_before: float | None = None
    focal: float | None = None
    """Focal lengths in pixels of the source image."""
    k1: float | None = None
    k2: float | None = None
    lens: str | None = None
    """COLMAP's name of the camera model."""
    field_of_view_deg: float | None = None
    """Horizontal."""
    focal_error: float | None = None
    """Relative standard deviation of the focal length by the matches alone."""
    field_of_view_measured: bool | None = None
    """Whether the matches determine the focal length; None: the camera was given, or nothing was refined."""
    start: str = KeptPoses.NETWORK
    """Initialization: ``network``; ``stream``, the online poses; or ``matches`` alone."""
    disagreement_before: float | None = None
    disagreement: float | None = None
    """Held-out errors of the network and of the first pass, see `HeldOutError.mean`."""
    line_disagreement_before: float | None = None
    line_disagreement: float | None = None
    """The same by epipolar lines alone, which need no depth, see `HeldOutError.by_lines`."""
    depth_agreement_before: float | None = None
    depth_agreement: float | None = None
    """Shares of the image on whose depth neighbouring keyframes agree, see `held_out_error.depth_agreement`."""
    evidence: float | None = None
    evidence_error: float | None = None
    """Share of the image by which held-out matches and depth agree better with the map than with the network, and its
    standard error; see `judgement.Evidence`."""
    path_error: float | None = None
    """Random error of the map's path, as a share of its length; known where evidence is weak. See `path_error`."""
    path_difference: float | None = None
    """Between the paths of network and map, whether it is kept or not, as a share of their length."""
    network_turn_error_deg: float | None = None
    """The network's error of a turn between keyframes, where the adjustment weighs its motions by their errors."""
    decided_by_matches: bool = False
    """Whether epipolar lines alone decided for the map: the network's depth and path are no evidence there."""
    scale_correction: float = 1.0
    """Ratio of the largest to the smallest factor by which lengths of the map were corrected, where depth maps that see
    the same contradict its scale."""
    scale_jumps: list[dict[str, object]] = field(default_factory=list)
    """Frames at which the scale changes, which neither points nor depth maps settled, and the factor."""
    depth_fields: int = 0
    """Keyframes with a depth correction field."""
    depth_error_before: float | None = None
    depth_error: float | None = None
    """Medians of the absolute log error of depth at held-out points, with scales alone and with the fields."""
    fallback_segments: list[dict[str, object]] = field(default_factory=list)
    """``first`` and ``last`` frame of segments that are not refined, ``why``, its ``cause`` in one word, and whose
    poses are ``kept``."""
    seconds: dict[str, float] = field(default_factory=dict)


def keeps_stream(report: object) -> bool:
    """Whether nothing is refined and all frames keep the online poses, by the report as an object of ``run.json``."""
    segments = report.get("fallback_segments") if isinstance(report, dict) else None
    known = [each for each in segments if isinstance(each, dict)] if isinstance(segments, list) else []
    return (
        isinstance(report, dict)
        and report.get("reprojection_px") is None
        and KeptPoses.STREAM in [each.get("kept") for each in known]
    )


@dataclass(frozen=True)
class IntermediateState:
    """State between the passes of a refinement, for display."""

    T_world_camera: FloatArray  # [N, 4, 4], of all frames
    depth_scale: FloatArray  # [N]
    camera_model: CameraModel
    """In working pixels."""
    points: FloatArray  # [M, 3]
    loops: list[tuple[int, int]]
    """Pairs of frame positions in the result."""


@dataclass(frozen=True)
class Refinement:
    """Result of a refinement. Arrays are over all frames."""

    T_world_camera: FloatArray  # [N, 4, 4]
    depth_scale: FloatArray  # [N]
    camera_model: CameraModel
    """In working pixels."""
    scale: Scale
    keyframes: list[int]
    """Positions in the result."""
    fit: BAState | None
    """Solution for the keyframes; None if the network's poses were kept."""
    loops: list[tuple[int, int]]
    """Matched pairs of keyframes (indices among these) far apart in time."""
    report: RefinementReport
    depth_fields: NDArray[np.float16]  # [N, GRID, GRID]
    """Corrections of depth in addition to its scale; see `stream_recon.app.core.depth_correction`."""
    features: list[Features] = field(default_factory=list)
    """Of the keyframes, in working pixels."""


@dataclass(frozen=True)
class WarmStart:
    """Keyframes, as positions among all frames, ascending, with their features in working pixels."""

    keyframes: list[int]
    features: list[Features]


@dataclass(frozen=True)
class GivenPoses:
    """That the frames' poses are known ones in place of the network's, in one world and its unit."""

    is_known: NDArray[np.bool_]  # [N]
    """Frames whose pose is known; those of others follow the network's motion."""
    fixed: bool = False
    """They stay as they are; else the adjustment weighs their motions by their errors."""


@dataclass(frozen=True)
class InitialPoses:
    """Online poses of the frames, in any world and scale."""

    T_world_camera: FloatArray  # [N, 4, 4]
    depth_scale: FloatArray  # [N], factor of the network's depth
    focal: float
    """In working pixels."""
    is_metric: bool = False
    """In metres, which a rig's adjustment keeps; the network's lengths may be others in a part of the film."""

    def relative_to(self, T_first: FloatArray, frames: list[int]) -> "InitialPoses":
        """Poses of some frames with the first one at ``T_first`` [4, 4], in metres or scaled to the network's depth."""
        T, scale = self.T_world_camera[frames], self.depth_scale[frames]
        median = 1.0 if self.is_metric else float(np.median(scale))
        relative = invert_pose(T[0]) @ T
        relative[:, :3, 3] /= median
        return InitialPoses(T_first @ relative, scale / median, self.focal)
