"""A keyframe of the running map. It owns the map's points: a point is a depth of what the keyframe sees of a track."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.frame_data import unproject

FloatArray = NDArray[np.float64]

NO_TRACKS = np.zeros(0, np.int64)
MOST_LOOPED = 60
"""Tracks of a keyframe that close loops and outlast the others."""
HELD_OUT = 8
"""One track in so many is in no adjustment, and judges it."""


@dataclass(frozen=True)
class TrackedPoints:
    """What was followed from a keyframe into a frame."""

    row: NDArray[np.intp]  # [P], of the keyframe's tracks
    uv: NDArray[np.float32]  # [P, 2], where they are seen
    T_network: FloatArray  # [4, 4], of the frame, in the network's world


@dataclass(slots=True)
class AttachedFrame:
    """A frame placed relative to a keyframe: itself, or one of those before the next keyframe."""

    index: int
    """The frame's number in its source."""
    T_keyframe_frame: FloatArray  # [4, 4], in the unit of the map when the keyframe's log scale was ``log_scale``
    log_scale: float
    given_scale: float | None = None
    """What its depth was multiplied with when it was given out; None before."""
    followed: TrackedPoints | None = None
    """What it can be placed again by, once the points are better known."""


@dataclass(slots=True)
class Keyframe:
    """Points stick to keyframes, so a keyframe that is moved or scaled takes its points along."""

    number: int
    """Counts the keyframes."""
    T_network: FloatArray  # [4, 4], world of the network
    focal_network: float
    """In working pixels."""
    T_world_camera: FloatArray  # [4, 4], world of the map
    log_scale: float
    """Lengths of the map around here, for each of the network's."""
    track: NDArray[np.int64]  # [N]
    uv: NDArray[np.float32]  # [N, 2], where the tracks are seen, in working pixels
    z_network: NDArray[np.float32]  # [N], the network's depth there; 0 where there is none
    z: FloatArray  # [N], depth in the map; NaN where only the network knows one
    sigma: NDArray[np.float32]  # [N], how surely the tracks are seen there: 1 is usual, see `Texture`
    trusted: bool = True
    """False where the network's motion up to here is preferred."""
    gain: float = 1.0
    """Lengths of the camera's way in the map, for each of the network's, when it came."""
    doubtful: bool = False
    """True where that is since something large seems to move by itself."""
    members: list[AttachedFrame] = field(default_factory=list)
    given: FloatArray | None = None
    """[4, 4], the pose that was given out first; None before."""
    moved: float = 1.0
    """Displacement of the image since the keyframe before, as a share of its longer side; 1 where nobody knows."""
    looped: NDArray[np.int64] = field(default_factory=lambda: NO_TRACKS)
    """Tracks that close a loop, ascending."""
    usual_network: float = 1.0
    """Depth that the network usually saw here; known once tracks are forgotten."""

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """[N] of the tracks that no adjustment sees."""
        return np.asarray(self.track % HELD_OUT == HELD_OUT - 1)

    @property
    def unsure(self) -> float:
        """How unsurely its tracks are seen, usually."""
        return float(np.median(self.sigma)) if len(self.sigma) else 1.0

    @property
    def depths(self) -> FloatArray:
        """[N] in the map's unit: the map's, else the network's scaled; NaN where there is none."""
        network = np.where(self.z_network > 0, self.z_network, np.nan) * np.exp(self.log_scale)
        return np.where(np.isnan(self.z), network, self.z)

    @property
    def usual_depth(self) -> float:
        """In the map's unit."""
        depths = self.depths
        known = np.isfinite(depths)
        return float(np.median(depths[known])) if known.any() else self.usual_network * float(np.exp(self.log_scale))

    @property
    def seen_depth(self) -> float:
        """As `usual_depth`, in the network's unit."""
        return self.usual_depth * float(np.exp(-self.log_scale))

    def points(self, lens: CameraModel) -> FloatArray:
        """World points [N, 3]; NaN where there is no depth."""
        xyz = unproject(lens, self.uv) * self.depths[:, None]
        return np.asarray(xyz @ self.T_world_camera[:3, :3].T + self.T_world_camera[:3, 3])

    def extend(
        self,
        track: NDArray[np.int64],
        uv: NDArray[np.float32],
        z_network: NDArray[np.float32],
        sigma: NDArray[np.float32],
    ) -> None:
        """See more tracks."""
        self.track, self.uv = np.concatenate([self.track, track]), np.concatenate([self.uv, uv])
        self.sigma = np.concatenate([self.sigma, sigma])
        self.z_network = np.concatenate([self.z_network, z_network])
        self.z = np.concatenate([self.z, np.full(len(track), np.nan)])

    def forget(self) -> None:
        """Keep poses alone, and what closes loops."""
        for member in self.members:
            member.followed = None
        self.usual_network = self.seen_depth
        # By the numbers alone: so the keyframes at both ends of a loop keep the same ones.
        order = np.argsort(self.looped * 2_654_435_761 % 2**32, kind="stable")
        self.looped = np.sort(self.looped[order[:MOST_LOOPED]])
        kept = np.isin(self.track, self.looped)
        self.track, self.uv = self.track[kept], self.uv[kept]
        self.z_network, self.z, self.sigma = self.z_network[kept], self.z[kept], self.sigma[kept]

    def move(self, T_world_camera: FloatArray, log_scale: float) -> None:
        """Place it anew; points and members come along."""
        self.z = self.z * np.exp(log_scale - self.log_scale)
        self.T_world_camera, self.log_scale = T_world_camera, log_scale

    def pose_of(self, member: AttachedFrame) -> FloatArray:
        """[4, 4] in the world of the map."""
        relative = member.T_keyframe_frame.copy()
        relative[:3, 3] *= np.exp(self.log_scale - member.log_scale)
        return np.asarray(self.T_world_camera @ relative)


def shared(first: Keyframe, second: Keyframe) -> NDArray[np.intp]:
    """Rows [M, 2] of both in which they see the same tracks."""
    _, a, b = np.intersect1d(first.track, second.track, assume_unique=True, return_indices=True)
    return np.stack([a, b], axis=1)
