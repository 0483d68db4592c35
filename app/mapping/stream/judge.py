"""Whether the map or the network moves a keyframe as the images show, by tracks that neither was fitted to."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.mapping.features import Features
from stream_recon.app.mapping.judgement import PARTS, Evidence, Side
from stream_recon.app.mapping.problem import Lens
from stream_recon.app.mapping.stream.keyframe import Keyframe, shared
from stream_recon.app.mapping.stream.tracking import LEAST_MOTION, Located
from stream_recon.app.transforms import invert_pose

FloatArray = NDArray[np.float64]

MARGIN = 0.06
"""By so much the map has to be worse, as a share of the image, before the network is preferred."""
DOUBT_OVER = 4
"""Keyframes."""
DOUBT_DEG, SURE_DEG = 20.0, 12.0
"""Between the ways by the tracks and by the network, where doubt begins and where it may end."""
DOUBT_PARTS, SURE_PARTS, PART_PX = 0.12, 0.05, 5.0
"""Likewise, the share of the image whose tracks miss by so many pixels."""
LEAST_MATCHES = 30
"""Over all pairs: fewer say nothing."""


class Doubt:
    """Whether something large moves by itself, and the tracks are its.

    A network that sees the whole image is hardly ever wrong about where the camera goes, by as much as tracks are that
    follow something else. But where it is blind, as after half a turn, the tracks all agree. So both together tell:
    tracks that lead elsewhere, and parts of the image that contradict them.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=DOUBT_OVER)
        self.holds = False
        """Of the last keyframes."""

    def look(self, last: Keyframe, found: Located, T_network: FloatArray, side: float) -> None:
        """Hear of a new keyframe.

        Args:
            T_network: [4, 4], the network's motion since ``last``.
            side: longer side of the image.
        """
        if found.T_tracks is None:
            return
        T = invert_pose(last.T_world_camera) @ found.T_tracks
        ours, theirs = np.linalg.norm(T[:3, 3]), np.linalg.norm(T_network[:3, 3])
        if min(ours, theirs * np.exp(last.log_scale)) < LEAST_MOTION * last.usual_depth:
            return
        angle = float(np.degrees(np.arccos(np.clip(T[:3, 3] @ T_network[:3, 3] / (ours * theirs), -1, 1))))
        part = np.unique(found.uv // (side / PARTS), axis=0, return_inverse=True)[1].reshape(-1)
        order = np.argsort(part, kind="stable")
        missed = np.split(found.missed_px[order], np.flatnonzero(np.diff(part[order])) + 1)
        medians = np.array([np.median(each) for each in missed if len(each) > 1])
        self._seen.append((angle, float((medians > PART_PX).mean()) if len(medians) else 0.0))
        angle, share = np.median(self._seen, axis=0)
        if self.holds:
            self.holds = bool(share > SURE_PARTS and (angle > SURE_DEG or share > DOUBT_PARTS))
        else:
            self.holds = len(self._seen) > 1 and bool(angle > DOUBT_DEG and share > DOUBT_PARTS)


def network_is_better(keyframes: Sequence[Keyframe], lens: Lens) -> bool:
    """Of the motion from the others to the last one."""
    last, held = len(keyframes) - 1, {}
    for k in range(last):
        rows = shared(keyframes[k], keyframes[last])
        held[k, last] = rows[keyframes[k].held_out[rows[:, 0]]].astype(np.int32)
    if sum(len(m) for m in held.values()) < LEAST_MATCHES:
        return False
    focal = float(np.median([keyframe.focal_network for keyframe in keyframes]))
    network_lens = Lens(focal, lens.cx, lens.cy)
    network = Side(np.array([k.T_network for k in keyframes]), network_lens, np.ones(len(keyframes)))
    scales = np.exp([k.log_scale for k in keyframes])
    mapped = Side(np.array([k.T_world_camera for k in keyframes]), lens, scales)
    none = np.zeros((0, 128), np.float32)
    features = [Features(k.uv, none, k.z_network) for k in keyframes]
    theirs, ours = (Evidence.of(side, features, held).pairs for side in (network, mapped))
    return bool(ours) and float(np.mean([(ours[pair] - theirs[pair]).mean() for pair in ours])) > MARGIN
