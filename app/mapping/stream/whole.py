"""Many keyframes adjusted together, with the focal length: now and then, in a thread of its own."""

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from stream_recon.app.mapping.fit import Round
from stream_recon.app.mapping.levenberg import SingularError
from stream_recon.app.mapping.problem import Lens
from stream_recon.app.mapping.stream.adjusting import Adjusted, adjusted
from stream_recon.app.mapping.stream.keyframe import Keyframe

logger = logging.getLogger(__name__)

FIRST = 4
"""Keyframes before the first adjustment of all."""
FOCAL_KEYFRAMES = 6
"""Fewer say too little of the focal length."""
GROWTH = 1.3
"""The next one comes when there are so many times as many."""
QUICK = (Round(5, None, 4, tolerance=3e-3), Round(1, 6, 8))
"""While the stream runs: it begins from what was adjusted before."""
THOROUGH = (Round(10, None, 8), Round(3, 12, 8), Round(1, 4, 15, tolerance=1e-4))
"""At its end."""


def whole(
    keyframes: Sequence[Keyframe],
    lens: Lens,
    known_lens: bool = False,
    held: int = 0,
    rounds: Sequence[Round] = THOROUGH,
) -> Adjusted | None:
    """Adjust them all, with the focal length unless it is known.

    Where others come before them the first ones stay, and so their unit.

    Args:
        held: so many of the first ones stay, where loops come back to.
    """
    if keyframes[held].number == 0:
        free_focal = len(keyframes) >= FOCAL_KEYFRAMES and not known_lens
        found = adjusted(keyframes, lens, rounds, free_focal=free_focal)
        return None if found is None else found.aligned(keyframes)
    return adjusted(keyframes, lens, rounds, fixed=held + 2, free_focal=not known_lens)


class Background:
    """One adjustment at a time, of copies of the keyframes.

    Args:
        waits: whether `collect` waits for it. A live source goes on without it meanwhile, and leaves out those that
            are due before the last one is done. A file's stream that went on, too, was further off: the frames that
            came meanwhile hang on keyframes as they were.
        known_lens: whether the focal length stays what it is.
    """

    def __init__(self, *, waits: bool, known_lens: bool = False) -> None:
        self.skipped = 0
        self._waits, self._known_lens = waits, known_lens
        self._pool = ThreadPoolExecutor(1, "mapping")
        self._due = FIRST
        self._job: tuple[Future[Adjusted | None], list[int]] | None = None

    def restart(self) -> None:
        """Keyframes are counted anew."""
        self._due = FIRST

    def offer(self, keyframes: Sequence[Keyframe], lens: Lens, held: Sequence[Keyframe] = ()) -> None:
        """Begin if it is time to."""
        count = keyframes[-1].number + 1
        if count < self._due:
            return
        self._due = count + max(int(len(keyframes) * (GROWTH - 1)), 2)
        if self._job is not None:
            self.skipped += 1
            return
        self.begin(keyframes, lens, held)

    def begin(
        self, keyframes: Sequence[Keyframe], lens: Lens, held: Sequence[Keyframe] = (), *, thorough: bool = False
    ) -> None:
        """Begin, whatever was before.

        Args:
            held: keyframes before them that stay, where loops come back to.
        """
        copies = [replace(keyframe, members=[], trusted=not keyframe.doubtful) for keyframe in (*held, *keyframes)]
        job = self._pool.submit(whole, copies, lens, self._known_lens, len(held), THOROUGH if thorough else QUICK)
        self._job = job, [keyframe.number for keyframe in copies]

    def collect(self, *, wait: bool = False) -> tuple[Adjusted, list[int]] | None:
        """What was found, and the numbers of its keyframes; None where nothing is ready."""
        if self._job is None:
            return None
        future, numbers = self._job
        if not (wait or self._waits or future.done()):
            return None
        self._job = None
        try:
            found = future.result()
        except (SingularError, np.linalg.LinAlgError):
            logger.exception("adjustment of %d keyframes", len(numbers))
            return None
        return None if found is None else (found, numbers)

    def close(self) -> None:
        """End the thread once it is done."""
        self._pool.shutdown(wait=True)
