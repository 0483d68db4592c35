"""Whether the map or the network moves a keyframe as the images show, by tracks that neither was fitted to."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.offline.model_selection import PARTS, HeldOutError, PoseCandidate, medians_by
from stream_recon.app.slam.online.keyframe import Keyframe, shared
from stream_recon.app.slam.online.resectioning import TrackingResult

FloatArray = NDArray[np.float64]

MARGIN = 0.06
"""By so much the map has to be worse, as a share of the image, before the network is preferred."""
DOUBT_OVER, DOUBT_AFTER = 6, 3
"""Keyframes over which the tracks' way is held against the network's, at most and at least."""
ASTRAY, SURE_ASTRAY = 0.4, 0.2
"""As shares of the way: how far they lead apart where doubt begins, and where it may end."""
JUMP = 0.22
"""Change of the log of the map's unit from one keyframe to the next, against the network's, that raises doubt, too:
no network's depth is off like that all at once."""
ODD, ODD_ASTRAY = 0.2, 0.05
"""Share of the image that has to move otherwise, in the mean over those keyframes; the second one where the tracks lead
astray, or while doubt lasts. Of videos in which all stood still it was at most .17."""
SOON, SOON_ASTRAY, SOON_ODD = 3, 0.9, 0.08
"""Over so many of the last keyframes more is asked of both: a map that was right until something came."""
ODD_PX, ODD_TRACKS, ODD_SPREAD = 5.0, 3, 0.3
"""A part of the image moves otherwise if so many of its tracks miss by so many pixels, and all alike: half of them
differ by at most such a share of it. Those that were lost differ by more."""
LEAST_WAY = 0.01
"""Of the depth, from keyframe to keyframe, for the unit to be told by."""
LEAST_ARRIVED = 0.3
"""Share of the tracks that have to arrive, or those that miss are lost like the others."""
LEAST_MATCHES = 30
"""Over all pairs: fewer say nothing."""


class DynamicSceneTest:
    """Whether something large moves by itself, and the tracks are its.

    A network that sees the whole image is hardly ever as wrong about where the camera goes, over some keyframes, as
    tracks are that follow something else. But where it is blind, as after half a turn, the tracks all agree. So both
    together tell: tracks that lead elsewhere, and parts of the image that contradict them. Where much of the image does
    that is enough: the network leads that way, too, but less far.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[FloatArray, FloatArray, float]] = deque(maxlen=DOUBT_OVER)
        self.holds = False
        """Of the last keyframes."""

    def _odd(self, over: int = DOUBT_OVER) -> float:
        """Share of the image that moves otherwise than the tracks' pose has it."""
        return float(np.mean([each[2] for each in [*self._seen][-over:]])) if self._seen else 0.0

    def _astray(self, over: int = DOUBT_OVER) -> float:
        """How far tracks and network lead apart, as a share of the way."""
        last = [*self._seen][-over:]
        return float(np.linalg.norm(_way([each[0] for each in last]) - _way([each[1] for each in last])))

    def jumped(self, change: float, depth: float) -> bool:
        """Hear by how much the log of the map's unit is to change at the last keyframe; whether that raises doubt.

        ``depth``: that the network usually sees there. Where the camera only turns the unit may be anything.
        """
        way = float(np.median([np.linalg.norm(each[1][:3, 3]) for each in self._seen])) if self._seen else 0.0
        raised = not self.holds and abs(change) > JUMP and way > LEAST_WAY * depth and self._odd() > ODD_ASTRAY
        self.holds |= raised
        return raised

    def look(self, last: Keyframe, found: TrackingResult, T_network: FloatArray, side: float) -> None:
        """Hear of a new keyframe.

        Args:
            T_network: [4, 4], the network's motion since ``last``.
            side: longer side of the image.
        """
        if found.T_tracks is None or not found.good:
            # Tracks of which most miss any pose are lost, not something else's: so it is where frames are far apart.
            return
        told = len(found.row) > LEAST_ARRIVED * found.asked
        share = moving_otherwise(found.uv, found.missed, side) if told else 0.0
        self._seen.append((invert_pose(last.T_world_camera) @ found.T_tracks, T_network, share))
        if len(self._seen) < DOUBT_AFTER:
            return
        contradicted = self._odd() > ODD_ASTRAY
        if self.holds:
            self.holds = self._astray() > SURE_ASTRAY or contradicted
        else:
            soon = self._astray(SOON) > SOON_ASTRAY and self._odd(SOON) > SOON_ODD
            self.holds = self._odd() > ODD or (self._astray() > ASTRAY and contradicted) or soon


def moving_otherwise(uv: NDArray[np.floating], missed: FloatArray, side: float) -> float:
    """Share of the image's parts whose tracks at ``uv`` [N, 2] all miss alike, by ``missed`` [N, 2] pixels."""
    part = np.unique(uv // (side / PARTS), axis=0, return_inverse=True)[1].reshape(-1)
    seen = np.isfinite(missed).all(axis=1)
    part, missed = part[seen], missed[seen]
    used, part, count = np.unique(part, return_inverse=True, return_counts=True)
    if not len(used):
        return 0.0
    usual = np.stack([medians_by(part, missed[:, axis]) for axis in (0, 1)], axis=1)
    spread = medians_by(part, np.linalg.norm(missed - usual[part], axis=1))
    length = np.linalg.norm(usual, axis=1)
    enough = count >= ODD_TRACKS
    odd = enough & (length > ODD_PX) & (spread < ODD_SPREAD * length)
    return float(odd.sum() / max(enough.sum(), 1))


def _way(steps: Sequence[FloatArray]) -> FloatArray:
    """[3], where motions [4, 4], one after the other, lead in the first's axes: a share of the length of the way."""
    T = np.eye(4)
    for step in steps:
        T = T @ step
    return np.asarray(T[:3, 3] / max(sum(float(np.linalg.norm(step[:3, 3])) for step in steps), 1e-12))


def network_is_better(keyframes: Sequence[Keyframe], lens: CameraModel) -> bool:
    """Of the motion from the others to the last one."""
    last, held = len(keyframes) - 1, {}
    for k in range(last):
        rows = shared(keyframes[k], keyframes[last])
        held[k, last] = rows[keyframes[k].held_out[rows[:, 0]]].astype(np.int32)
    if sum(len(m) for m in held.values()) < LEAST_MATCHES:
        return False
    focal = float(np.median([keyframe.focal_network for keyframe in keyframes]))
    network_lens = CameraModel(focal, lens.cx, lens.cy)
    network = PoseCandidate(np.array([k.T_network for k in keyframes]), network_lens, np.ones(len(keyframes)))
    scales = np.exp([k.log_scale for k in keyframes])
    mapped = PoseCandidate(np.array([k.T_world_camera for k in keyframes]), lens, scales)
    none = np.zeros((0, 128), np.float32)
    features = [Features(k.uv, none, k.z_network) for k in keyframes]
    theirs, ours = (HeldOutError.of(side, features, held).pairs for side in (network, mapped))
    return bool(ours) and float(np.mean([(ours[pair] - theirs[pair]).mean() for pair in ours])) > MARGIN
