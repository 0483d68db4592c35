"""Chunks of a long video: how it is split into overlapping jobs, and how their results are aligned.

Each chunk is reconstructed in its own coordinate system. Neighbours share the frames of their overlap. The scale
between them is the median over these frames of `depth_ratio`: both see the same picture, so no matching is needed.
Rotation and translation come from the shared poses, see `align_poses`.
"""

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from stream_recon.app.batch.jobs import ChunkRange, Job, chunks_folder
from stream_recon.app.core.depth_points import depth_ratio, transform_result
from stream_recon.app.core.transforms import Similarity, align_poses, rotation_angle_deg
from stream_recon.app.core.types import FrameResult
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder, result_of
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

MIN_OVERLAP = 12
"""Fewest frames of an overlap: enough for a median scale that a few bad depth maps do not move."""
MAX_OVERLAP = 48
"""Most frames of an overlap: more cost time and improve the alignment little."""
OVERLAP_DIVISOR = 4
"""The overlap is a chunk's share of the frames divided by this, within the bounds above."""
MIN_CHUNK = 2 * MIN_OVERLAP
"""Fewest frames per chunk, half of them not shared. A shorter video gets fewer chunks."""
SAME_TIME_SECONDS = 1e-4
"""Largest difference between two chunks' times of one frame; no two frames of a video are so close."""
ALIGN_THREADS = 8
"""Threads that read depth files for the alignment."""


def open_job(job: Job, *, resumed: bool = False) -> Source:
    """Open the frames of a job. Raises InputError.

    ``resumed``: do not skip to the chunk's first frame, since `Source.resume` follows.
    """
    chunk, stride, limit = job.chunk, job.options.frames.stride, job.options.frames.max_frames
    if chunk is None:
        return job.scene.open(stride, limit)
    last = chunk.last if chunk.last is not None else limit
    source = job.scene.open(stride, None if last is None else last - chunk.first)
    if not resumed:
        source.skip(chunk.first, read_through=job.read_through)
    return source


def has_readable_frame(job: Job) -> bool:
    """Whether any frame of a job can be read."""
    try:
        with open_job(job) as source:
            return next(source, None) is not None
    except InputError:
        return False


def plan_chunks(frames: int, count: int) -> list[ChunkRange]:
    """At most ``count`` chunks over ``frames`` frames; each but the first begins with the end of its predecessor.

    The last one is open-ended, since containers may give a wrong length.
    """
    count = max(1, min(count, frames // MIN_CHUNK))
    overlap = min(max(frames // (OVERLAP_DIVISOR * count), MIN_OVERLAP), MAX_OVERLAP)
    # All chunks have the same number of frames, so that no worker waits for another.
    starts = [number * (frames - overlap) // count for number in range(count)]
    ends = [start + overlap for start in starts[1:]]
    return [ChunkRange(first, last) for first, last in zip(starts, [*ends, None], strict=True)]


def chunk_jobs(job: Job, count: int) -> list[Job]:
    """Jobs for the chunks of a scene, in order; one if it is too short. Raises InputError if its length is unknown."""
    if job.frames is None:
        raise InputError(f"{job.scene.path} has no known number of frames and cannot be split: leave out --split")
    return [
        dataclasses.replace(
            job,
            name=f"{chunks_folder(job.name)}/{number}",
            chunk=chunk,
            # Called as in version 0.2, whose finished chunks still count.
            key={**job.key, "window": dataclasses.asdict(chunk)},
        )
        for number, chunk in enumerate(plan_chunks(job.frames, count))
    ]


class FrameMismatchError(InputError):
    """Two chunks number their frames differently: seeking entered one of them at the wrong frame."""


@dataclass(frozen=True)
class OverlapAlignment:
    """Alignment error of two neighbouring chunks. Lengths are in the unit of the stitched result."""

    first: int
    """Index in the source of the overlap's first frame."""
    last: int
    frames: int
    scale: float
    """Scale of the later chunk relative to the one before."""
    scale_spread: float
    """Median deviation of the frames' scales from it, relative to it."""
    position_error: float
    """RMSE between the positions of the shared frames, after alignment."""
    position_error_of_path: float | None
    """The same relative to the path's length through the overlap; None where the camera stands still."""
    rotation_error_deg: float
    """Mean angle between the orientations of the shared frames, after alignment."""


@dataclass(frozen=True)
class AlignedChunks:
    """Chunks of a scene, aligned to the coordinate system of the first one."""

    chunks: tuple[ResultFolder, ...] = ()
    transforms: tuple[Similarity, ...] = ()
    """T_first_chunk of each chunk."""
    overlaps: tuple[OverlapAlignment, ...] = ()

    def with_next(self, chunk: ResultFolder) -> "AlignedChunks":
        """These and one more chunk, aligned to the last one.

        Raises:
            FrameMismatchError: they share no frame, or number their frames differently.
            InputError: a shared frame has no depth.
            OutputError: a damaged result.
        """
        if not self.chunks:
            return AlignedChunks((chunk,), (Similarity.identity(),), ())
        similarity, overlap = _align(self.chunks[-1], chunk, self.transforms[-1].scale)
        return AlignedChunks(
            (*self.chunks, chunk), (*self.transforms, self.transforms[-1] @ similarity), (*self.overlaps, overlap)
        )

    def frames_of(self, number: int) -> Iterator[FrameCamera]:
        """Frames taken from a chunk, in order; of the last chunk all to its end.

        Neighbours meet in the middle of the overlap, where both have the most context.
        """
        begin = self._boundary(number - 1) if number else -1
        end = self._boundary(number) if number < len(self.overlaps) else None
        for camera in self.chunks[number].cameras:
            if camera.index >= begin and (end is None or camera.index < end):
                yield camera

    def results_of(self, number: int) -> Iterator[FrameResult]:
        """Results of these frames in the first chunk's coordinates."""
        for camera in self.frames_of(number):
            yield transform_result(result_of(self.chunks[number].folder, camera), self.transforms[number])

    def _boundary(self, overlap: int) -> int:
        return (self.overlaps[overlap].first + self.overlaps[overlap].last + 1) // 2


def _align(before: ResultFolder, after: ResultFolder, scale_before: float) -> tuple[Similarity, OverlapAlignment]:
    """T_before_after of neighbouring chunks, and its error.

    ``scale_before``: scale of the stitched result relative to the earlier chunk.
    """
    known = {camera.index: camera for camera in before.cameras}
    pairs = [(known[camera.index], camera) for camera in after.cameras if camera.index in known]
    both = f"chunks {before.folder.name} and {after.folder.name}"
    if not pairs:
        raise FrameMismatchError(f"{both} share no frame")
    if any(abs(a.timestamp - b.timestamp) > SAME_TIME_SECONDS for a, b in pairs):
        raise FrameMismatchError(f"{both} number frames differently")

    def ratio(pair: tuple[FrameCamera, FrameCamera]) -> float:
        scale = depth_ratio(result_of(before.folder, pair[0]), result_of(after.folder, pair[1]))
        if scale is None:
            raise InputError(f"frame {pair[0].index} has no depth to align two chunks by")
        return scale

    with ThreadPoolExecutor(ALIGN_THREADS, "align") as pool:
        scales = np.array(list(pool.map(ratio, pairs)), np.float64)
    scale = float(np.median(scales))
    earlier = np.array([a.T_world_camera for a, _ in pairs])
    later = np.array([b.T_world_camera for _, b in pairs])
    similarity = align_poses(later, earlier, scale)
    residuals = np.linalg.norm(similarity.apply(later[:, :3, 3]) - earlier[:, :3, 3], axis=1)
    error = float(np.sqrt(np.mean(residuals**2)))
    path = float(np.linalg.norm(np.diff(earlier[:, :3, 3], axis=0), axis=1).sum())
    rotations = np.swapaxes(earlier[:, :3, :3], 1, 2) @ similarity.rotation @ later[:, :3, :3]
    return similarity, OverlapAlignment(
        first=pairs[0][0].index,
        last=pairs[-1][0].index,
        frames=len(pairs),
        scale=scale,
        scale_spread=float(np.median(np.abs(scales - scale)) / scale),
        position_error=scale_before * error,
        position_error_of_path=error / path if path > 0 else None,
        rotation_error_deg=float(rotation_angle_deg(rotations).mean()),
    )
