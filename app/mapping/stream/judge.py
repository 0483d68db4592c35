"""Whether the map or the network moves a keyframe as the images show, by tracks that neither was fitted to."""

from collections.abc import Sequence

import numpy as np

from stream_recon.app.mapping.features import Features
from stream_recon.app.mapping.judgement import Evidence, Side
from stream_recon.app.mapping.problem import Lens
from stream_recon.app.mapping.stream.keyframe import Keyframe, shared

MARGIN = 0.06
"""By so much the map has to be worse, as a share of the image, before the network is preferred."""
LEAST_MATCHES = 30
"""Over all pairs: fewer say nothing."""


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
