"""Refinement of a walk whose poses are known with errors, which it measures and corrects."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.problem import BAScene, Observations
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.offline.known_motions import known_motions
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import GivenPoses
from tests.app.slam.offline.test_refine import errors
from tests.app.slam.room import FOCAL, Video, drifting, walk

COUNT = 16


def test_errors_of_known_motions_are_measured_at_each_distance() -> None:
    truth, random = walk(60), np.random.default_rng(2)
    noisy = truth.copy()
    noisy[:, :3, 3] += random.normal(0, 0.02, (60, 3))
    noisy[:, :3, :3] = noisy[:, :3, :3] @ so3.exp(np.radians(random.normal(0, 0.5, (60, 3))))
    scene = BAScene(truth, np.zeros((0, 3)), CameraModel(FOCAL, 160.0, 120.0))
    nothing = np.zeros(0, np.intp)
    fit = BAState(scene, Observations(nothing, nothing, np.zeros((0, 2))), nothing, np.zeros(0), np.zeros(0))
    known = np.ones(60, bool)
    known[7] = False
    motions = known_motions(noisy, known, fit)
    assert motions is not None and not (np.isin(7, motions.first) or np.isin(7, motions.second))
    spans = len(np.unique(motions.rotation_sigma))
    length = np.linalg.norm(motions.T_first_second[:, :3, 3], axis=1)
    # Of the difference of two poses; each distance has its share of the information.
    assert np.allclose(motions.translation_sigma * length, 0.02 * np.sqrt(2 * spans), rtol=0.25)
    assert np.allclose(np.degrees(motions.rotation_sigma), 0.5 * np.sqrt(2 * spans), rtol=0.25)
    assert known_motions(noisy, np.arange(60) < 6, fit) is None


@pytest.mark.slow
def test_errors_of_known_poses_are_corrected() -> None:
    video = Video(walk(COUNT), drifting(walk(COUNT), turn_deg=0.8, move=0.1), focal=FOCAL)
    random, noisy = np.random.default_rng(3), video.truth.copy()
    noisy[:, :3, 3] += random.normal(0, 0.02, (COUNT, 3))
    noisy[:, :3, :3] = noisy[:, :3, :3] @ so3.exp(np.radians(random.normal(0, 0.5, (COUNT, 3))))
    views = [replace(view, T_world_camera=T) for view, T in zip(video.views(), noisy, strict=True)]
    found = refine(
        views, video, video.scale, RefineOptions(known_intrinsics=True, given=GivenPoses(np.ones(COUNT, bool)))
    )
    before, after = errors(noisy, video.truth), errors(found.T_world_camera, video.truth)
    assert before.ate_m is not None and after.ate_m is not None and after.ate_m < before.ate_m / 3
    assert before.rpe_rot_deg is not None and after.rpe_rot_deg is not None
    assert after.rpe_rot_deg < before.rpe_rot_deg / 3
