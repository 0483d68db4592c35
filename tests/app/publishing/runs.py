"""Synthetic results for tests: a walk whose network drifts in scale, and revisions of loops."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.types import FrameResult, FrameRevision, NetworkEstimate, Revision
from tests.app.fake_engine import fake_result, frames, prepared


def drifting_walk(count: int = 60, loops: tuple[int, ...] = (25, 45)) -> list[FrameResult | Revision]:
    """Results of a walk, with a revision that moves all frames so far at each loop.

    The network's path drifts in pose and is 1.25 times as long as the map's, whose poses are noisy around it.
    """
    noise = np.random.default_rng(4)
    network, T_map, scale = np.eye(4), np.eye(4), 0.8
    items: list[FrameResult | Revision] = []
    poses: list[NDArray[np.float64]] = []
    for index, frame in enumerate(frames(count)):
        step = np.eye(4)
        step[:3, :3] = so3.exp(np.array([0.01, 0.1, -0.02]) + noise.normal(0, 0.01, 3))
        step[:3, 3] = np.array([0.02, 0.0, 0.1]) + noise.normal(0, 0.005, 3)
        network = network @ step
        step[:3, 3] = step[:3, 3] * scale + noise.normal(0, 0.004, 3)
        T_map = T_map @ step
        if index in loops:
            # A loop turns, moves and scales the map; this frame leaves with its pose after that.
            scale *= 1.1
            change = np.eye(4)
            change[:3, :3], change[:3, 3] = so3.exp(noise.normal(0, 0.3, 3)), noise.normal(0, 1.0, 3)
            poses = [change @ T for T in poses]
            T_map = change @ T_map
        result = fake_result(prepared(frame))
        estimate = NetworkEstimate(network.copy(), result.intrinsics, 1 / scale)
        items.append(replace(result, T_world_camera=T_map.copy(), network=estimate, health=0.8 if index else None))
        if index in loops:
            items.append(Revision(tuple(FrameRevision(number, T, 1.1) for number, T in enumerate(poses))))
        poses.append(T_map.copy())
    return items


def last_revision(items: list[FrameResult | Revision]) -> Revision:
    """A refinement of all frames, the last one too."""
    results = [item for item in items if isinstance(item, FrameResult)]
    change = np.eye(4)
    change[:3, :3], change[:3, 3] = so3.exp(np.array([0.2, -0.1, 0.3])), (0.5, -0.4, 0.3)
    return Revision(tuple(FrameRevision(result.index, change @ result.T_world_camera) for result in results))
