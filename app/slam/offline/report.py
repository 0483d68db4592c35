"""What a refinement gives, and what it says of itself.

What is known before a refinement begins, beside what the network says.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.frame_data import Scale
from stream_recon.app.slam.matching.features import Features

FloatArray = NDArray[np.float64]


@dataclass
class RefinementReport:
    """What was done."""

    keyframes: int = 0
    features: int = 0
    pairs_tried: int = 0
    pairs_accepted: int = 0
    loops: int = 0
    segments: int = 1
    """That no matches tie together: each one is kept where the network has it."""
    tracks: int = 0
    observations: int = 0
    reprojection_px_before: float | None = None
    reprojection_px: float | None = None
    focal_before: float | None = None
    focal: float | None = None
    """Both in pixels of the source image."""
    k1: float | None = None
    start: str = "network"
    """Initialisation that won: ``network``; ``stream``, the online poses; ``radial distortion``; ``matches`` alone."""
    disagreement_before: float | None = None
    disagreement: float | None = None
    """Share of the image that held-out matches say is wrong, with the network's poses and depth and with the map's."""
    depth_agreement_before: float | None = None
    depth_agreement: float | None = None
    """Share of the image on whose depth neighbouring keyframes agree, see `judgement.CLOSE`."""
    depth_fields: int = 0
    """Keyframes whose depth is corrected by more than a scale."""
    depth_error_before: float | None = None
    depth_error: float | None = None
    """Median of the log of depth against points that no field was fitted to: with scales alone, with the fields."""
    fallback_segments: list[dict[str, object]] = field(default_factory=list)
    """Stretches: first and last frame, and why."""
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class IntermediateState:
    """How things stand while a refinement goes on: for whoever watches."""

    T_world_camera: FloatArray  # [N, 4, 4], of all frames
    depth_scale: FloatArray  # [N]
    lens: CameraModel
    """In working pixels."""
    points: FloatArray  # [M, 3]
    loops: list[tuple[int, int]]
    """Pairs of positions in the result."""


@dataclass(frozen=True)
class Refinement:
    """All that changed. Arrays are over all frames of the result."""

    T_world_camera: FloatArray  # [N, 4, 4]
    depth_scale: FloatArray  # [N]
    lens: CameraModel
    """In working pixels."""
    scale: Scale
    keyframes: list[int]
    """Positions in the result."""
    fit: BAState | None
    """Of the keyframes; None where nothing was adjusted."""
    loops: list[tuple[int, int]]
    """Pairs of keyframes (numbers among these) that are far apart in time and were matched."""
    report: RefinementReport
    depth_fields: NDArray[np.float16]  # [N, GRID, GRID]
    """By what depth is to be corrected besides its scale; see `stream_recon.app.core.depth_correction`."""


@dataclass(frozen=True)
class WarmStart:
    """Keyframes whose features are there already."""

    keyframes: list[int]
    """Positions among all frames, ascending."""
    features: list[Features]
    """Of the keyframes, in pixels of the refinement's working images."""


@dataclass(frozen=True)
class InitialPoses:
    """Frames where a stream has put them, in any world and unit: an adjustment that begins there has less to do."""

    T_world_camera: FloatArray  # [N, 4, 4]
    depth_scale: FloatArray  # [N], what the network's depth is multiplied with
    focal: float
    """In working pixels."""

    def beside(self, T_first: FloatArray, frames: list[int]) -> "InitialPoses":
        """Some of the frames: the first of them at a pose [4, 4], in a unit in which depth is usually the network's."""
        T, scale = self.T_world_camera[frames], self.depth_scale[frames]
        unit = float(np.median(scale))
        relative = invert_pose(T[0]) @ T
        relative[:, :3, 3] /= unit
        return InitialPoses(T_first @ relative, scale / unit, self.focal)
