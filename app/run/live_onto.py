"""Option ``--onto`` while a run goes on: its results continue in the world of a known result.

`OntoBackEnd` stands between the back end and the listeners, and owns the similarity from the run's world to the known
one. The back end stays in the run's world. Until a frame is recognized, its items pass unchanged. From then on each
result and each revision leaves in the known world, and one revision brings what came before there. The back end's
corrections and later recognized frames change the similarity; the other frames follow once it has moved noticeably.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity, rotation_angle_deg
from stream_recon.app.core.types import FrameResult, FrameRevision, NetworkEstimate, PreparedFrame, Revision
from stream_recon.app.localization.frame_alignment import RecognizedFrame, fit_frames, recognize
from stream_recon.app.run.listeners import BackEnd, DelegatingBackEnd
from stream_recon.app.slam.online.back_end import SparseMap

if TYPE_CHECKING:
    from concurrent.futures import Future

    from stream_recon.app.localization.localize import LocalizationMap
    from stream_recon.app.result.cameras import FrameCamera

FIRST_EVERY, EVERY = 4, 12
"""Frames from one attempt to recognize the place to the next, before and after it was recognized."""
MOVED, TURNED_DEG = 0.005, 0.2
"""Change of the similarity, as a share of the distance of what is seen, and of its rotation, that all frames follow."""
GROWTH = 1.02
"""Growth of the number of frames from one such revision to the next, which bounds their cost."""

FloatArray = NDArray[np.float64]
Item = FrameResult | Revision


@dataclass
class _Own:
    """A frame in the run's world."""

    T_world_camera: FloatArray  # [4, 4]
    depth_scale: float
    """Factor for the depth of its result, as the back end gave it."""
    segment: int
    output_scale: float
    """Scale of the similarity with which the result left."""


class OntoBackEnd(DelegatingBackEnd):
    """A `BackEnd` in front of the listeners, whose items are in the world of a known result.

    Args:
        live: the source does not wait, so frames that arrive while one is being recognized are not tried.
        known_intrinsics: the results' focal length is exact.
        earlier: cameras of the interrupted run that this one continues.
    """

    def __init__(
        self,
        back_end: BackEnd,
        place: "LocalizationMap",
        *,
        live: bool = False,
        known_intrinsics: bool = False,
        earlier: Sequence["FrameCamera"] = (),
    ) -> None:
        super().__init__(back_end)
        self._recognize = partial(recognize, place, known_camera=known_intrinsics)
        self._live = live
        self._own = {c.index: _Own(c.T_world_camera, c.depth_scale, c.segment, 1.0) for c in earlier}
        self._greys: dict[int, NDArray[np.uint8]] = {}
        """Images of frames that were chosen and have no result yet, by number."""
        self._pool = ThreadPoolExecutor(1, "onto")
        self._task: Future[RecognizedFrame | None] | None = None
        self._pushed = self._chosen_at = 0
        self._recognized: dict[int, list[RecognizedFrame]] = {}
        """By segment."""
        self._placed: dict[int, Similarity] = {}
        """Similarities of the segments that have such frames."""
        self._used: dict[int, Similarity] = {}
        """Those of the last revision of all frames."""
        self._revised_at = 0
        self._sparse: tuple[SparseMap, Similarity, SparseMap] | None = None
        self._segment = 0

    @property
    def wants_grey(self) -> bool:
        return True

    @property
    def status_line(self) -> str:
        """The back end's line, and whether the known place was recognized."""
        count = sum(map(len, self._recognized.values()))
        state = f"in the known world by {count} frames" if count else "known place not recognized yet"
        return ", ".join(part for part in (super().status_line, state) if part)

    @property
    def figures(self) -> dict[str, Any]:
        """The back end's figures, and the number of frames that were recognized."""
        return {**super().figures, "recognized": sum(map(len, self._recognized.values()))}

    @property
    def sparse(self) -> SparseMap | None:
        """The back end's map points in the known world; the same object until one of them changes."""
        inner: SparseMap | None = getattr(self._back_end, "sparse", None)
        if inner is None:
            return None
        S = self._similarity(self._segment)
        if self._sparse is None or self._sparse[0] is not inner or self._sparse[1] is not S:
            points = S.apply(inner.points.astype(np.float64)).astype(np.float32)
            self._sparse = (inner, S, replace(inner, points=points))
        return self._sparse[2]

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[Item]:
        self._choose(frame)
        items = self._moved(self._back_end.push(result, frame))
        return [*items, *self._collect(wait=False)]

    def finish(self) -> Sequence[Item]:
        """The remaining items, and a last revision of what does not follow the similarity yet."""
        items = self._moved(self._back_end.finish())
        items += self._collect(wait=True)
        self._pool.shutdown()
        return [*items, *self._followed(all_frames=True)]

    def _choose(self, frame: PreparedFrame) -> None:
        """Keep the image of a frame that is to be recognized."""
        self._pushed += 1
        every = EVERY if frame.segment in self._placed else FIRST_EVERY
        due = self._pushed - self._chosen_at >= every or self._pushed == 1
        if due and frame.grey is not None and not (self._live and (self._task is not None or self._greys)):
            self._greys[frame.index] = frame.grey
            self._chosen_at = self._pushed

    def _moved(self, items: Sequence[Item]) -> list[Item]:
        """The back end's items in the known world."""
        moved: list[Item] = []
        for item in items:
            if isinstance(item, Revision):
                frames = tuple(map(self._moved_revision, item.frames))
                moved.append(Revision(frames))
                continue
            self._segment = item.segment
            grey = self._greys.pop(item.index, None)
            if grey is not None:
                if self._task is not None:
                    moved += self._collect(wait=True)
                self._task = self._pool.submit(self._recognize, grey, item)
            S = self._similarity(item.segment)
            self._own[item.index] = _Own(np.asarray(item.T_world_camera, np.float64), 1.0, item.segment, S.scale)
            moved.append(_moved_result(item, S))
        return moved

    def _moved_revision(self, frame: FrameRevision) -> FrameRevision:
        own = self._own[frame.index]
        own.T_world_camera, own.depth_scale = np.asarray(frame.T_world_camera, np.float64), frame.depth_scale
        return replace(frame, T_world_camera=self._pose(own), depth_scale=self._depth_scale(own))

    def _pose(self, own: _Own) -> FloatArray:
        return self._similarity(own.segment).move_pose(own.T_world_camera)

    def _depth_scale(self, own: _Own) -> float:
        return own.depth_scale * self._similarity(own.segment).scale / own.output_scale

    def _similarity(self, segment: int) -> Similarity:
        """That of a segment, or of the one that it follows: it begins where that one ended."""
        return _of_segment(self._placed, segment)

    def _collect(self, *, wait: bool) -> list[Item]:
        """Take in the frame that was being recognized; a revision of all frames, if one is due.

        Files are repeatable: the frame is taken in before the next one is tried, and not at once.
        """
        task = self._task
        if task is None or not (wait or (self._live and task.done()) or self._is_due()):
            return []
        self._task = None
        frame = task.result()
        if frame is None:
            return []
        segment = self._own[frame.index].segment
        self._recognized.setdefault(segment, []).append(frame)
        self._fit(segment)
        return self._followed()

    def _is_due(self) -> bool:
        return not self._live and self._pushed - self._chosen_at >= FIRST_EVERY - 1

    def _fit(self, segment: int) -> None:
        recognized = self._recognized[segment]
        own = {
            each.index: (self._own[each.index].T_world_camera, self._own[each.index].depth_scale) for each in recognized
        }
        similarity = fit_frames(recognized, own, self._placed.get(segment))
        if similarity is not None:
            self._placed[segment] = similarity

    def _followed(self, *, all_frames: bool = False) -> list[Item]:
        """A revision of all frames, if a similarity has changed noticeably since the last one."""
        if not self._placed or not (all_frames or not self._used or len(self._own) >= GROWTH * self._revised_at):
            return []
        if not any(map(self._has_changed, {own.segment for own in self._own.values()})):
            return []
        self._used, self._revised_at = dict(self._placed), len(self._own)
        frames = self._own.items()
        return [Revision(tuple(FrameRevision(k, self._pose(own), self._depth_scale(own)) for k, own in frames))]

    def _has_changed(self, segment: int) -> bool:
        before, after = _of_segment(self._used, segment), self._similarity(segment)
        if before is after:
            return False
        latest = self._recognized.get(segment) or next(reversed(list(self._recognized.values())))
        distance = latest[-1].known_distance
        centre = after.inverse().apply(latest[-1].T_known_camera[:3, 3])
        moved = float(np.linalg.norm(before.apply(centre) - after.apply(centre))) / distance
        turned = float(rotation_angle_deg(before.rotation.T @ after.rotation))
        return moved > MOVED or turned > TURNED_DEG or abs(np.log(after.scale / before.scale)) > MOVED


def _of_segment(placed: dict[int, Similarity], segment: int) -> Similarity:
    if segment in placed:
        return placed[segment]
    earlier = [known for known in placed if known < segment]
    if earlier:
        return placed[max(earlier)]
    return placed[min(placed)] if placed else _UNCHANGED


_UNCHANGED = Similarity.identity()


def _moved_result(result: FrameResult, S: Similarity) -> FrameResult:
    """A result in another world and unit."""
    if S is _UNCHANGED:
        return result
    network = result.network or NetworkEstimate(result.T_world_camera, result.intrinsics)
    covariance = result.covariance
    if covariance is not None:
        J = np.zeros((6, 6))
        J[:3, :3], J[3:, 3:] = np.eye(3), S.scale * S.rotation
        covariance = J @ covariance @ J.T
    return replace(
        result,
        T_world_camera=S.move_pose(np.asarray(result.T_world_camera, np.float64)),
        depth=np.asarray(result.depth * np.float32(S.scale), np.float32),
        network=replace(network, depth_scale=network.depth_scale / S.scale),
        covariance=covariance,
    )
