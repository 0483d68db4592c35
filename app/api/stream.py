"""Streams of images through a loaded network."""

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from threading import Lock
from types import TracebackType
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stream_recon.app.api.camera import Camera
from stream_recon.app.api.pushed_poses import PushedPoses, checked_pose
from stream_recon.app.api.trajectory import Trajectory
from stream_recon.app.core.process import memory_errors
from stream_recon.app.core.types import Frame, FrameResult, PreparedFrame, Revision
from stream_recon.app.core.views import IMAGE_SIDE, ResultListener
from stream_recon.app.engine.engine import Engine
from stream_recon.app.run.health import HealthMonitor
from stream_recon.app.run.masking import Masking
from stream_recon.app.slam.online.back_end import OnlineBackEnd
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, KNOWN_POSES
from stream_recon.app.sources.images import checked_image, checked_time
from stream_recon.app.sources.preprocess import grey_image, reduced_image
from stream_recon.app.sources.segmentation import DiscontinuityDetector
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import InputError


class Stream:
    """One run of images through a model; `Model.stream` makes it. A context manager: the block's end finishes it.

    The first scale frames (8) are processed together: `push` returns nothing until they are complete, then all of
    their results; later one result for each image, and revisions of earlier ones. One thread at a time may use it.

    A cut begins a new `FrameResult.segment`, with scale frames of its own, whose pose relative to the one before is a
    guess. Where one is in doubt, up to 5 images wait for the next ones. Dark and covered images have no result.
    """

    def __init__(
        self,
        engine: Engine,
        camera: Camera | None,
        mapping: Literal["stream", "off"],
        listeners: Sequence[ResultListener],
        lock: Lock,
        poses: Literal["prior", "fixed"],
    ) -> None:
        self._engine, self._listeners, self._lock = engine, listeners, lock
        self._calibration = None if camera is None else camera.calibration()
        self._undistorter: Undistorter | None = None
        self._fixed = poses == "fixed"
        self._known: PushedPoses | None = None
        self._maps = mapping == "stream" and not self._fixed
        prefill, is_known = engine.preset.stream.scale_frames, camera is not None
        self._new_back_end = partial(OnlineBackEnd, prefill=prefill, known_intrinsics=is_known)
        self._back_end: OnlineBackEnd | None = None
        """From the first result on, of a stream that maps."""
        self._masking, self._health, self._cuts = Masking(sky=False), HealthMonitor(), DiscontinuityDetector()
        self._frames: dict[int, PreparedFrame] = {}
        """Images whose results are still to come."""
        self._images: dict[int, NDArray[np.uint8]] = {}
        """Those for listeners, reduced."""
        self._size: tuple[int, int] | None = None
        self._last_time: float | None = None
        self._count = 0
        self._poses: dict[int, tuple[float, NDArray[np.float64]]] = {}
        self._ended = ""
        """Why no image can follow; empty: one can."""

    @property
    def trajectory(self) -> Trajectory:
        """The present poses of all frames with a result, after the revisions so far."""
        ordered = [self._poses[index] for index in sorted(self._poses)]
        poses = np.reshape(np.array([pose for _, pose in ordered], np.float64), (-1, 4, 4))
        return Trajectory(np.array([time for time, _ in ordered], np.float64), poses)

    @property
    def warnings(self) -> list[str]:
        """A line for each new segment so far, with its reason: a cut, or a dark or covered picture."""
        return self._cuts.warnings

    def push(
        self,
        rgb: NDArray[np.uint8],
        timestamp: float | None = None,
        mask: NDArray[np.bool_] | None = None,
        pose: ArrayLike | None = None,
    ) -> list[FrameResult | Revision]:
        """Process the next image; returns results that are ready, and revisions of earlier ones, in order.

        Args:
            rgb: uint8 [H, W, 3], of the size of the first image. It is not changed, and may be used again.
            timestamp: seconds, above that of the image before; None: 1/30 s after it.
            mask: bool [H, W], true where the image is left out of depth; None: nowhere.
            pose: known pose [4, 4] or [3, 4], camera to world, axes x right, y down, z forward. Results are then in its
                world and unit, from when the camera has moved on: up to 600 wait for that. The first image needs one;
                later ones without one follow the network's motion.

        Raises InputError: an image, a time, a mask or a pose is not valid; ResourceError: no memory. The stream is then
        as it was, and goes on with the next call; an error in a step at a cut, and poses that do not fit, end it.
        """
        if self._ended:
            raise InputError(f"{self._ended}: begin another one with model.stream()")
        time = checked_time(timestamp, self._last_time)
        self._check_image(rgb, mask)
        T = self._checked_pose(pose)
        # Copies: the results keep the image, and the caller may write the next one into the same array.
        frame = Frame(self._count, time, np.array(rgb, order="C"), mask=None if mask is None else np.array(mask))
        cuts, earlier, ready = self._cuts.copy(), self._cuts, list[PreparedFrame]()
        try:
            if self._calibration is not None:
                frame = self._undistorted(frame)
            prepared = self._engine.prepare(frame)
            if self._maps:
                prepared = dataclasses.replace(prepared, grey=grey_image(frame.rgb))
            ready = cuts.push(prepared)
            results = self._step(ready)
        except BaseException:
            if self._count == 0:  # the next image may have another size
                self._engine.reset()
                self._undistorter = None
            if len(ready) > 1 or len(cuts.segments) > len(earlier.segments):
                self._ended = "a step of this stream at a cut has failed"
            raise
        # From here on the image counts.
        self._size, self._last_time, self._count, self._cuts = rgb.shape[:2], time, self._count + 1, cuts
        self._masking.note(frame, prepared.transform)
        if T is not None:
            self._known = self._known or PushedPoses()
            self._known.note(frame.index, T)
        is_blank = cuts.blank_frames > earlier.blank_frames
        if not is_blank and any(hasattr(listener, "add_image") for listener in self._listeners):
            self._images[frame.index] = reduced_image(frame.rgb, IMAGE_SIDE)
        return self._take(results)

    def finish(self) -> list[FrameResult | Revision]:
        """End the stream; returns what was still held back, and the last revisions. A second call returns nothing."""
        if self._ended:
            return []
        self._ended = "the stream is finished"
        try:
            items = self._take(self._step(self._cuts.release()))
            with self._lock, memory_errors():
                results = self._engine.finish()
            items += self._take(results, is_end=True)
            if self._back_end is not None:
                with memory_errors():
                    rest = self._back_end.finish()
                items += self._deliver(rest)
            return items
        finally:
            self._release()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        else:
            self._ended = self._ended or "the stream was left by an error"
            self._release()

    def __repr__(self) -> str:
        mapping = "stream" if self._maps else "off"
        return f"<Stream: {self._count} images, {len(self._poses)} poses, mapping {mapping}>"

    def _check_image(self, rgb: NDArray[np.uint8], mask: NDArray[np.bool_] | None) -> None:
        checked_image(rgb)
        if self._size is not None and rgb.shape[:2] != self._size:
            (height, width), (first_height, first_width) = rgb.shape[:2], self._size
            raise InputError(f"an image is {width}x{height}, and the first one was {first_width}x{first_height}")
        if mask is None:
            return
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != rgb.shape[:2]:
            came = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, np.ndarray) else type(mask).__name__
            raise InputError(f"a mask is bool {list(rgb.shape[:2])} as its image, not {came}")

    def _checked_pose(self, pose: ArrayLike | None) -> NDArray[np.float64] | None:
        if pose is None and self._fixed and not self._count:
            raise InputError("poses are fixed, and the first image has none")
        if pose is not None and self._known is None and self._count:
            raise InputError("an image has a pose, and the first one had none")
        return None if pose is None else checked_pose(pose)

    def _step(self, frames: Iterable[PreparedFrame]) -> list[FrameResult]:
        """Results of the network."""
        results: list[FrameResult] = []
        with self._lock, memory_errors():
            for frame in frames:
                results += self._engine.push(frame)
                self._frames[frame.index] = frame
        return results

    def _undistorted(self, frame: Frame) -> Frame:
        assert self._calibration is not None
        if self._undistorter is None:
            size = frame.rgb.shape[1], frame.rgb.shape[0]
            self._undistorter = Undistorter(self._calibration.for_size(size), size)
        mask = frame.mask
        if mask is not None and self._undistorter.changes_image:
            mask = self._undistorter(np.where(mask, np.uint8(0), np.uint8(255))) < 128
        return dataclasses.replace(frame, rgb=self._undistorter(frame.rgb), mask=mask)

    def _take(self, results: Iterable[FrameResult], *, is_end: bool = False) -> list[FrameResult | Revision]:
        """Results of the network as the back end and the listeners get them; ``is_end``: no others follow."""
        items: list[FrameResult | Revision] = []
        config = KNOWN_POSES if self._known else DEFAULT_ONLINE
        for result in self._in_world(results, is_end=is_end):
            prepared = self._frames.pop(result.index)
            if not self._maps:
                items.append(result)
                continue
            try:
                with memory_errors():
                    self._back_end = self._back_end or self._new_back_end(config=config)
                    ready = self._back_end.push(result, prepared)
            except BaseException:
                self._ended = "the back end of this stream has failed"
                raise
            items += ready
        return self._deliver(items)

    def _in_world(self, results: Iterable[FrameResult], *, is_end: bool) -> list[FrameResult]:
        """Results with their masks and camera, in the world of known poses where there are some."""
        if self._undistorter is not None:
            k = self._undistorter.intrinsics
            results = [dataclasses.replace(result, intrinsics=k) for result in results]
        masked = [self._masking.apply(result) for result in results]
        try:
            return masked if self._known is None else self._known.place(masked, is_end=is_end)
        except InputError:
            self._ended = "the poses of this stream do not fit"
            raise

    def _deliver(self, items: Iterable[FrameResult | Revision]) -> list[FrameResult | Revision]:
        """Keep the poses of items, then tell the listeners, so that an error of theirs loses none."""
        kept = [self._kept(item) for item in items]
        for item in kept:
            image = None if isinstance(item, Revision) else self._images.pop(item.index, None)
            for listener in self._listeners:
                if isinstance(item, Revision):
                    listener.revise(item)
                    continue
                if image is not None and item.is_keyframe and hasattr(listener, "add_image"):
                    listener.add_image(item.index, image)
                listener.add(item)
        return kept

    def _kept(self, item: FrameResult | Revision) -> FrameResult | Revision:
        if isinstance(item, Revision):
            for frame in item.frames:
                self._poses[frame.index] = self._poses[frame.index][0], frame.T_world_camera
            return item
        item = dataclasses.replace(item, health=self._health.judge(item))
        self._poses[item.index] = item.timestamp, item.T_world_camera
        return item

    def _release(self) -> None:
        """Give back memory and threads; the trajectory stays."""
        self._frames.clear()
        self._images.clear()
        if self._back_end is not None:
            self._back_end.close()
        self._engine.release()
