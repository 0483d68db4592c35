"""Stereo while frames arrive: dense depth of keyframes that are a few behind the newest, for the live page alone.

`LiveDense` stands between the pipeline and a viewer. It passes everything on at once, and keeps the newest keyframes
whose poses the back end has measured. A process of low priority computes their maps where a core is free; where none
is, or the process is behind, older keyframes are dropped and keep the network's surface. The maps are not written:
stereo after refinement measures all keyframes again, with better poses.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.cpu_threads import FreeCores
from stream_recon.app.core.depth_points import confidence_levels
from stream_recon.app.core.platform import lower_priority
from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, Intrinsics, Revision, reduced_size
from stream_recon.app.core.views import RunView
from stream_recon.app.core.worker import ProcessWorker, StopTest, serve, start_process
from stream_recon.app.slam.dense.stereo import DenseDepth, DenseStereo, arrays_for
from stream_recon.app.slam.dense.views import MIN_SIDE, StereoView, at_pixels
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import CONFIDENCE_LEVELS


@dataclass(frozen=True)
class LiveDenseConfig:
    """Which keyframes get a map, and when."""

    side: int = 256
    """Longer side of the maps in pixels: a third of the time of 384, and more than a surface of the page shows."""
    kept: int = 12
    """Newest keyframes that are kept: source views for one another."""
    min_group: int = 6
    """Keyframes from which a group is computed."""
    new: int = 4
    """New keyframes from which the next group is computed."""
    behind: int = 2
    """Newest keyframes of a group whose maps are not shown: no later view confirms them."""
    min_confirmed: float = 0.1
    """Share of confirmed pixels of a map that is shown: fewer say that the poses are not exact enough."""
    poll_seconds: float = 0.5
    """Time between two looks at the free cores."""


DEFAULT_LIVE_DENSE = LiveDenseConfig()
NICENESS = 15
"""Lower priority of the process."""


@dataclass
class _LiveKeyframe:
    result: FrameResult
    """As first published."""
    image: NDArray[np.uint8]
    T_world_camera: NDArray[np.float64]
    scale: float = 1.0
    """Factor of the first depth, as of the last revision."""
    intrinsics: Intrinsics | None = None

    @property
    def camera(self) -> Intrinsics:
        return self.intrinsics or self.result.intrinsics

    def view(self, side: int) -> StereoView:
        """The view at its present pose; ``side``: longer side of its image."""
        result, transform, k = self.result, self.result.transform, self.camera
        size = reduced_size((self.image.shape[1], self.image.shape[0]), side, MIN_SIDE)
        grey = cv2.resize(cv2.cvtColor(self.image, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA)
        sx, sy = size[0] / transform.source_size[0], size[1] / transform.source_size[1]
        camera = Intrinsics(k.fx * sx, k.fy * sy, k.cx * sx, k.cy * sy)
        prior = at_pixels(result.depth * np.float32(self.scale), transform, size)
        is_guess = at_pixels(confidence_levels(result), transform, size) < CONFIDENCE_LEVELS["low"]
        return StereoView(result.index, grey.astype(np.float32), camera, self.T_world_camera, prior, is_guess=is_guess)

    def shown(self, dense: DenseDepth, scale: float) -> FrameResult:
        """The result with a map that was computed at ``scale``, at the present pose and scale."""
        height, width = dense.depth.shape
        full = self.result.transform.source_size
        return replace(
            self.result,
            T_world_camera=self.T_world_camera,
            intrinsics=self.camera,
            depth=dense.depth * np.float32(self.scale / scale),
            confidence=dense.certainty.astype(np.float32),
            rgb=np.asarray(cv2.resize(self.image, (width, height), interpolation=cv2.INTER_AREA), np.uint8),
            transform=ImageTransform(full, (0.0, 0.0, float(full[0]), float(full[1])), (width, height)),
            certainty=dense.certainty,
        )


class GroupStereo:
    """Stereo of a group of keyframes; runs in a process of its own."""

    def __init__(self, device: str, side: int = DEFAULT_LIVE_DENSE.side) -> None:
        self._arrays, self._side = arrays_for(device), side

    def maps(self, stop: StopTest, views: list[StereoView]) -> list[DenseDepth]:
        """Maps of the views, in order; fewer if it was stopped."""
        stereo, maps = DenseStereo(self._arrays, self._side), list[DenseDepth]()
        for view in views:
            if stop():
                return maps
            maps += stereo.push(view)
        return maps + stereo.finish()


class StereoProcess:
    """`GroupStereo` in a process of low priority, which starts with the first group."""

    def __init__(self, device: str) -> None:
        """``device``: ``cpu`` or ``cuda``."""
        self._device = device
        self._process: BaseProcess | None = None
        self._worker: ProcessWorker | None = None

    def maps(self, views: list[StereoView]) -> list[DenseDepth]:
        """See `GroupStereo.maps`. Raises ResourceError where the process has ended."""
        if self._worker is None:
            self._process, connection = start_process("live-dense", _serve, self._device)
            self._worker = ProcessWorker(connection, "live-dense")
        maps = self._worker.submit("maps", views).future.result()
        assert isinstance(maps, list)
        return maps

    def end(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.terminate()


class Stereo(Protocol):
    """What computes the maps of a group, such as `StereoProcess`."""

    def maps(self, views: list[StereoView]) -> list[DenseDepth]: ...

    def end(self) -> None: ...


class LiveDense:
    """A `ResultListener` in front of a view; see the module. Close it at the end of the stream.

    Args:
        view: gets all calls at once, and dense maps some keyframes later.
        stereo: computes the maps of a group; called in a thread of its own.
        may_run: whether a group may be computed at this moment.
    """

    def __init__(
        self,
        view: RunView,
        stereo: Stereo,
        may_run: Callable[[], bool] | None = None,
        config: LiveDenseConfig = DEFAULT_LIVE_DENSE,
    ) -> None:
        self._config = config
        self._view, self._stereo = view, stereo
        self._may_run = may_run or FreeCores().is_one_free
        self._image: tuple[int, NDArray[np.uint8]] | None = None
        self._kept: deque[_LiveKeyframe] = deque(maxlen=config.kept)
        self._group: list[_LiveKeyframe] = []
        """Keyframes whose maps are being computed; they are revised like the kept ones."""
        self._new, self._last_shown, self._segment = 0, -1, 0
        self._shown = 0
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="live-dense", daemon=True)
        self._thread.start()

    @property
    def shown(self) -> int:
        """Number of keyframes whose dense map was shown."""
        return self._shown

    def add_image(self, index: int, image: NDArray[np.uint8]) -> None:
        self._image = index, image
        self._view.add_image(index, image)

    def add(self, result: FrameResult) -> None:
        image, self._image = self._image, None
        with self._changed:
            self._view.add(result)
            if image is None or image[0] != result.index or result.network is None:
                return
            if result.segment != self._segment:
                # Poses across a cut are a guess.
                self._kept.clear()
                self._segment, self._new = result.segment, 0
            self._kept.append(_LiveKeyframe(result, image[1], result.T_world_camera))
            self._new += 1
            self._changed.notify()

    def revise(self, revision: Revision) -> None:
        with self._changed:
            self._view.revise(revision)
            known = {keyframe.result.index: keyframe for keyframe in [*self._group, *self._kept]}
            for frame in revision.frames:
                keyframe = known.get(frame.index)
                if keyframe is not None:
                    keyframe.T_world_camera, keyframe.scale = frame.T_world_camera, frame.depth_scale
                    keyframe.intrinsics = frame.intrinsics or keyframe.intrinsics

    def close(self) -> None:
        """End the process; maps that are not complete are not shown."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._stereo.end()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        """Body of the thread."""
        try:
            self._compute_groups()
        finally:
            self._stereo.end()

    def _compute_groups(self) -> None:
        """Groups of keyframes, one after the other, until the stream ends."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._is_due())
            while not self._closed and not self._may_run():
                time.sleep(self._config.poll_seconds)
            with self._changed:
                if self._closed:
                    return
                self._group = list(self._kept)
                self._new = 0
                views = [keyframe.view(self._config.side) for keyframe in self._group]
                scales = [keyframe.scale for keyframe in self._group]
            try:
                maps = self._stereo.maps(views)
            except ResourceError:
                return  # the process has ended, perhaps out of memory: the stream goes on without it
            with self._changed:
                if self._closed:
                    return
                self._show(maps, scales)

    def _is_due(self) -> bool:
        return self._new >= self._config.new and len(self._kept) >= self._config.min_group

    def _show(self, maps: list[DenseDepth], scales: list[float]) -> None:
        """Show the new maps of the group that enough later views confirm."""
        triples = list(zip(self._group, maps, scales, strict=True))[: -self._config.behind]
        self._group = []
        for keyframe, dense, scale in triples:
            is_sure = (dense.certainty == Certainty.CONFIRMED).mean() >= self._config.min_confirmed
            if dense.index > self._last_shown and is_sure:
                self._view.show_dense(keyframe.shown(dense, scale), keyframe.image)
                self._last_shown = dense.index
                self._shown += 1


def _serve(connection: Connection, device: str) -> None:
    """Main function of the process."""
    lower_priority(NICENESS)
    cv2.setNumThreads(1)
    serve(connection, lambda: GroupStereo(device))
