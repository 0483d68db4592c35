"""Stitching of split scenes: chunks become one ordinary result folder while later chunks are still under way."""

import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from stream_recon.app.batch.chunks import AlignedChunks
from stream_recon.app.batch.jobs import Job, ModelIdentity, Seconds, StageTimer, chunks_folder
from stream_recon.app.batch.scene_stages import manifest_record, run_scene_stages
from stream_recon.app.batch.stitched_files import StitchedFiles, stitched_health, stitched_segments
from stream_recon.app.batch.store import Store
from stream_recon.app.core.process import peak_host_memory_mb
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import RUN_NAME, RunInfo, RunSummary, run_record
from stream_recon.configs.errors import InputError

PARALLEL_STAGE = "frames, in parallel to points"
"""Stage that overlaps others and so is left out of the sum; waiting for its end has its own stage."""


class SceneStitcher:
    """Takes the chunks of one scene as they are finished, in any order, and appends each once all before it are there.

    One thread at a time may use it. Always close it.
    """

    def __init__(self, job: Job, chunks: Sequence[Job], store: Store, model: ModelIdentity) -> None:
        self._job, self._store, self._model = job, store, model
        self.chunks = list(chunks)
        """All of them, in order."""
        self.added: list[Future[None]] = []
        """Calls of `add_chunk` in another thread, whose errors `finish` raises."""
        self.last_end: float | None = None
        """End of the last chunk by `time.monotonic`; None: it was finished by an earlier batch."""
        self._waiting = deque(chunks)
        self._finished: set[str] = set()
        self._phases: Seconds = {}
        self._aligned = AlignedChunks()
        self._stack = ExitStack()
        # Frames are Python's work and points that of numpy, which releases Python's lock.
        self._frames_thread = self._stack.enter_context(ThreadPoolExecutor(1, "frames"))
        self._frames_added: list[Future[None]] = []

    def add_chunk(self, name: str) -> None:
        """Append all chunks that can be, after the chunk of that name is finished.

        The stitcher is unusable after a StreamReconError: chunks share no frame, damaged results, no room.
        """
        self._finished.add(name)
        while self._waiting and self._waiting[0].name in self._finished:
            self._append(self._waiting.popleft())

    def finish(self) -> dict[str, Any]:
        """Evaluate the scene, publish it, and remove the chunks, all of which were added.

        Returns the record for the manifest. ``overlaps`` are the alignment errors. ``chunk_seconds`` and
        ``stitch_seconds`` are the times of each chunk and of the stitching; ``stitch_seconds_after`` is the part of it
        after `last_end`.

        Raises:
            StreamReconError: no frame was readable, damaged results, no room.
        """
        for added in self.added:
            added.result()
        assert not self._waiting, "a chunk is missing"
        if not self._aligned.chunks:
            raise InputError(f"not one frame of {self._job.scene.path} is readable")
        self._begin_frames(len(self._aligned.chunks) - 1)
        with self._timed("wait for frames"):
            for added in self._frames_added:
                added.result()
            self._files.close()
        overlaps = [dataclasses.asdict(overlap) for overlap in self._aligned.overlaps]
        runs = [chunk.run for chunk in self._aligned.chunks]
        info = self._run_info(runs[0], overlaps)
        stitch_seconds = sum(seconds for phase, seconds in self._phases.items() if phase != PARALLEL_STAGE)
        summary = self._summary(stitch_seconds)
        times = {"phases": self._rounded_phases(), "chunk_phases": [run.get("phases", {}) for run in runs]}
        replace_json(self._work / RUN_NAME, {**run_record(info, summary), **times})
        after = None if self.last_end is None else round(time.monotonic() - self.last_end, 3)
        # Refinement goes across overlaps, too: it removes the drift between chunks.
        timer = StageTimer("stages")
        with FolderLock(self._work) as lock:
            staged = run_scene_stages(self._job, lock, self._evaluator, timer)
        timer.enter("stages")
        self._phases |= {name: seconds for name, seconds in timer.seconds.items() if name != "stages"}
        record = manifest_record(summary, self._evaluator, summary.seconds, info.device) | {
            **staged,
            "overlaps": overlaps,
            "chunk_seconds": [run["timings"]["seconds"] for run in runs],
            "stitch_seconds": round(stitch_seconds, 3),
            "stitch_seconds_after": after,
            "stitch_phases": self._rounded_phases(),
        }
        with self._timed("publish"):
            self._store.publish(self._work, self._job.name, self._job.key, record, self._files.checksums)
        with self._timed("remove the chunks"):
            self._stack.close()
            self._store.remove_results(chunks_folder(self._job.name))
        return {**record, "stitch_phases": self._rounded_phases()}

    def close(self) -> None:
        """Close files, and remove the workspace with a result that was not published."""
        self._stack.close()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        started_at = time.monotonic()
        yield
        self._phases[phase] = self._phases.get(phase, 0.0) + time.monotonic() - started_at

    def _rounded_phases(self) -> Seconds:
        return {phase: round(seconds, 3) for phase, seconds in self._phases.items()}

    def _append(self, chunk: Job) -> None:
        folder = self._stack.enter_context(self._store.fetch(chunk.name))
        if folder is None:  # the chunk has no readable frame
            return
        number = len(self._aligned.chunks)
        if not number:
            self._store.check_target(self._job.name)
            self._truth = self._job.scene.truth()
            self._evaluator = Evaluator(self._truth)
            self._work = self._stack.enter_context(self._store.workspace())
            self._files = StitchedFiles(self._work, self._model.preset.points.voxel)
            self._stack.callback(self._files.close)
        with self._timed("read"):
            result = read_result(folder)
        with self._timed("align"):
            self._aligned = self._aligned.with_next(result)
        if number:
            self._begin_frames(number - 1)
        with self._timed("points"):
            self._files.add_points(self._aligned, number)

    def _begin_frames(self, number: int) -> None:
        """Add the frames of a chunk whose overlaps are known, in the other thread."""
        self._frames_added.append(self._frames_thread.submit(self._add_frames, self._aligned, number))

    def _add_frames(self, aligned: AlignedChunks, number: int) -> None:
        with self._timed(PARALLEL_STAGE):
            begin = len(self._files.cameras)
            self._files.add_frames(aligned, number)
            if self._truth is None:
                for camera in self._files.cameras[begin:]:
                    self._evaluator.add_pose(camera.index, camera.T_world_camera)
            else:
                for result in aligned.results_of(number):
                    self._evaluator.add(result)

    def _run_info(self, first: dict[str, Any], overlaps: list[dict[str, Any]]) -> RunInfo:
        """What ``run.json`` records of source and model; ``first`` is that of the first chunk."""
        model, recorded = self._model, {"source": str(self._job.scene.path), **self._job.key["options"]}
        options = {**recorded, "chunks": len(self.chunks), "overlaps": overlaps}
        device, precision = first["device"], first["precision"]
        return RunInfo(first["source"], model.preset, model.weights_sha256, device, options, precision, model.cache)

    def _summary(self, stitch_seconds: float) -> RunSummary:
        """Summary of the stitched run; its seconds are the sum over all chunks and the stitching."""
        cameras, runs = self._files.cameras, [chunk.run for chunk in self._aligned.chunks]
        device_peaks = [run["peak_memory_mb"]["device"] for run in runs if run["peak_memory_mb"]["device"] is not None]
        warnings = dict.fromkeys(warning for run in runs for warning in run["warnings"])
        if len(runs) < len(self.chunks):
            warnings[f"it ends in chunk {len(runs)} of {len(self.chunks)}: the others had no readable frame"] = None
        return RunSummary(
            interrupted=False,
            frames_read=len(cameras),
            frames_reconstructed=len(cameras),
            keyframes=sum(camera.is_keyframe for camera in cameras),
            # A lower bound: a chunk decoded from the start meets earlier damage again, so a sum might count it twice.
            frames_damaged=max(run["frames"]["damaged"] for run in runs),
            seconds=stitch_seconds + sum(run["timings"]["seconds"] for run in runs),
            peak_host_memory_mb=max(peak_host_memory_mb(), *(run["peak_memory_mb"]["host"] for run in runs)),
            peak_device_memory_mb=max(device_peaks, default=None),
            attention=runs[0]["attention"],
            warnings=tuple(warnings),
            health=stitched_health(self._aligned),
            segments=stitched_segments(self._aligned),
        )
