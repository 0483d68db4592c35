"""Random error of a map's path, against its true error."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.transforms import align
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.problem import BAScene
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.offline.initialization import InitialCandidate
from stream_recon.app.slam.offline.path_error import PathError, path_difference, path_error
from tests.app.slam.room import drifting
from tests.app.slam.synthetic import World, walk

FloatArray = NDArray[np.float64]
COUNT = 16


def mapped(noise_px: float, seed: int) -> tuple[World, BAState, InitialCandidate]:
    """A walk, its map with all observations, and the map as adjusted."""
    world = walk(COUNT, 300, 5, noise_px=noise_px, seed=seed)
    seen = world.observations
    scene = BAScene(world.truth.T_world_camera, world.start.points, world.start.camera_model, np.zeros(COUNT))
    scene = replace(scene, points=robust_ba.backprojected(scene, seen))
    start = robust_ba.retriangulated(robust_ba.with_errors(scene, seen, np.arange(len(seen))))
    priors = robust_ba.first_pass_priors(scene.camera_model.focal, 0.1)
    fit = robust_ba.solve(start, None, robust_ba.FINE_ROUNDS, priors)
    all_seen = robust_ba.with_errors(replace(scene, T_world_camera=fit.scene.T_world_camera), seen, start.feature)
    return world, robust_ba.retriangulated(all_seen), InitialCandidate("network", fit, priors, None, True, 1.0)


def true_error(T: FloatArray, world: World) -> float:
    ours, truth = T[:, :3, 3], world.truth.T_world_camera[:, :3, 3]
    path = np.linalg.norm(np.diff(truth, axis=0), axis=1).sum()
    return float(np.sqrt(np.square(align(ours, truth).apply(ours) - truth).sum(axis=1).mean()) / path)


@pytest.mark.parametrize("noise_px", [0.3, 1.0])
def test_the_estimate_is_about_the_true_error(noise_px: float) -> None:
    ratios = []
    for seed in range(3):
        world, start, candidate = mapped(noise_px, seed)
        found = path_error(start, candidate, world.truth.T_world_camera, np.zeros(COUNT, int))
        assert found is not None
        ratios.append(found.random / true_error(candidate.fit.scene.T_world_camera, world))
    assert 0.5 < np.exp(np.mean(np.log(ratios))) < 2.0


def test_the_more_accurate_path_is_told() -> None:
    world, start, candidate = mapped(1.0, seed=4)
    truth, one = world.truth.T_world_camera, np.zeros(COUNT, int)
    exact = path_error(start, candidate, truth, one)
    assert exact is not None and exact.is_larger and "too noisy" in exact.reason
    drifted = drifting(truth, turn_deg=1.0, move=0.2)
    rough = path_error(start, candidate, drifted, one)
    assert rough is not None and not rough.is_larger
    assert path_difference(start, drifted, one) == pytest.approx(rough.difference)
    assert rough.random == pytest.approx(exact.random, rel=0.5)


def test_each_segment_is_aligned_for_itself() -> None:
    _, start, candidate = mapped(0.5, seed=5)
    T = start.scene.T_world_camera.copy()
    segment = np.arange(COUNT) // (COUNT // 2)
    T[segment == 1, :3, 3] = 3 * T[segment == 1, :3, 3] + 7
    found = path_error(start, candidate, T, segment)
    assert found is not None and found.difference < 1e-9 and (path_difference(start, T, segment) or 0.0) < 1e-9


def test_there_is_no_path_of_few_keyframes_or_of_turns_on_the_spot() -> None:
    world, start, candidate = mapped(0.5, seed=6)
    few = world.truth.T_world_camera, np.arange(COUNT) // 3
    assert path_error(start, candidate, *few) is None and path_difference(start, *few) is None
    T = start.scene.T_world_camera.copy()
    T[:, :3, 3] *= 1e-3
    still = replace(start, scene=replace(start.scene, T_world_camera=T))
    assert path_error(still, candidate, world.truth.T_world_camera, np.zeros(COUNT, int)) is None


def test_twice_the_squared_random_error_is_systematic_and_random() -> None:
    assert PathError(random=0.01, difference=0.019, systematic=2.0).is_larger
    assert not PathError(random=0.01, difference=0.021, systematic=2.0).is_larger
