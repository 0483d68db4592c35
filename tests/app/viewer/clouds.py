"""A store and a timeline filled with the box room, as the viewer fills them."""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.points import ranked_points
from stream_recon.app.viewer.timeline import Timeline
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import HALF, room_result

CONFIG = PointsConfig(confidence=0.0, voxel=0.05)


class Cloud:
    """The state of a viewer, without its server."""

    def __init__(self, voxel: float = 0.02, budget: int = 200_000, chunk_frames: int = 8, max_chunks: int = 64) -> None:
        self.timeline = Timeline()
        self.store = ChunkStore(budget, voxel, chunk_frames, max_chunks)

    def fill(self, frames: int, size: tuple[int, int] = (28, 21), settle_every: int = 8) -> "Cloud":
        """Add the next ``frames``."""
        for index in range(len(self.timeline), len(self.timeline) + frames):
            result = room_result(index, size=size)
            ordinal = self.timeline.add_frame(index, result.T_world_camera, result.intrinsics)
            self.store.add_frame(ordinal, result.T_world_camera)
            self.store.add_points(ordinal, *ranked_points(result, CONFIG))
            if ordinal % settle_every == 0:
                self.store.merge_pending()
        self.store.merge_pending()
        return self

    def revise(self, *frames: FrameRevision) -> None:
        named = self.timeline.revise(Revision(frames))
        self.store.revise(named, self.timeline.point_transforms(named), self.timeline.depth_fields[named])

    def update_points(self) -> None:
        while self.store.update_points(10_000):
            pass

    @property
    def point_transforms(self) -> NDArray[np.float64]:
        return self.timeline.point_transforms(np.arange(len(self.timeline)))

    @property
    def half_voxel(self) -> float:
        """The largest of any chunk, in the world's unit."""
        return max(chunk.voxel * chunk.S_world_chunk.scale for chunk in self.store.chunks) / 2

    def versions(self) -> list[int]:
        return [chunk.version for chunk in self.store.chunks]


class PointPositions:
    """Positions of the points, and the positions they must have after a revision of their own frames."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._frames = cloud.point_transforms
        points = cloud.store.world_points()
        self.xyz, self.frame = points.xyz.astype(np.float64), points.frame

    def errors(self) -> NDArray[np.float64]:
        """Distance of each point now from where it must be."""
        changes = (self._cloud.point_transforms @ np.linalg.inv(self._frames))[self.frame]
        wanted = np.einsum("nij,nj->ni", changes[:, :3, :3], self.xyz) + changes[:, :3, 3]
        now = self._cloud.store.world_points()
        np.testing.assert_array_equal(now.frame, self.frame)
        return np.asarray(np.linalg.norm(now.xyz - wanted, axis=1))

    def moved(self) -> NDArray[np.float64]:
        """Distance that each point has moved."""
        return np.asarray(np.linalg.norm(self._cloud.store.world_points().xyz - self.xyz, axis=1))


def similar(index: int, T_world_camera: NDArray[np.float64], change: Similarity) -> FrameRevision:
    """A frame in another world of another unit."""
    return FrameRevision(index, change.move_pose(T_world_camera), change.scale)


def wall_distance(xyz: NDArray[np.floating]) -> NDArray[np.float64]:
    """How far points are from the nearest wall of the room."""
    return np.asarray(np.abs(np.abs(xyz) - HALF).min(axis=1))
