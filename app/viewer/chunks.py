"""The viewer's points: chunks of consecutive frames, each in its anchor camera's axes, under one point budget.

No drawing here. A chunk's first frame is its anchor: points are kept in the anchor's camera axes, so a better pose
of the anchor moves the chunk as one body, and coordinates stay small enough for half precision.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.geometry import FramePoints, frame_points
from stream_recon.app.results import FrameResult
from stream_recon.app.transforms import invert_pose, transform_points
from stream_recon.app.voxels import voxel_first
from stream_recon.configs.schema import PointsConfig

COARSER = 2**0.25
"""One step of decimation: surfaces keep about 70 % of their points."""
LARGEST_SHARE = 4
"""No chunk holds more than the budget divided by this, so that one chunk is quick to send again while it grows."""


@dataclass(frozen=True)
class ChunkPoints:
    """Points in the anchor's axes, surest first."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    rank: NDArray[np.uint8]  # [N]; percent of the frame's pixels that are less confident, 0 to 100
    frame: NDArray[np.int32]  # [N]; ordinal of the frame that saw the point

    def __len__(self) -> int:
        return len(self.xyz)

    def take(self, indices: NDArray[np.intp]) -> "ChunkPoints":
        # For rows of three several times as fast as indexing.
        return ChunkPoints(
            self.xyz.take(indices, axis=0), self.rgb.take(indices, axis=0), self.rank[indices], self.frame[indices]
        )

    def head(self, count: int) -> "ChunkPoints":
        """The ``count`` surest points, without a copy."""
        return ChunkPoints(self.xyz[:count], self.rgb[:count], self.rank[:count], self.frame[:count])

    def shown(self, min_rank: int, last_frame: int) -> "ChunkPoints":
        """The points at least as sure as ``min_rank`` that were seen no later than frame ``last_frame``."""
        count = int(np.searchsorted(-self.rank.astype(np.int16), -min_rank, side="right"))
        sure = self.head(count)
        late = sure.frame > last_frame
        return sure.take(np.flatnonzero(~late)) if late.any() else sure


def no_points() -> ChunkPoints:
    return ChunkPoints(
        np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8), np.empty(0, np.uint8), np.empty(0, np.int32)
    )


def join_points(parts: list[ChunkPoints]) -> ChunkPoints:
    """Several sets as one, surest first; among equals the earlier set goes first."""
    joined = ChunkPoints(
        np.concatenate([p.xyz for p in parts]),
        np.concatenate([p.rgb for p in parts]),
        np.concatenate([p.rank for p in parts]),
        np.concatenate([p.frame for p in parts]),
    )
    return joined.take(np.argsort(100 - joined.rank, kind="stable"))


def ranked_points(result: FrameResult, config: PointsConfig) -> tuple[FramePoints, NDArray[np.uint8]]:
    """A frame's points from ``min_confidence`` on, and the rank in percent of each among the frame's pixels."""
    points = frame_points(result, replace(config, confidence_quantile=0.0))
    seen = result.confidence[result.depth > 0]
    # A sample is enough for percents, and sorting all pixels would cost more than all the rest.
    levels = np.quantile(seen[:: max(1, len(seen) // 4096)], np.linspace(0, 1, 101)) if len(seen) else np.zeros(1)
    rank = np.searchsorted(levels.astype(np.float32), points.confidence, side="right") - 1
    return points, np.clip(rank, 0, 100).astype(np.uint8)


@dataclass
class Chunk:
    """Points of the frames ``first`` to ``last`` (ordinals)."""

    first: int
    last: int
    T_world_anchor: NDArray[np.float64]  # [4, 4]
    voxel: float
    points: ChunkPoints = field(default_factory=no_points)
    version: int = 0
    """Goes up whenever ``points`` change; moving the anchor changes no points."""
    placed: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    """T_anchor_camera by which each frame's points were placed."""
    pending: list[ChunkPoints] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return sum(len(p) for p in self.pending)


class ChunkStore:
    """All chunks in order. Total points stay within ``budget`` once settled, chunks within ``max_chunks``.

    One point is kept in each voxel of a chunk, the surest one. Beyond the budget, chunks are decimated by coarser
    voxels, the older the more: sizes tend to fall with the square root of a chunk's age.
    """

    def __init__(self, budget: int, voxel: float, chunk_frames: int = 64, max_chunks: int = 64) -> None:
        assert budget >= max_chunks >= 2 and voxel > 0 and chunk_frames >= 1
        self.budget = budget
        self.voxel = voxel
        self.chunk_frames = chunk_frames
        self.max_chunks = max_chunks
        self.chunks: list[Chunk] = []
        self._open_first = 0
        self._revised: dict[int, NDArray[np.float64]] = {}

    @property
    def total(self) -> int:
        """Points held in settled chunks."""
        return sum(len(c.points) for c in self.chunks)

    def add_frame(self, ordinal: int, T_world_camera: NDArray[np.float64]) -> None:
        """Note a frame, in order; the first one of each chunk becomes its anchor, with points or without."""
        if not self.chunks or ordinal - self._open_first >= self.chunk_frames:
            self._settle(self.chunks[-1:])
            self._open_first = ordinal
            self.chunks.append(Chunk(ordinal, ordinal, T_world_camera, self.voxel))
            if len(self.chunks) > self.max_chunks:
                self._merge_pair()
        self.chunks[-1].last = ordinal

    def add_points(
        self, ordinal: int, T_world_camera: NDArray[np.float64], points: FramePoints, rank: NDArray[np.uint8]
    ) -> None:
        """Add a noted frame's points (camera axes); they count once `settle` has merged them."""
        chunk = self.chunk_of(ordinal)
        T_anchor_camera = invert_pose(chunk.T_world_anchor) @ T_world_camera
        chunk.placed[ordinal] = T_anchor_camera
        xyz = transform_points(T_anchor_camera, points.xyz)
        frame = np.full(len(xyz), ordinal, np.int32)
        thin = join_points([ChunkPoints(xyz, points.rgb, rank, frame)])
        chunk.pending.append(thin.take(voxel_first(thin.xyz, chunk.voxel)))
        if chunk.waiting > self._limit:
            self._settle([chunk])

    def settle(self) -> None:
        """Merge what was added, and bring the total within the budget."""
        self._settle([c for c in self.chunks if c.pending])
        while self.total > self.budget:
            ages = range(len(self.chunks) - 1, -1, -1)
            weights = [len(c.points) * math.sqrt(1 + age) for c, age in zip(self.chunks, ages, strict=True)]
            self._coarsen(self.chunks[int(np.argmax(weights))])

    def revise(self, poses: dict[int, NDArray[np.float64]]) -> None:
        """Apply better poses (by ordinal).

        An anchor's pose moves its chunk rigidly, without touching points. Another frame's points move within their
        chunk only if they would shift by more than half a voxel. Frames without a revision ride on their anchor.
        """
        self._revised.update(poses)
        for chunk in self.chunks:
            asked = poses
            if chunk.first in poses:
                chunk.T_world_anchor = poses[chunk.first]
                asked = self._revised  # those revised earlier have a place of their own and don't ride along
            for ordinal in [o for o in asked if chunk.first < o <= chunk.last and o in chunk.placed]:
                self._replace(chunk, ordinal, invert_pose(chunk.T_world_anchor) @ asked[ordinal])

    def chunk_of(self, ordinal: int) -> Chunk:
        """The chunk that holds frame ``ordinal``."""
        return next(c for c in reversed(self.chunks) if c.first <= ordinal <= c.last)

    def sample(self, count: int) -> NDArray[np.float32]:
        """About ``count`` of the settled points, in world axes [n, 3]."""
        stride = max(1, self.total // count)
        parts = [transform_points(c.T_world_anchor, c.points.xyz[::stride]) for c in self.chunks]
        return np.concatenate(parts) if parts else np.empty((0, 3), np.float32)

    def count_in_cone(self, apex: NDArray[np.float64], end: NDArray[np.float64], slope: float) -> int:
        """Settled points between ``apex`` and ``end`` (world, [3]), no further from that line than ``slope`` times
        their distance along it."""
        length = float(np.linalg.norm(end - apex))
        if length == 0:
            return 0
        count = 0
        for chunk in self.chunks:
            T = invert_pose(chunk.T_world_anchor)
            start = (T[:3, :3] @ apex + T[:3, 3]).astype(np.float32)
            axis = (T[:3, :3] @ (end - apex) / length).astype(np.float32)
            offset = chunk.points.xyz - start
            along = offset @ axis
            ahead = (along > 0) & (along < length)
            aside = np.linalg.norm(offset[ahead] - along[ahead, None] * axis, axis=1)
            count += int((aside < slope * along[ahead]).sum())
        return count

    @property
    def _limit(self) -> int:
        return max(1, self.budget // LARGEST_SHARE)

    def _settle(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            if not chunk.pending:
                continue
            merged = join_points([chunk.points, *chunk.pending])
            chunk.pending = []
            chunk.points = merged.take(voxel_first(merged.xyz, chunk.voxel))
            chunk.version += 1
            while len(chunk.points) > self._limit:
                self._coarsen(chunk)

    def _coarsen(self, chunk: Chunk) -> None:
        chunk.voxel *= COARSER
        chunk.points = chunk.points.take(voxel_first(chunk.points.xyz, chunk.voxel))
        chunk.version += 1

    def _merge_pair(self) -> None:
        """Make one chunk of the two neighbours with the fewest frames, the oldest such pair; never the open one."""
        frames = [b.last - a.first for a, b in zip(self.chunks[:-2], self.chunks[1:-1], strict=True)]
        at = int(np.argmin(frames))
        first, second = self.chunks[at], self.chunks.pop(at + 1)
        T_first_second = invert_pose(first.T_world_anchor) @ second.T_world_anchor
        moved = ChunkPoints(
            transform_points(T_first_second, second.points.xyz),
            second.points.rgb,
            second.points.rank,
            second.points.frame,
        )
        first.placed |= {o: T_first_second @ T for o, T in second.placed.items()}
        first.last = second.last
        first.voxel = max(first.voxel, second.voxel)
        first.pending.append(moved)
        self._settle([first])

    def _replace(self, chunk: Chunk, ordinal: int, T_anchor_camera: NDArray[np.float64]) -> None:
        self._settle([chunk])
        mine = np.flatnonzero(chunk.points.frame == ordinal)
        change = T_anchor_camera @ invert_pose(chunk.placed[ordinal])
        moved = transform_points(change, chunk.points.xyz[mine])
        if not len(mine) or np.abs(moved - chunk.points.xyz[mine]).max() <= chunk.voxel / 2:
            return
        xyz = chunk.points.xyz.copy()
        xyz[mine] = moved
        chunk.points = ChunkPoints(xyz, chunk.points.rgb, chunk.points.rank, chunk.points.frame)
        chunk.placed[ordinal] = T_anchor_camera
        chunk.version += 1
