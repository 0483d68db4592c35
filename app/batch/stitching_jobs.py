"""The split scenes of a batch, each stitched in a thread beside the workers while its windows are finished."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from stream_recon.app.batch.jobs import Job
from stream_recon.app.batch.stitch import Stitching


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
