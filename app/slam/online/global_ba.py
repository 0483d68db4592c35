"""Global bundle adjustment of many keyframes and the focal length, in the background."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.worker import BackgroundWorker, StopTest, Task
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.robust_ba import BARound, SolveOptions
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig
from stream_recon.app.slam.online.keyframe import Keyframe
from stream_recon.app.slam.online.local_ba import BAResult, adjust_window

logger = logging.getLogger(__name__)


class GlobalBA:
    """Target of the background worker; see `GlobalBAScheduler`."""

    def __init__(self, config: OnlineConfig = DEFAULT_ONLINE) -> None:
        self._config = config

    def adjust(
        self,
        should_stop: StopTest,
        keyframes: Sequence[Keyframe],
        camera_model: CameraModel,
        known_intrinsics: bool,
        fixed: int,
        rounds: Sequence[BARound],
    ) -> BAResult | None:
        """Adjust keyframes, and the focal length unless it is known.

        The ``fixed`` first ones stay, as they share loop tracks. Where still older keyframes exist, two more stay,
        which fixes the scale.
        """
        config, is_first = self._config, keyframes[fixed].number == 0
        free_focal = not known_intrinsics and (not is_first or len(keyframes) >= config.global_ba.focal_keyframes)
        stays = None if is_first else np.arange(len(keyframes)) < fixed + 2
        options = SolveOptions(free_focal, stays, should_stop)
        adjusted = adjust_window(keyframes, camera_model, rounds, options, config)
        return adjusted.aligned(keyframes, config.window) if adjusted is not None and is_first else adjusted


@dataclass(frozen=True)
class _Job:
    task: Task
    numbers: list[int]  # of its keyframes
    due: int
    """Number of the keyframe at which the result is applied, unless the source is live."""


class GlobalBAScheduler:
    """Runs one global adjustment at a time, on copies of the keyframes.

    Args:
        worker: its target is a `GlobalBA`.
        waits: `collect` waits for results, so that runs are reproducible. For a live source it does not, and an
            adjustment that is due while another one runs is skipped.
        known_intrinsics: the focal length is fixed.
    """

    def __init__(
        self,
        worker: BackgroundWorker,
        *,
        waits: bool,
        known_intrinsics: bool = False,
        config: OnlineConfig = DEFAULT_ONLINE,
    ) -> None:
        self.skipped = 0
        self._config = config
        self._waits, self._known_intrinsics = waits, known_intrinsics
        self._worker = worker
        self._due = self._config.global_ba.first_keyframes
        self._job: _Job | None = None

    def reset(self) -> None:
        """A new map begins."""
        self._due = self._config.global_ba.first_keyframes

    def offer(
        self, keyframes: Sequence[Keyframe], camera_model: CameraModel, fixed: Callable[[], Sequence[Keyframe]] = tuple
    ) -> None:
        """Start an adjustment if one is due; ``fixed``: see `start`."""
        count = keyframes[-1].number + 1
        if not self._config.global_ba.is_enabled or count < self._due or (self.busy and self._waits):
            return
        self._due = count + max(int(len(keyframes) * (self._config.global_ba.growth - 1)), 2)
        if self._job is not None:
            self.skipped += 1
            return
        self.start(keyframes, camera_model, fixed())

    def start(
        self,
        keyframes: Sequence[Keyframe],
        camera_model: CameraModel,
        fixed: Sequence[Keyframe] = (),
        rounds: Sequence[BARound] | None = None,
    ) -> None:
        """Start an adjustment, in place of a running one.

        Args:
            fixed: older keyframes with common loop tracks, which stay.
            rounds: None: those of a growing map.
        """
        self.cancel()
        copies = [replace(keyframe, attached=[]) for keyframe in (*fixed, *keyframes)]
        numbers, count = [keyframe.number for keyframe in copies], len(copies)
        config = self._config.global_ba
        due = numbers[-1] + (int(config.delay * count) if count >= config.delayed_from else 0)
        rounds = config.rounds if rounds is None else rounds
        task = self._worker.submit("adjust", copies, camera_model, self._known_intrinsics, len(fixed), rounds)
        self._job = _Job(task, numbers, due)

    @property
    def busy(self) -> bool:
        """Whether an adjustment runs or its result has not been collected."""
        return self._job is not None

    def cancel(self) -> None:
        """Stop a running adjustment."""
        if self._job is not None:
            self._job.task.stop()
            self._job = None

    def collect(self, newest: int, *, wait: bool = False) -> tuple[BAResult, list[int]] | None:
        """Result and the numbers of its keyframes; None if none is due.

        ``newest``: number of the map's last keyframe; ``wait``: whether or not it is due.
        """
        job = self._job
        if job is None or not (wait or (newest >= job.due if self._waits else job.task.future.done())):
            return None
        self._job = None
        try:
            adjusted = job.task.future.result()
        except (SingularError, np.linalg.LinAlgError):
            logger.exception("global bundle adjustment of %d keyframes failed", len(job.numbers))
            return None
        return None if adjusted is None else (adjusted, job.numbers)

    def close(self) -> None:
        """End the worker after its last task."""
        self._worker.close()
