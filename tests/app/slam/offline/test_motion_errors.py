"""Errors of the network's motions, and maps that weigh them."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.transforms import align
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Tracks
from stream_recon.app.slam.offline.initialization import InitialCandidate, Initializer
from stream_recon.app.slam.offline.motion_errors import MotionConfig, MotionErrors, motion_errors
from tests.app.slam.room import drifting
from tests.app.slam.synthetic import World, walk

FloatArray = NDArray[np.float64]
COUNT = 16


def mapped(noise_px: float, turn_deg: float, move: float, seed: int) -> tuple[World, Initializer, InitialCandidate]:
    """A walk, a drifting network's poses, and the map from them."""
    world = walk(COUNT, 200, 5, noise_px=noise_px, seed=seed)
    seen, T = world.observations, drifting(world.truth.T_world_camera, turn_deg, move, seed)
    rows = [np.flatnonzero(seen.camera == k) for k in range(COUNT)]
    assert seen.depth is not None
    features = [
        Features(seen.pixel[r].astype(np.float32), np.zeros((len(r), 0), np.float32), seen.depth[r].astype(np.float32))
        for r in rows
    ]
    order = np.concatenate(rows)
    number = np.concatenate([np.arange(len(r)) for r in rows])
    by_track = np.lexsort((seen.camera[order], seen.point[order]))
    tracks = Tracks(seen.point[order][by_track], seen.camera[order][by_track], number[by_track])
    initializer = Initializer(T, replace(world.truth.camera_model), features, tracks, {})
    return world, initializer, initializer.from_poses()


def path_error(fit: BAState, world: World) -> float:
    return _path_error(fit.scene.T_world_camera, world)


def best_of(candidate: InitialCandidate, initializer: Initializer, world: World) -> float:
    """Error of the better one of map and network."""
    return min(path_error(candidate.fit, world), _path_error(initializer.T_network, world))


def _path_error(T: FloatArray, world: World) -> float:
    ours, truth = T[:, :3, 3], world.truth.T_world_camera[:, :3, 3]
    path = np.linalg.norm(np.diff(truth, axis=0), axis=1).sum()
    return float(np.sqrt(np.square(align(ours, truth).apply(ours) - truth).sum(axis=1).mean()) / path)


def errors_of(initializer: Initializer, candidate: InitialCandidate) -> MotionErrors:
    start = initializer.state_of(candidate.fit.scene)
    found = motion_errors(start, candidate, initializer.network_motions())
    assert found is not None
    return found


@pytest.mark.parametrize("turn_deg", [0.2, 1.0])
def test_the_estimate_is_about_the_true_error(turn_deg: float) -> None:
    ratios = []
    for seed in range(3):
        _, initializer, candidate = mapped(0.5, turn_deg, 0.1, seed)
        found = errors_of(initializer, candidate)
        ratios.append(np.degrees(found.motions.rotation_sigma[0]) / turn_deg)
        assert len(found.motions.first) == COUNT - 1
    assert 0.7 < np.exp(np.mean(np.log(ratios))) < 1.4


def test_exact_motions_are_relevant_and_rough_ones_are_not() -> None:
    _, initializer, candidate = mapped(1.5, 0.05, 0.01, seed=4)
    exact = errors_of(initializer, candidate)
    _, initializer, candidate = mapped(0.2, 2.0, 0.3, seed=4)
    rough = errors_of(initializer, candidate)
    assert exact.is_relevant and not rough.is_relevant
    assert exact.motions.rotation_sigma[0] < 0.2 * rough.motions.rotation_sigma[0]


def test_a_map_that_weighs_the_network_is_better_than_both_where_both_are_about_as_good() -> None:
    ratios = []
    for seed in range(3):
        world, initializer, candidate = mapped(1.0, 0.2, 0.05, seed)
        found = initializer.with_motions(candidate, errors_of(initializer, candidate).motions)
        ratios.append(path_error(found.fit, world) / best_of(candidate, initializer, world))
    assert np.exp(np.mean(np.log(ratios))) < 1.0 and max(ratios) < 1.3


@pytest.mark.parametrize("seed", range(2))
def test_noisy_matches_follow_a_network_that_is_more_accurate(seed: int) -> None:
    world, initializer, candidate = mapped(2.0, 0.1, 0.03, seed)
    found = initializer.with_motions(candidate, errors_of(initializer, candidate).motions)
    assert path_error(found.fit, world) < 0.5 * path_error(candidate.fit, world)


def test_errors_have_a_floor_and_need_motions() -> None:
    _, initializer, candidate = mapped(1.0, 0.0, 0.0, seed=5)
    found = errors_of(initializer, candidate)
    assert found.motions.rotation_sigma[0] > 0 and found.motions.translation_sigma[0] > 0
    few = initializer.network_motions().take(np.arange(5))
    start, config = initializer.state_of(candidate.fit.scene), MotionConfig(min_motions=6)
    assert motion_errors(start, candidate, few, config) is None
