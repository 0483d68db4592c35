"""The viewer's cloud: chunks of consecutive frames, each in axes of its own, under one point budget. No drawing here.

A chunk's axes lie in the world by a similarity, at first its first camera's pose, so that coordinates stay small
enough for half precision. When frames are revised, the similarity is fitted to them again and no point is touched.
Only where that leaves a point more than half a voxel from where it belongs, the chunk's points are expressed anew, each
by its own frame (`ChunkStore.mend`): then the frames that moved have moved alone.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import FramePoints
from stream_recon.app.core.disk_table import DiskColumn
from stream_recon.app.core.transforms import Similarity, transform_points
from stream_recon.app.core.voxels import voxel_first
from stream_recon.app.viewer.frame_poses import REACH_VOXELS, FramePoses
from stream_recon.app.viewer.points import RankedPoints, concatenate_points, join_points, no_points

COARSER = 2**0.25
"""One step of decimation: surfaces keep about 70 % of their points."""
LARGEST_SHARE = 4
"""No chunk holds more than the budget divided by this, so that one chunk is quick to send again while it grows."""


@dataclass
class Chunk:
    """Points of the frames ``first`` to ``last`` (ordinals)."""

    first: int
    last: int
    S_world_chunk: Similarity
    voxel: float
    """In the chunk's own unit, as are its points."""
    points: RankedPoints = field(default_factory=no_points)
    version: int = 0
    """Goes up whenever ``points`` change; moving the chunk changes no points."""
    strain: float = 0.0
    """How far the furthest point may be from where it belongs, in half voxels; beyond 1 the chunk has to be mended."""
    pending: list[RankedPoints] = field(default_factory=list)

    @property
    def waiting(self) -> int:
        return sum(len(p) for p in self.pending)

    @property
    def frames(self) -> slice:
        return slice(self.first, self.last + 1)


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
        self._placements = FramePoses(REACH_VOXELS * voxel)

    @property
    def total(self) -> int:
        """Points held in settled chunks."""
        return sum(len(c.points) for c in self.chunks)

    def add_frame(self, ordinal: int, T_world_camera: NDArray[np.float64]) -> None:
        """Note a frame, in order; chunks begin at every ``chunk_frames``-th one, with points or without."""
        assert ordinal == len(self._placements)
        self._placements.add(T_world_camera)
        if not self.chunks or ordinal - self._open_first >= self.chunk_frames:
            self._settle(self.chunks[-1:])
            self._open_first = ordinal
            axes = Similarity(1.0, T_world_camera[:3, :3].copy(), T_world_camera[:3, 3].copy())
            self.chunks.append(Chunk(ordinal, ordinal, axes, self.voxel))
            if len(self.chunks) > self.max_chunks:
                self._merge_pair()
        self.chunks[-1].last = ordinal

    def add_points(
        self, ordinal: int, points: FramePoints, rank: NDArray[np.uint8], window: NDArray[np.float64]
    ) -> None:
        """Add a noted frame's points (camera axes), see `ranked_points`; they count once `settle` has merged them."""
        chunk = self.chunk_of(ordinal)
        T_chunk_camera = chunk.S_world_chunk.inverse().matrix @ self._placements.world[ordinal]
        self._placements.fill(ordinal, T_chunk_camera, points.xyz, window)
        xyz = transform_points(T_chunk_camera, points.xyz)
        thin = join_points([RankedPoints(xyz, points.rgb, rank, np.full(len(xyz), ordinal, np.int32))])
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

    def revise(self, ordinals: NDArray[np.intp], placements: NDArray[np.float64], fields: NDArray[np.float64]) -> None:
        """Place frames [m] anew by ``placements`` [m, 4, 4] and ``fields`` [m, GRID, GRID] (see `Timeline`), as one
        change.

        No point is touched. A chunk all of whose frames are named takes the similarity that suits them best. One with
        others moves only if that leaves every point within half a voxel and staying where it is does not. What is
        then further off waits for `mend`.
        """
        self._placements.world[ordinals], self._placements.fields[ordinals] = placements, fields
        for chunk in self.chunks:
            inside = ordinals[(ordinals >= chunk.first) & (ordinals <= chunk.last)]
            if len(inside):
                named = self._placements.filled[chunk.frames] == 0
                named[inside - chunk.first] = True
                self._follow(chunk, bool(named.all()))

    def mend(self, limit: int) -> bool:
        """Express the points of chunks anew in which some are too far off: the worst chunk first, ``limit`` points or
        little more. False once nothing is left to do."""
        done = 0
        while (chunk := max(self.chunks, key=lambda c: c.strain, default=None)) and chunk.strain > 1:
            if done >= limit:
                return True
            done += self._express(chunk)
        return False

    def chunk_of(self, ordinal: int) -> Chunk:
        """The chunk that holds frame ``ordinal``."""
        return next(c for c in reversed(self.chunks) if c.first <= ordinal <= c.last)

    def world_points(self, min_rank: int = 0, last_frame: int | None = None) -> RankedPoints:
        """The settled points, chunk by chunk, in world axes; filtered as by `RankedPoints.shown`."""
        parts = []
        for chunk in self.chunks:
            points = chunk.points.shown(min_rank, chunk.last if last_frame is None else last_frame)
            parts.append(points.at(transform_points(chunk.S_world_chunk.matrix, points.xyz)))
        return concatenate_points(parts)

    def causal_points(
        self,
        chunk: Chunk,
        first_poses: DiskColumn,
        min_rank: int = 0,
        last_frame: int | None = None,
        stride: int = 1,
    ) -> RankedPoints:
        """A chunk's settled points where its frames were first placed, in the axes of its first frame's first pose.

        Args:
            first_poses: [n, 4, 4], of all frames.
            stride: of the points that are shown otherwise, every so many.
        """
        points = chunk.points.shown(min_rank, chunk.last if last_frame is None else last_frame)
        points = points.take(np.arange(0, len(points), stride)) if stride > 1 else points
        kept = self._placements.kept[chunk.frames]
        maps = np.linalg.inv(first_poses[chunk.first]) @ first_poses[chunk.frames]
        fields, frame = -self._placements.kept_fields[chunk.frames], points.frame - chunk.first
        return points.at(self._placements.moved(chunk.frames, kept, fields, maps, frame, points.xyz))

    def sample(self, count: int) -> NDArray[np.float32]:
        """About ``count`` of the settled points, in world axes [n, 3]."""
        stride = max(1, self.total // count)
        parts = [transform_points(c.S_world_chunk.matrix, c.points.xyz[::stride]) for c in self.chunks]
        return np.concatenate(parts) if parts else np.empty((0, 3), np.float32)

    def count_in_cone(self, apex: NDArray[np.float64], end: NDArray[np.float64], slope: float) -> int:
        """Settled points between ``apex`` and ``end`` (world, [3]), no further from that line than ``slope`` times
        their distance along it."""
        if np.array_equal(apex, end):
            return 0
        count = 0
        for chunk in self.chunks:
            start, goal = chunk.S_world_chunk.inverse().apply(np.stack([apex, end]))
            length = float(np.linalg.norm(goal - start))
            axis = ((goal - start) / length).astype(np.float32)
            offset = chunk.points.xyz - start.astype(np.float32)
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
        S_first_second = first.S_world_chunk.inverse() @ second.S_world_chunk
        self._placements.kept[second.frames] = S_first_second.matrix @ self._placements.kept[second.frames]
        first.last = second.last
        first.voxel = max(first.voxel, second.voxel * S_first_second.scale)
        first.strain = max(first.strain, second.strain)
        first.pending.append(second.points.at(transform_points(S_first_second.matrix, second.points.xyz)))
        self._settle([first])

    def _follow(self, chunk: Chunk, all_named: bool) -> None:
        """Let a chunk follow its frames as far as a similarity can."""
        strains = None if all_named else self._strains(chunk, chunk.S_world_chunk)
        if strains is not None and strains.max() <= 1:
            chunk.strain = float(strains.max())
            return
        fitted = self._placements.fit(chunk.frames) or chunk.S_world_chunk
        anew = self._strains(chunk, fitted)
        if anew.max() > 1:
            strains = self._strains(chunk, chunk.S_world_chunk) if strains is None else strains
            # Where some stay, or most do and others go far, the fit would take those along.
            if not all_named or (anew > 1).sum() > (strains > 1).sum():
                chunk.strain = float(strains.max())
                return
        chunk.S_world_chunk, chunk.strain = fitted, float(anew.max())

    def _strains(self, chunk: Chunk, S_world_chunk: Similarity) -> NDArray[np.float64]:
        """How far [k] the furthest point of each frame may be from where it belongs, in half voxels of the chunk."""
        return self._placements.offsets(chunk.frames, S_world_chunk) / (chunk.voxel * S_world_chunk.scale / 2)

    def _express(self, chunk: Chunk) -> int:
        """Put each point of a chunk where its frame belongs; gives the count of points."""
        self._settle([chunk])
        chunk.strain = 0.0
        kept, world = self._placements.kept[chunk.frames], self._placements.world[chunk.frames]
        frame = chunk.points.frame - chunk.first
        off = self._strains(chunk, chunk.S_world_chunk) > 1
        if not off[frame].any():  # other frames had surer points in all the same voxels
            self._placements.filled[chunk.frames] = (self._placements.filled[chunk.frames] > 0) & ~off
            return 0
        belongs = chunk.S_world_chunk.inverse().matrix @ world
        fields, before = self._placements.fields[chunk.frames], self._placements.kept_fields[chunk.frames]
        xyz = self._placements.moved(chunk.frames, kept, fields - before, belongs, frame, chunk.points.xyz)
        self._placements.kept[chunk.frames], self._placements.kept_fields[chunk.frames] = belongs, fields
        chunk.points = chunk.points.at(xyz)
        chunk.version += 1
        return len(frame)
