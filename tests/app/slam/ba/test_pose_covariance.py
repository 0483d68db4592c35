"""Covariances of adjusted poses, against the errors of many adjustments."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.adjustment import adjust
from stream_recon.app.slam.ba.pose_covariance import pose_covariances
from stream_recon.app.slam.ba.pose_only import LossSchedule, pose_only_ba
from stream_recon.app.slam.ba.problem import Priors, Problem
from stream_recon.app.slam.ba.robust_ba import with_errors
from tests.app.slam.synthetic import LENS, walk

FOCAL_SIGMA = 0.03


@pytest.mark.parametrize(("drift_px", "known"), [(0.0, True), (0.3, False), (0.8, True)])
def test_stated_covariances_are_those_of_many_walks(drift_px: float, known: bool) -> None:
    """``drift_px``: how far tracks walk off from one image to the next, as features on edges do."""
    errors, stated, whitened = [], [], []
    for seed in range(24):
        world = walk(12, 300, 6, off=0.5, focal_off=1.0 if known else 1.02, seed=seed)
        random = np.random.default_rng(1000 + seed)
        drift = drift_px * random.normal(size=(300, 6, 2)).cumsum(axis=1).reshape(-1, 2)
        seen = replace(world.observations, pixel=world.observations.pixel + drift, depth=None)
        focal = LENS.focal * float(np.exp(FOCAL_SIGMA * random.normal()))
        priors = Priors(focal=focal, log_focal_sigma=FOCAL_SIGMA)
        scene = adjust(Problem(world.start, seen, free_focal=not known, priors=priors), 1.5, 60, 1e-9).scene
        fit = with_errors(scene, seen, np.zeros(len(seen), np.int64))
        C = pose_covariances(fit, None if known else FOCAL_SIGMA)[0]
        assert np.abs(C[0]).max() < 1e-12, "the first camera is what the others are relative to"
        ours, true = scene.T_world_camera, world.truth.T_world_camera
        away, right = ours[:, :3, 3] - ours[0, :3, 3], true[:, :3, 3] - true[0, :3, 3]
        turned = so3.log(true[:, :3, :3].transpose(0, 2, 1) @ ours[:, :3, :3])
        moved = away - right * (away**2).sum() / (away * right).sum()  # in the unit of the solution
        error = np.hstack([turned, moved])[1:]
        errors.append(error**2)
        stated.append(np.diagonal(C[1:], axis1=1, axis2=2))
        whitened.append(np.einsum("ni,nij,nj->n", error, np.linalg.inv(C[1:]), error) / 6)
    for part in (slice(3), slice(3, 6)):
        ratio = np.mean(errors, axis=0)[:, part].sum() / np.mean(stated, axis=0)[:, part].sum()
        assert 0.5 < ratio < 2, (part, ratio)
    assert 0.5 < np.mean(whitened) < 2


def test_an_image_that_is_fitted_to_known_points_has_the_errors_that_are_stated() -> None:
    errors, stated, one = [], [], 6
    for seed in range(24):
        world = walk(12, 300, 6, off=0.0, focal_off=1.0, seed=seed)
        seen = replace(world.observations, depth=None)
        own = pose_covariances(with_errors(world.truth, seen, np.zeros(len(seen), np.int64)), None)[1]
        mine = seen.camera == one
        estimate = pose_only_ba(
            world.truth.T_world_camera[one], world.truth.points[seen.point[mine]], seen.pixel[mine],
            np.ones(int(mine.sum())), world.truth.camera_model, LossSchedule((3.0, 2.0)),
        )  # fmt: skip
        T, true = estimate.T_world_camera, world.truth.T_world_camera[one]
        errors.append(np.concatenate([so3.log(true[:3, :3].T @ T[:3, :3]), T[:3, 3] - true[:3, 3]]) ** 2)
        stated.append(np.diag(own[one]))
    ratio = np.sum(errors, axis=0) / np.sum(stated, axis=0)
    assert (ratio > 0.4).all() and (ratio < 2.5).all(), ratio
    assert 0.5 < ratio.mean() < 2, ratio
