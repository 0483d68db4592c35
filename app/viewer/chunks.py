"""The viewer's points: chunks of consecutive frames, each in its own axes, under one point budget.

A similarity takes a chunk's axes to the world. It begins as the pose of the chunk's first camera, so that coordinates
stay small enough for half precision. After a revision the similarity is fitted to the chunk's frames again, and no
point changes. Where that leaves an error above half a voxel, `ChunkStore.update_points` recomputes the chunk's points,
each by its own frame.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import FramePoints
from stream_recon.app.core.per_frame_arrays import PerFrameArray
from stream_recon.app.core.transforms import Similarity, transform_points
from stream_recon.app.core.voxels import voxel_first
from stream_recon.app.viewer.frame_poses import REACH_VOXELS, FramePoses
from stream_recon.app.viewer.points import (
    ALL_POINTS,
    PointOptions,
    RankedPoints,
    concatenate_points,
    join_points,
    no_points,
)

COARSER = 2**0.25
"""Growth of the voxel in one step of decimation: surfaces keep about 70 % of their points."""
LARGEST_SHARE = 4
"""A chunk holds at most the budget divided by this, so that a growing chunk is quick to send again."""


@dataclass
class Chunk:
    """Points of the frames ``first`` to ``last`` (ordinals)."""

    first: int
    last: int
    S_world_chunk: Similarity
    voxel: float
    """Edge of a voxel in the chunk's unit, which its points have, too."""
    points: RankedPoints = field(default_factory=no_points)
    version: int = 0
    """Number of changes of ``points``; moving the chunk changes no points."""
    error_half_voxels: float = 0.0
    """Bound of the points' position error in half voxels; above 1 the points have to be recomputed."""
    pending: list[RankedPoints] = field(default_factory=list)
    """Points not yet merged into ``points``."""

    @property
    def pending_count(self) -> int:
        """Number of points that are not merged yet."""
        return sum(len(p) for p in self.pending)

    @property
    def frames(self) -> slice:
        return slice(self.first, self.last + 1)


class ChunkStore:
    """All chunks in order: at most ``max_chunks``, and at most ``budget`` points once pending ones are merged.

    Each voxel of a chunk keeps its most confident point. Above the budget, chunks are decimated by coarser voxels,
    older ones more: sizes tend to fall with the square root of a chunk's age.
    """

    def __init__(self, budget: int, voxel: float, chunk_frames: int = 64, max_chunks: int = 64) -> None:
        assert budget >= max_chunks >= 2 and voxel > 0 and chunk_frames >= 1
        self.budget = budget
        self.voxel = voxel
        self.chunk_frames = chunk_frames
        self.max_chunks = max_chunks
        self.chunks: list[Chunk] = []
        self._open_first = 0
        self._frames = FramePoses(REACH_VOXELS * voxel)

    @property
    def total(self) -> int:
        """Number of merged points."""
        return sum(len(c.points) for c in self.chunks)

    @property
    def firsts(self) -> set[int]:
        """Ordinals of the chunks' first frames."""
        return {chunk.first for chunk in self.chunks}

    def add_frame(self, ordinal: int, T_world_camera: NDArray[np.float64]) -> None:
        """Add the next frame; a chunk begins at every ``chunk_frames``-th one."""
        assert ordinal == len(self._frames)
        self._frames.add(T_world_camera)
        if not self.chunks or ordinal - self._open_first >= self.chunk_frames:
            self._merge(self.chunks[-1:])
            self._open_first = ordinal
            axes = Similarity(1.0, T_world_camera[:3, :3].copy(), T_world_camera[:3, 3].copy())
            self.chunks.append(Chunk(ordinal, ordinal, axes, self.voxel))
            if len(self.chunks) > self.max_chunks:
                self._merge_pair()
        self.chunks[-1].last = ordinal

    def add_points(
        self, ordinal: int, points: FramePoints, rank: NDArray[np.uint8], window: NDArray[np.float64]
    ) -> None:
        """Add a frame's points in camera axes, see `ranked_points`; `merge_pending` makes them visible."""
        chunk = self.chunk_of(ordinal)
        T_chunk_camera = chunk.S_world_chunk.inverse().matrix @ self._frames.to_world[ordinal]
        self._frames.fill(ordinal, T_chunk_camera, points.xyz, window)
        xyz = transform_points(T_chunk_camera, points.xyz)
        thin = join_points([RankedPoints(xyz, points.rgb, rank, np.full(len(xyz), ordinal, np.int32))])
        chunk.pending.append(thin.take(voxel_first(thin.xyz, chunk.voxel)))
        if chunk.pending_count > self._limit:
            self._merge([chunk])

    def merge_pending(self) -> None:
        """Merge added points, and decimate chunks until the total is within the budget."""
        self._merge([c for c in self.chunks if c.pending])
        while self.total > self.budget:
            ages = range(len(self.chunks) - 1, -1, -1)
            weights = [len(c.points) * math.sqrt(1 + age) for c, age in zip(self.chunks, ages, strict=True)]
            self._coarsen(self.chunks[int(np.argmax(weights))])

    def revise(
        self, ordinals: NDArray[np.intp], point_transforms: NDArray[np.float64], fields: NDArray[np.float64]
    ) -> None:
        """Set ``point_transforms`` [m, 4, 4] and ``fields`` [m, GRID, GRID] of frames [m] (see `Timeline`).

        No point changes. If all frames of a chunk are named, its similarity is fitted to them. Otherwise the chunk
        moves only if that brings every point within half a voxel, and staying does not. `update_points` corrects
        larger errors.
        """
        self._frames.to_world[ordinals], self._frames.fields[ordinals] = point_transforms, fields
        for chunk in self.chunks:
            inside = ordinals[(ordinals >= chunk.first) & (ordinals <= chunk.last)]
            if len(inside):
                named = self._frames.filled[chunk.frames] == 0
                named[inside - chunk.first] = True
                self._refit(chunk, bool(named.all()))

    def update_points(self, limit: int) -> bool:
        """Recompute points of chunks with errors above half a voxel, the worst chunk first, until ``limit`` points are
        reached. False once nothing is left to do."""
        done = 0
        while (
            chunk := max(self.chunks, key=lambda c: c.error_half_voxels, default=None)
        ) and chunk.error_half_voxels > 1:
            if done >= limit:
                return True
            done += self._recompute(chunk)
        return False

    def chunk_of(self, ordinal: int) -> Chunk:
        """The chunk that holds frame ``ordinal``."""
        return next(c for c in reversed(self.chunks) if c.first <= ordinal <= c.last)

    def world_points(self, options: PointOptions = ALL_POINTS) -> RankedPoints:
        """The merged points that the options show, chunk by chunk, in world axes."""
        parts = []
        for chunk in self.chunks:
            points = chunk.points.filtered(options)
            parts.append(replace(points, xyz=transform_points(chunk.S_world_chunk.matrix, points.xyz)))
        return concatenate_points(parts)

    def count(self, options: PointOptions) -> int:
        """Number of merged points that the options show."""
        return sum(len(chunk.points.filtered(options)) for chunk in self.chunks)

    def causal_points(self, chunk: Chunk, causal_poses: PerFrameArray, stride: int = 1) -> RankedPoints:
        """Every ``stride``-th merged point of a chunk at its causal pose, in the axes of the chunk's first camera.

        ``causal_poses``: [n, 4, 4], of all frames.
        """
        points = chunk.points
        points = points.take(np.arange(0, len(points), stride)) if stride > 1 else points
        maps = np.linalg.inv(causal_poses[chunk.first]) @ causal_poses[chunk.frames]
        fields, frame = -self._frames.applied_fields[chunk.frames], points.frame - chunk.first
        return replace(points, xyz=self._frames.moved(chunk.frames, fields, maps, frame, points.xyz))

    def sample(self, count: int) -> NDArray[np.float32]:
        """About ``count`` of the merged points, in world axes [n, 3]."""
        stride = max(1, self.total // count)
        parts = [transform_points(c.S_world_chunk.matrix, c.points.xyz[::stride]) for c in self.chunks]
        return np.concatenate(parts) if parts else np.empty((0, 3), np.float32)

    @property
    def _limit(self) -> int:
        return max(1, self.budget // LARGEST_SHARE)

    def _merge(self, chunks: list[Chunk]) -> None:
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
        """Merge the two neighbouring chunks with the fewest frames, the oldest such pair, except the last chunk."""
        frames = [b.last - a.first for a, b in zip(self.chunks[:-2], self.chunks[1:-1], strict=True)]
        at = int(np.argmin(frames))
        first, second = self.chunks[at], self.chunks.pop(at + 1)
        S_first_second = first.S_world_chunk.inverse() @ second.S_world_chunk
        self._frames.to_chunk[second.frames] = S_first_second.matrix @ self._frames.to_chunk[second.frames]
        first.last = second.last
        first.voxel = max(first.voxel, second.voxel * S_first_second.scale)
        first.error_half_voxels = max(first.error_half_voxels, second.error_half_voxels)
        first.pending.append(replace(second.points, xyz=transform_points(S_first_second.matrix, second.points.xyz)))
        self._merge([first])

    def _refit(self, chunk: Chunk, all_named: bool) -> None:
        """Fit a chunk's similarity to its revised frames, where that reduces errors."""
        present = None if all_named else self._errors_half_voxels(chunk, chunk.S_world_chunk)
        if present is not None and present.max() <= 1:
            chunk.error_half_voxels = float(present.max())
            return
        fitted = self._frames.fit(chunk.frames) or chunk.S_world_chunk
        errors = self._errors_half_voxels(chunk, fitted)
        if errors.max() > 1:
            present = self._errors_half_voxels(chunk, chunk.S_world_chunk) if present is None else present
            # If most frames stay and a few move far, the fit would displace the others.
            if not all_named or (errors > 1).sum() > (present > 1).sum():
                chunk.error_half_voxels = float(present.max())
                return
        chunk.S_world_chunk, chunk.error_half_voxels = fitted, float(errors.max())

    def _errors_half_voxels(self, chunk: Chunk, S_world_chunk: Similarity) -> NDArray[np.float64]:
        """Bounds [k] of the frames' position errors, in half voxels of the chunk."""
        return self._frames.errors(chunk.frames, S_world_chunk) / (chunk.voxel * S_world_chunk.scale / 2)

    def _recompute(self, chunk: Chunk) -> int:
        """Recompute the points of a chunk by their frames; gives the number of points."""
        self._merge([chunk])
        chunk.error_half_voxels = 0.0
        to_world = self._frames.to_world[chunk.frames]
        frame = chunk.points.frame - chunk.first
        wrong = self._errors_half_voxels(chunk, chunk.S_world_chunk) > 1
        if not wrong[frame].any():  # other frames have more confident points in all the same voxels
            self._frames.filled[chunk.frames] = (self._frames.filled[chunk.frames] > 0) & ~wrong
            return 0
        to_chunk = chunk.S_world_chunk.inverse().matrix @ to_world
        fields, applied = self._frames.fields[chunk.frames], self._frames.applied_fields[chunk.frames]
        xyz = self._frames.moved(chunk.frames, fields - applied, to_chunk, frame, chunk.points.xyz)
        self._frames.to_chunk[chunk.frames], self._frames.applied_fields[chunk.frames] = to_chunk, fields
        chunk.points = replace(chunk.points, xyz=xyz)
        chunk.version += 1
        return len(frame)
