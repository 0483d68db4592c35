"""The stage between engine and listeners: each result gets a causal pose, earlier ones are revised."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mapping.choice import Departure
from stream_recon.app.mapping.stream.front import Front
from stream_recon.app.mapping.stream.whole import FIRST, Background
from stream_recon.app.mapping.views import Scale
from stream_recon.app.results import FrameResult, FrameRevision, Intrinsics, NetworkEstimate, PreparedFrame, Revision

Item = FrameResult | Revision


class StreamStage:
    """`run.listeners.Stage`: geometry while the stream runs.

    Args:
        together: so many first results are given out together: as many as the network itself makes at once.
        live: the source does not wait: neither does this, and what comes too late is left out and counted.
        known_lens: the results' focal length is right.
        departure: the end of the map that this one goes on with.
    """

    def __init__(
        self,
        *,
        together: int = 1,
        live: bool = False,
        known_lens: bool = False,
        departure: Departure | None = None,
    ) -> None:
        self._departure = departure
        self._together = together
        self._front: Front | None = None
        self._waiting: dict[int, FrameResult] = {}
        """By their numbers: placed, and not given out yet."""
        self._stretch = 0
        self._background = Background(waits=not live, known_lens=known_lens)
        self.points = np.zeros((0, 3), np.float32)
        """[N, 3], in the world: what the map stands on, as of the last adjustment of all. Replaced, never changed."""

    @property
    def wants_grey(self) -> bool:
        return True

    @property
    def told(self) -> str:
        """Figures for the user: tracks, their error, what was left to the network, what was skipped."""
        front = self._front
        if front is None:
            return ""
        counts, parts = front.counts, []
        if counts.error_px is not None:
            parts.append(f"{counts.tracks} tracks off by {counts.error_px:.2f} px")
        for count, name in (
            (counts.left_to_network, "stretches left to the network"),
            (self._background.skipped, "adjustments skipped"),
        ):
            if count:
                parts.append(f"{count} {name}")
        return ", ".join(parts)

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[Item]:
        """Place a result; gives it, and what became of those before."""
        assert frame.grey is not None, "the stage needs grey images"
        items: list[Item] = []
        if self._front is None or result.stretch != self._stretch:
            items += self._ended()
            self._front, self._stretch = self._begun(result, frame.grey), result.stretch
            self._background.restart()
        front = self._front
        known = len(front.keyframes)
        front.add(result, frame.grey)
        self._waiting[result.index] = result
        if len(front.keyframes) > known:
            self._background.offer(front.active, front.lens)
        self._take_in(front)
        self._together -= 1
        return items if self._together > 0 else items + self._given_out(front)

    def finish(self) -> Sequence[Item]:
        """What is known when the last frame is in."""
        items = self._ended()
        self._background.close()
        return items

    def _begun(self, result: FrameResult, image: NDArray[np.uint8]) -> Front:
        """A map for a stretch: it goes on where the last one ended, as the network's world does."""
        size = image.shape[1], image.shape[0]
        scale = Scale(size[0] / result.transform.source_size[0], size)
        departure, self._departure = self._departure, None
        if departure is not None:
            front = Front(scale, result, departure.T_world_camera, float(np.log(departure.scale)))
            if departure.stretch == result.stretch:
                front.follow(departure.T_network, departure.focal)
            return front
        if self._front is None:
            return Front(scale, result)
        # The network begins where the camera was last: so does the map, in its own world.
        return Front(scale, result, self._front.newest_pose(), self._front.log_scale)

    def _ended(self) -> list[Item]:
        """The last word on the map so far."""
        front = self._front
        if front is None:
            return []
        self._take_in(front, wait=True)
        if len(front.keyframes) >= FIRST:
            self._background.begin(front.active, front.lens)
            self._take_in(front, wait=True)
        return self._given_out(front)

    def _take_in(self, front: Front, *, wait: bool = False) -> None:
        found = self._background.collect(wait=wait)
        if found is not None:
            front.settle(*found)
            self.points = front.points()

    def _given_out(self, front: Front) -> list[Item]:
        """The results that waited, then a revision of what moved meanwhile."""
        given: list[Item] = []
        revised: list[FrameRevision] = []
        lens = front.intrinsics
        for number in sorted(front.changed | front.joined):
            keyframe = front.keyframes[number]
            scale = float(np.exp(keyframe.log_scale))
            for member in keyframe.members:
                T, result = keyframe.pose_of(member), self._waiting.pop(member.index, None)
                if result is not None:
                    given.append(_placed(result, T, scale, lens))
                    member.given_scale = scale
                elif member.given_scale is not None and keyframe.number in front.changed:
                    revised.append(FrameRevision(member.index, T, scale / member.given_scale, lens))
        front.changed, front.joined = set(), set()
        return given + ([Revision(tuple(revised))] if revised else [])


def _placed(result: FrameResult, T_world_camera: NDArray[np.float64], scale: float, lens: Intrinsics) -> FrameResult:
    """A result as the map has it, with what the network said of it."""
    said = NetworkEstimate(result.T_world_camera, result.intrinsics, 1 / scale)
    depth = (result.depth * np.float32(scale)).astype(np.float32)
    return replace(result, T_world_camera=T_world_camera, intrinsics=lens, depth=depth, network=said)
