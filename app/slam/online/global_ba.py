"""Many keyframes adjusted together, with the focal length: now and then, beside the stream."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.ba.robust_ba import BARound
from stream_recon.app.slam.online.keyframe import Keyframe
from stream_recon.app.slam.online.local_ba import BAResult, adjust_window
from stream_recon.app.slam.online.worker import Asked, StopTest, Worker

logger = logging.getLogger(__name__)

FIRST = 4
"""Keyframes before the first adjustment of all."""
FOCAL_KEYFRAMES = 6
"""Fewer say too little of the focal length."""
GROWTH = 1.3
"""The next one comes when there are so many times as many."""
ROUNDS = (BARound(3, 12, 4, tolerance=1e-2), BARound(1, 4, 5, tolerance=2e-3))
"""The map is near: longer ones do not make it better while it grows."""
THOROUGH = (BARound(10, None, 4, tolerance=1e-2), BARound(3, 12, 4, tolerance=1e-2), BARound(1, 4, 15, tolerance=1e-4))
"""At its end."""
WAITED_FOR, LATER = 60, 0.1
"""An adjustment of at least so many keyframes is not taken in at once but when there are so many times more: they take
about as long to come as it takes."""


def whole(
    keyframes: Sequence[Keyframe],
    lens: CameraModel,
    known_intrinsics: bool = False,
    held: int = 0,
    rounds: Sequence[BARound] = ROUNDS,
    should_stop: StopTest | None = None,
) -> BAResult | None:
    """Adjust them all, with the focal length unless it is known.

    Where others come before them the first ones stay, and so their unit.

    Args:
        held: so many of the first ones stay, where loops come back to.
        rounds: of the adjustment.
        should_stop: asked now and then; nobody wants it any more.
    """
    if keyframes[held].number == 0:
        free_focal = len(keyframes) >= FOCAL_KEYFRAMES and not known_intrinsics
        found = adjust_window(keyframes, lens, rounds, free_focal=free_focal, should_stop=should_stop)
        return None if found is None else found.aligned(keyframes)
    return adjust_window(
        keyframes, lens, rounds, fixed=held + 2, free_focal=not known_intrinsics, should_stop=should_stop
    )


class GlobalBA:
    """What a `Background` has beside it."""

    def adjust(
        self,
        should_stop: StopTest,
        keyframes: Sequence[Keyframe],
        lens: CameraModel,
        known_intrinsics: bool,
        held: int,
        rounds: Sequence[BARound],
    ) -> BAResult | None:
        """See `whole`."""
        return whole(keyframes, lens, known_intrinsics, held, rounds, should_stop)


@dataclass(frozen=True)
class _Job:
    asked: Asked
    numbers: list[int]
    """Of its keyframes."""
    due: int
    """Number of the keyframe at which it is taken in, where that is waited for."""


class Background:
    """One adjustment at a time, of copies of the keyframes.

    Args:
        aside: has a `GlobalBA`.
        waits: whether `collect` waits for it, so that two runs give the same. A live source goes on without it
            meanwhile, and leaves out those that are due before the last one is done.
        known_lens: whether the focal length stays what it is.
    """

    def __init__(self, aside: Worker, *, waits: bool, known_intrinsics: bool = False) -> None:
        self.skipped = 0
        self._waits, self._known_intrinsics = waits, known_intrinsics
        self._aside = aside
        self._due = FIRST
        self._job: _Job | None = None

    def restart(self) -> None:
        """Keyframes are counted anew."""
        self._due = FIRST

    def offer(
        self, keyframes: Sequence[Keyframe], lens: CameraModel, held: Callable[[], Sequence[Keyframe]] = tuple
    ) -> None:
        """Begin if it is time to; ``held``: see `begin`."""
        count = keyframes[-1].number + 1
        if count < self._due or (self.busy and self._waits):
            return
        self._due = count + max(int(len(keyframes) * (GROWTH - 1)), 2)
        if self._job is not None:
            self.skipped += 1
            return
        self.begin(keyframes, lens, held())

    def begin(
        self,
        keyframes: Sequence[Keyframe],
        lens: CameraModel,
        held: Sequence[Keyframe] = (),
        rounds: Sequence[BARound] = ROUNDS,
    ) -> None:
        """Begin, in place of what is under way.

        Args:
            held: keyframes before them that stay, where loops come back to.
            rounds: of the adjustment.
        """
        self.drop()
        copies = [replace(keyframe, members=[], trusted=not keyframe.doubtful) for keyframe in (*held, *keyframes)]
        numbers, count = [keyframe.number for keyframe in copies], len(copies)
        due = numbers[-1] + (int(LATER * count) if count >= WAITED_FOR else 0)
        asked = self._aside.ask("adjust", copies, lens, self._known_intrinsics, len(held), rounds)
        self._job = _Job(asked, numbers, due)

    @property
    def busy(self) -> bool:
        """Whether one is under way, or waits to be taken in."""
        return self._job is not None

    def drop(self) -> None:
        """End what is under way."""
        if self._job is not None:
            self._job.asked.stop()
            self._job = None

    def again(self, keyframes: Sequence[Keyframe], lens: CameraModel, held: Sequence[Keyframe] = ()) -> None:
        """Begin anew what is under way: it has them where they are no more."""
        if self._job is not None:
            self.begin(keyframes, lens, held)

    def collect(self, newest: int, *, wait: bool = False) -> tuple[BAResult, list[int]] | None:
        """What was found, and the numbers of its keyframes; None where nothing is ready.

        Args:
            newest: number of the map's last keyframe.
            wait: whatever that is.
        """
        job = self._job
        if job is None or not (wait or (newest >= job.due if self._waits else job.asked.future.done())):
            return None
        self._job = None
        try:
            found = job.asked.future.result()
        except (SingularError, np.linalg.LinAlgError):
            logger.exception("adjustment of %d keyframes", len(job.numbers))
            return None
        return None if found is None else (found, job.numbers)

    def close(self) -> None:
        """End what is beside it once it is done."""
        self._aside.close()
