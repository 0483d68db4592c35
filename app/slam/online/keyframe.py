"""Keyframe of the online map. It owns map points: each is the depth of one of its tracks."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, MapConfig

NO_TRACKS = np.zeros(0, np.int64)


@dataclass(frozen=True)
class TrackedPoints:
    """Points of a keyframe that were found in a frame."""

    row: NDArray[np.intp]  # [P], rows of the keyframe's tracks
    uv: NDArray[np.float32]  # [P, 2], positions in the frame
    T_network: FloatArray  # [4, 4], the frame's pose in the network's world


@dataclass(slots=True)
class AttachedFrame:
    """Frame with a pose relative to a keyframe: the keyframe itself or one of those before the next keyframe."""

    index: int
    """Number of the frame in its source."""
    T_keyframe_frame: FloatArray  # [4, 4], in the map's scale when the keyframe's log scale was ``log_scale``
    log_scale: float
    output_scale: float | None = None
    """Factor of its depth when it was output; None before."""
    covariance: FloatArray | None = None
    """[6, 6], of its pose when it was tracked, see `FrameResult`; None if it was not."""
    tracked: TrackedPoints | None = None
    """Its pose is estimated from them again when they are known better."""


@dataclass(slots=True)
class Keyframe:
    """Keyframe with its tracks and points; points and attached frames move and scale with it."""

    number: int
    """Index in the map."""
    T_network: FloatArray  # [4, 4], in the network's world
    focal_network: float
    """In working pixels."""
    T_world_camera: FloatArray  # [4, 4], in the map's world
    log_scale: float
    """Log of length in the map per length of the network's depth here."""
    track: NDArray[np.int64] = field(default_factory=lambda: NO_TRACKS)  # [N], track ids
    uv: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    """[N, 2], positions in working pixels."""
    z_network: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """[N], the network's depth; 0 where there is none."""
    z: FloatArray = field(default_factory=lambda: np.zeros(0))  # [N], in the map; NaN where only the network's is known
    followed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """[N], whether KLT follows the track into later frames. Matches of descriptors end here: followed, they would drift
    and displace corners."""
    attached: list[AttachedFrame] = field(default_factory=list)
    T_output: FloatArray | None = None
    """[4, 4], the pose that was output first; None before."""
    displacement: float = 1.0
    """Image displacement since the last keyframe, as a share of the longer side; 1 if unknown."""
    loop_tracks: NDArray[np.int64] = field(default_factory=lambda: NO_TRACKS)
    """Tracks shared across a loop, ascending."""
    kept_median_depth: float = 1.0
    """`median_depth_network` when the tracks were dropped."""
    config: MapConfig = DEFAULT_ONLINE.map

    @property
    def depths(self) -> FloatArray:
        """Depths [N] in the map's scale, from the map or else from the network; NaN without either."""
        network = np.where(self.z_network > 0, self.z_network, np.nan) * np.exp(self.log_scale)
        return np.where(np.isnan(self.z), network, self.z)

    @property
    def median_depth(self) -> float:
        """Median depth of the tracks in the map's scale."""
        depths = self.depths
        known = np.isfinite(depths)
        return (
            float(np.median(depths[known])) if known.any() else self.kept_median_depth * float(np.exp(self.log_scale))
        )

    @property
    def median_depth_network(self) -> float:
        """`median_depth` in the network's scale."""
        return self.median_depth * float(np.exp(-self.log_scale))

    def points(self, camera_model: CameraModel) -> FloatArray:
        """World points [N, 3]; NaN without depth."""
        xyz = camera_model.unproject(self.uv) * self.depths[:, None]
        return np.asarray(xyz @ self.T_world_camera[:3, :3].T + self.T_world_camera[:3, 3])

    def add_tracks(
        self, track: NDArray[np.int64], uv: NDArray[np.float32], z_network: NDArray[np.float32], followed: bool = True
    ) -> None:
        """Append tracks [M], without depth in the map."""
        self.track, self.uv = np.concatenate([self.track, track]), np.concatenate([self.uv, uv])
        self.z_network = np.concatenate([self.z_network, z_network])
        self.z = np.concatenate([self.z, np.full(len(track), np.nan)])
        self.followed = np.concatenate([self.followed, np.full(len(track), followed)])

    def drop_tracks(self) -> None:
        """Keep poses and some loop tracks only."""
        for frame in self.attached:
            frame.tracked = None
        self.kept_median_depth = self.median_depth_network
        # Chosen by a hash of the ids, so that both ends of a loop keep the same tracks.
        order = np.argsort(self.loop_tracks * 2_654_435_761 % 2**32, kind="stable")
        self.loop_tracks = np.sort(self.loop_tracks[order[: self.config.max_loop_tracks]])
        kept = np.isin(self.track, self.loop_tracks)
        self.track, self.uv = self.track[kept], self.uv[kept]
        self.z_network, self.z, self.followed = self.z_network[kept], self.z[kept], self.followed[kept]

    def set_pose(self, T_world_camera: FloatArray, log_scale: float) -> None:
        """Change pose and scale; points and attached frames follow."""
        self.z = self.z * np.exp(log_scale - self.log_scale)
        self.T_world_camera, self.log_scale = T_world_camera, log_scale

    def pose_of(self, frame: AttachedFrame) -> FloatArray:
        """Pose [4, 4] of an attached frame in the map's world."""
        relative = frame.T_keyframe_frame.copy()
        relative[:3, 3] *= np.exp(self.log_scale - frame.log_scale)
        return np.asarray(self.T_world_camera @ relative)


def common_rows(first: Keyframe, second: Keyframe) -> NDArray[np.intp]:
    """Rows [M, 2] of both keyframes with the same tracks."""
    _, a, b = np.intersect1d(first.track, second.track, assume_unique=True, return_indices=True)
    return np.stack([a, b], axis=1)
