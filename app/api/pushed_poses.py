"""Known poses of a stream's images, in whose world and unit the results are."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stream_recon.app.core.transforms import FloatArray, invert_pose, is_rigid, mean_rotation
from stream_recon.app.core.types import FrameResult
from stream_recon.app.metric_scale.known_poses import check_fit
from stream_recon.configs.errors import InputError

REACH = 0.1
"""Distance of two frames whose positions tell the network's unit, as a share of the depth."""
MIN_PAIRS, MIN_AT_END, MAX_PAIRS = 8, 3, 32
"""Such pairs: fewest, fewest where no image follows, and the latest ones that count, as the network's unit drifts."""
MAX_HELD = 600
"""Most results that wait until the unit is known."""
MAX_CHECKED = 1024
"""Results of a segment up to which poses are compared with the network's, at each doubling of their number."""
GIVEN = "the poses that were pushed"


def checked_pose(pose: object) -> FloatArray:
    """A pose as a float64 matrix [4, 4] of an exact rotation. Raises InputError."""
    given, T = np.asarray(pose), np.eye(4)
    if given.dtype.kind not in "iuf" or given.shape not in ((4, 4), (3, 4)):
        raise InputError(f"a pose is numbers [4, 4] or [3, 4], camera to world, not {given.dtype} {list(given.shape)}")
    T[: len(given)] = given
    if not is_rigid(T):
        raise InputError("a pose is a rotation and, in the last column, a translation, all finite, above 0 0 0 1")
    T[:3, :3], T[3] = mean_rotation(T[None, :3, :3]), (0, 0, 0, 1)
    return T


class PushedPoses:
    """Known poses of one stream's images, and the network's results that wait until its unit is known.

    Frames without a pose follow the network's motion. After a cut the unit goes on until it is measured again.
    """

    def __init__(self) -> None:
        self._poses: dict[int, FloatArray] = {}
        """By the image's number, until its result comes."""
        self._held: list[FrameResult] = []
        self._scale: float | None = None
        """Length in the poses' unit per length of the network."""
        self._last: tuple[FloatArray, FloatArray] | None = None
        """Pose of the last frame, the network's and in the poses' world."""
        self._begin(0)

    def _begin(self, segment: int) -> None:
        self._segment, self._check_at = segment, 0
        self._pairs: list[tuple[FloatArray, FloatArray]] = []
        """The network's and the known poses, as long as they are checked."""
        self._path: deque[tuple[FloatArray, FloatArray]] = deque()
        """Those from the last one that is out of reach."""
        self._ratios: deque[float] = deque(maxlen=MAX_PAIRS)

    def note(self, index: int, T: FloatArray) -> None:
        """The pose of an image whose result is to come."""
        self._poses[index] = T

    def place(self, results: Sequence[FrameResult], *, is_end: bool = False) -> list[FrameResult]:
        """Results that are ready, in the poses' world and unit; ``is_end``: the last ones.

        Raises InputError: poses and results do not agree, or the unit stays unknown.
        """
        for result in results:
            self._measure(result)
        self._held += results
        if len(self._ratios) >= (MIN_AT_END if is_end else MIN_PAIRS):
            self._scale = self._checked_scale()
        if self._scale is None:
            if self._held and (is_end or len(self._held) > MAX_HELD):
                raise InputError(f"{GIVEN} and the camera do not move enough to compare their lengths")
            return []
        held, self._held = self._held, []
        if self._last is None:
            first = next(each for each in held if each.index in self._poses)
            self._last = first.T_world_camera, self._poses[first.index]
        return [self._placed(each, self._scale) for each in held]

    def _measure(self, result: FrameResult) -> None:
        if result.segment != self._segment:
            self._begin(result.segment)
        known = self._poses.get(result.index)
        if known is None:
            return
        own, seen = result.T_world_camera, result.depth[result.depth > 0]
        reach = REACH * float(np.median(seen)) if len(seen) else np.inf
        self._path.append((own, known))
        while len(self._path) > 2 and np.linalg.norm(own[:3, 3] - self._path[1][0][:3, 3]) >= reach:
            self._path.popleft()
        first_own, first_known = self._path[0]
        moved = (own[:3, 3] - first_own[:3, 3]) @ first_own[:3, :3] @ first_known[:3, :3].T
        if (square := float(moved @ moved)) >= reach**2:
            self._ratios.append(float(moved @ (known[:3, 3] - first_known[:3, 3])) / square)
        if self._check_at <= MAX_CHECKED:
            self._pairs.append((own, known))

    def _checked_scale(self) -> float:
        if self._check_at <= MAX_CHECKED and len(self._pairs) >= self._check_at:
            own, known = np.swapaxes(np.array(self._pairs), 0, 1)
            check_fit(own, known, GIVEN)
            self._check_at = 2 * len(self._pairs)
        scale = float(np.median(self._ratios))
        if scale <= 0:
            raise InputError(f"{GIVEN} do not fit the camera's path: they move the other way")
        return scale

    def _placed(self, result: FrameResult, scale: float) -> FrameResult:
        T = self._poses.pop(result.index, None)
        if T is None:
            assert self._last is not None
            moved = invert_pose(self._last[0]) @ result.T_world_camera
            moved[:3, 3] *= scale
            T = self._last[1] @ moved
        self._last = result.T_world_camera, T
        return replace(result, T_world_camera=T, depth=np.asarray(result.depth * np.float32(scale), np.float32))
