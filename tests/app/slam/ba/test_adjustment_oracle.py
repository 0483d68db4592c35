"""The same problems given to pycolmap, an independent solver, have the same optimum."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.adjustment import adjust
from stream_recon.app.slam.ba.problem import BAScene, Observations, Priors, Problem
from tests.app.slam.synthetic import walk

pycolmap: Any = pytest.importorskip("pycolmap")


def solved_by_pycolmap(problem: Problem, loss_scale: float) -> BAScene:
    """Ceres' minimum of the reprojection errors; the gauge held by two cameras."""
    scene, seen = problem.scene, problem.observations
    model = pycolmap.Reconstruction()
    lens = [scene.camera_model.focal, scene.camera_model.cx, scene.camera_model.cy, scene.camera_model.k1]
    camera = pycolmap.Camera(model="SIMPLE_RADIAL", width=640, height=480, params=lens, camera_id=1)
    model.add_camera_with_trivial_rig(camera)
    number = np.zeros(len(seen), np.intp)
    config = pycolmap.BundleAdjustmentConfig()
    for index, T in enumerate(np.linalg.inv(scene.T_world_camera), start=1):
        own = np.flatnonzero(seen.camera == index - 1)
        number[own] = np.arange(len(own))
        pixels = pycolmap.Point2DList([pycolmap.Point2D(pixel) for pixel in seen.pixel[own]])
        image = pycolmap.Image(name=str(index), camera_id=1, image_id=index, points2D=pixels)
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(T[:3, :3]), T[:3, 3])
        model.add_image_with_trivial_frame(image, pose)
        config.add_image(index)
    points = []
    for index, xyz in enumerate(scene.points):
        track = pycolmap.Track()
        for each in np.flatnonzero(seen.point == index):
            track.add_element(int(seen.camera[each]) + 1, int(number[each]))
        points.append(model.add_point3D(xyz, track))
    config.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    options = pycolmap.BundleAdjustmentOptions()
    options.print_summary = False
    options.refine_extra_params = problem.free_k1
    options.ceres.loss_function_type = pycolmap.LossFunctionType.CAUCHY
    options.ceres.loss_function_scale = loss_scale
    options.ceres.solver_options.gradient_tolerance = 1e-10
    options.ceres.solver_options.max_num_iterations = 300
    options.ceres.solver_options.num_threads = 1
    pycolmap.create_default_bundle_adjuster(options, config, model).solve()
    T = np.tile(np.eye(4), (len(scene.T_world_camera), 1, 1))
    for index in range(len(T)):
        T[index, :3] = model.image(index + 1).cam_from_world().inverse().matrix()
    focal, cx, cy, k1 = map(float, model.camera(1).params)
    return BAScene(T, np.array([model.point3D(point).xyz for point in points]), CameraModel(focal, cx, cy, k1))


@pytest.mark.parametrize(("free_k1", "outliers", "loss_scale"), [(False, 0.0, 1.0), (True, 0.05, 2.0)])
def test_the_optimum_is_pycolmaps(free_k1: bool, outliers: float, loss_scale: float) -> None:
    world = walk(10, 250, 6, k1=0.02 if free_k1 else 0.0, seed=5)
    rng = np.random.default_rng(6)
    pixel = world.observations.pixel.copy()
    wrong = rng.random(len(pixel)) < outliers
    pixel[wrong] += rng.uniform(-20, 20, (int(wrong.sum()), 2))
    observations = Observations(world.observations.camera, world.observations.point, pixel)
    # It knows no priors, so there are none.
    problem = Problem(world.start, observations, free_k1=free_k1, priors=Priors(k1_sigma=1e6))
    ours = adjust(problem, loss_scale, 300, 1e-13)
    theirs = solved_by_pycolmap(problem, loss_scale)
    their_cost = adjust(replace(problem, scene=theirs), loss_scale, iterations=0).cost
    assert ours.cost == pytest.approx(their_cost, rel=1e-6)
    assert ours.scene.camera_model.focal == pytest.approx(theirs.camera_model.focal, abs=1e-3)
    assert ours.scene.camera_model.k1 == pytest.approx(theirs.camera_model.k1, abs=1e-5)
