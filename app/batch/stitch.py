"""The windows of a split scene, joined into one ordinary result folder while later windows are still under way.

The split scenes of a batch, each stitched in a thread beside the workers while its windows are finished.
"""

import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from stream_recon.app.batch.chunks import NOTHING_JOINED, AlignedChunks
from stream_recon.app.batch.jobs import Job, Model, Seconds, windows_folder
from stream_recon.app.batch.scene import record_of, refine_scene, scene_in_metres
from stream_recon.app.batch.stitched_files import StitchedFiles, stitched_health, stitched_segments
from stream_recon.app.batch.store import Store
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.pipeline.process import peak_host_memory_mb
from stream_recon.app.result.files import replace_json
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.run_record import RUN_NAME, RunInfo, RunSummary, run_record
from stream_recon.configs.errors import InputError

BESIDE = "frames, beside points"
"""The phase that runs while others do: what it takes longer than they is waited for, and counted there."""


class Stitching:
    """Takes the windows of one scene as they are finished, in any order, and joins each once all before it are there.

    One thread at a time may use it; which one does not matter. Close it, whatever came of it.
    """

    def __init__(self, unit: Job, windows: Sequence[Job], store: Store, model: Model) -> None:
        self._unit, self._store, self._model = unit, store, model
        self._count = len(windows)
        self._waiting = deque(windows)
        self._finished: set[str] = set()
        self._phases: Seconds = {}
        self._joined = NOTHING_JOINED
        self._stack = ExitStack()
        # Lines and links are Python's work, points that of numpy, which leaves Python's lock alone.
        self._beside = self._stack.enter_context(ThreadPoolExecutor(1, "frames"))
        self._frames_taken: list[Future[None]] = []

    def take(self, name: str) -> None:
        """Join what can be, now that the window of that name is finished.

        Raises:
            StreamReconError: windows that share no frame, damaged results, no room. It cannot go on after that.
        """
        self._finished.add(name)
        while self._waiting and self._waiting[0].name in self._finished:
            self._join(self._waiting.popleft())

    def finish(self, last_end: float | None = None) -> dict[str, Any]:
        """Measure the whole, publish it, and remove the windows, all of which were taken.

        Gives what the manifest records; ``seams`` says how well the windows fit, ``window_seconds`` and
        ``stitch_seconds`` how long each of them and the joining took, ``stitch_seconds_after`` how much of it came
        after ``last_end``, when the last window was finished (by `time.monotonic`; None: in an earlier batch).

        Raises:
            StreamReconError: no frame was readable, damaged results, no room.
        """
        assert not self._waiting, "a window is missing"
        if not self._joined.windows:
            raise InputError(f"not one frame of {self._unit.scene.path} is readable")
        self._begin_frames(len(self._joined.windows) - 1)
        with self._timed("wait for frames"):
            for taken in self._frames_taken:
                taken.result()
            self._files.close()
        seams = [dataclasses.asdict(seam) for seam in self._joined.seams]
        runs = [window.run for window in self._joined.windows]
        options = {
            "source": str(self._unit.scene.path), **self._unit.key["options"], "windows": self._count, "seams": seams
        }  # fmt: skip
        first, model = runs[0], self._model
        info = RunInfo(
            first["source"],
            model.preset,
            model.weights_sha256,
            first["device"],
            options,
            first["precision"],
            model.cache,
        )
        stitch_seconds = sum(seconds for phase, seconds in self._phases.items() if phase != BESIDE)
        summary = self._summary(stitch_seconds)
        told = {"phases": self._rounded_phases(), "window_phases": [run.get("phases", {}) for run in runs]}
        replace_json(self._work / RUN_NAME, {**run_record(info, summary), **told})
        after = None if last_end is None else round(time.monotonic() - last_end, 3)
        if self._unit.mapping == "full":
            # Over the seams, too: windows that drifted apart are one again.
            with self._timed("refine"):
                refine_scene(self._unit, self._work, self._evaluator)
        in_metres: dict[str, Any] = {}
        if self._unit.scale_from is not None:
            with self._timed("metres"):
                in_metres = scene_in_metres(self._unit, self._unit.scale_from, self._work)
        record = record_of(summary, self._evaluator, summary.seconds, info.device) | {
            "seams": seams,
            "window_seconds": [run["timings"]["seconds"] for run in runs],
            "stitch_seconds": round(stitch_seconds, 3),
            "stitch_seconds_after": after,
            "stitch_phases": self._rounded_phases(),
            **in_metres,
        }
        with self._timed("publish"):
            self._store.publish(self._work, self._unit.name, self._unit.key, record, self._files.marks)
        with self._timed("remove the windows"):
            self._stack.close()
            self._store.remove(windows_folder(self._unit.name))
        return {**record, "stitch_phases": self._rounded_phases()}

    def close(self) -> None:
        """Let go of files, and of what was made if it was not published."""
        self._stack.close()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begun = time.monotonic()
        yield
        self._phases[phase] = self._phases.get(phase, 0.0) + time.monotonic() - begun

    def _rounded_phases(self) -> Seconds:
        return {phase: round(seconds, 3) for phase, seconds in self._phases.items()}

    def _join(self, unit: Job) -> None:
        folder = self._stack.enter_context(self._store.fetch(unit.name))
        if folder is None:
            # It has not one readable frame.
            return
        number = len(self._joined.windows)
        if not number:
            self._store.check_target(self._unit.name)
            self._truth = self._unit.scene.truth()
            self._evaluator = Evaluator(self._truth)
            self._work = self._stack.enter_context(self._store.workspace())
            self._files = StitchedFiles(self._work, self._model.preset.points.voxel)
            self._stack.callback(self._files.close)
        with self._timed("read"):
            window = read_result(folder)
        with self._timed("align"):
            self._joined = self._joined.with_next(window)
        if number:
            self._begin_frames(number - 1)
        with self._timed("points"):
            self._files.add_points(self._joined, number)

    def _begin_frames(self, number: int) -> None:
        """Take the frames of a window whose seams are known, while others go on."""
        self._frames_taken.append(self._beside.submit(self._take_frames, self._joined, number))

    def _take_frames(self, joined: AlignedChunks, number: int) -> None:
        with self._timed(BESIDE):
            begin = len(self._files.cameras)
            self._files.add_frames(joined, number)
            if self._truth is None:
                for camera in self._files.cameras[begin:]:
                    self._evaluator.add_pose(camera.index, camera.T_world_camera)
            else:
                for result in joined.results_of(number):
                    self._evaluator.add(result)

    def _summary(self, stitch_seconds: float) -> RunSummary:
        """Of the whole run; its seconds count the work on all windows and the stitching, wherever it was done."""
        windows: Sequence[ResultFolder] = self._joined.windows
        cameras, runs = self._files.cameras, [window.run for window in windows]
        device_peaks = [run["peak_memory_mb"]["device"] for run in runs if run["peak_memory_mb"]["device"] is not None]
        warnings = dict.fromkeys(warning for run in runs for warning in run["warnings"])
        if len(windows) < self._count:
            warnings[f"it ends in window {len(windows)} of {self._count}: the others had no readable frame"] = None
        return RunSummary(
            interrupted=False,
            frames_read=len(cameras),
            frames_reconstructed=len(cameras),
            keyframes=sum(camera.is_keyframe for camera in cameras),
            # At least: a window that was read through met the damage before it again, so a sum might count it twice.
            frames_damaged=max(run["frames"]["damaged"] for run in runs),
            seconds=stitch_seconds + sum(run["timings"]["seconds"] for run in runs),
            peak_host_memory_mb=max(peak_host_memory_mb(), *(run["peak_memory_mb"]["host"] for run in runs)),
            peak_device_memory_mb=max(device_peaks, default=None),
            attention=runs[0]["attention"],
            warnings=tuple(warnings),
            health=stitched_health(self._joined),
            segments=stitched_segments(self._joined),
        )


@dataclass
class _Scene:
    windows: list[Job]
    stitching: Stitching
    taken: list[Future[None]] = field(default_factory=list)
    last_end: float | None = None


class Stitchings:
    """Knows which window belongs to which scene. Close it."""

    def __init__(self) -> None:
        self._scenes: dict[str, _Scene] = {}
        # One for all scenes: what there is to do keeps several cores busy by itself.
        self._thread = ThreadPoolExecutor(1, "stitching")

    @property
    def names(self) -> list[str]:
        """Of the scenes begun, in order."""
        return list(self._scenes)

    def begin(self, stitching: Stitching, name: str, windows: Sequence[Job]) -> None:
        """Begin a scene, or begin it anew."""
        if name in self._scenes:
            self._scenes[name].stitching.close()
        self._scenes[name] = _Scene(list(windows), stitching)

    def windows(self, name: str) -> list[Job]:
        """A scene's windows, in order."""
        return self._scenes[name].windows

    def scene_of(self, window: str) -> str:
        """The scene to which the window of that name belongs."""
        return next(name for name, scene in self._scenes.items() if window in [w.name for w in scene.windows])

    def take(self, window: str, *, now: bool) -> None:
        """A window is finished: ``now``, or by an earlier batch. What goes wrong with it is said by `finish`."""
        scene = self._scenes[self.scene_of(window)]
        if now:
            scene.last_end = time.monotonic()
        scene.taken.append(self._thread.submit(scene.stitching.take, window))

    def finish(self, name: str) -> dict[str, Any]:
        """See `Stitching.finish`."""
        scene = self._scenes[name]
        for taken in scene.taken:
            taken.result()
        return scene.stitching.finish(scene.last_end)

    def close(self) -> None:
        """Drop what is not finished."""
        self._thread.shutdown(cancel_futures=True)
        for scene in self._scenes.values():
            scene.stitching.close()
