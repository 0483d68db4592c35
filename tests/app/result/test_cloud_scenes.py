"""The cloud of rendered scenes holds what the cameras saw, and nothing beside it."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.ply import positions
from stream_recon.app.result.amend import rebuild_cloud
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.files import stored_points
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.schema import PointsConfig
from tests.app.fake_engine import run_info
from tests.app.rendered import (
    NetworkErrors,
    Scene,
    armchair,
    furnished_room,
    network_results,
    object_on_table,
    street,
    write_dense_maps,
)

NEAR = 0.02
"""A point is on a surface within this share of the object's size."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A scene and what is measured in it."""

    scene: Callable[[], Scene]
    size: float
    """Of the object, or of the place, in metres."""
    centre: tuple[float, float, float] | None = None
    """Centre of the object; None: all surfaces count."""


CASES = {
    "object": Case(object_on_table, 0.4, (0, 0, 0.9)),
    "armchair": Case(armchair, 1.0, (0, 0, 0.5)),
    "room": Case(furnished_room, 6.0),
    "street": Case(street, 20.0),
}


def written(folder: Path, scene: Scene, case: Case, errors: NetworkErrors | None = None) -> None:
    """Write a run of the scene."""
    info = run_info()
    points = PointsConfig(voxel=case.size / 80)
    writer = ResultWriter(folder, dataclasses.replace(info, preset=dataclasses.replace(info.preset, points=points)))
    for result in network_results(scene, errors or NetworkErrors()):
        writer.add(result)
    writer.finish(RunSummary(interrupted=False))


def cloud_of(folder: Path, scene: Scene) -> NDArray[np.float64]:
    """Points of the result in the scene's coordinates."""
    T = scene.cameras[0]
    xyz = positions(stored_points(folder / POINTS_NAME)).astype(np.float64)
    return np.asarray(xyz @ T[:3, :3].T + T[:3, 3])


def shares(xyz: NDArray[np.float64], scene: Scene, case: Case) -> tuple[float, float]:
    """Share of the visible surface that has a point nearby, and share of points that are near no surface."""
    seen = scene.visible(None if case.centre is None else "object")
    seen = np.random.default_rng(0).choice(seen, 8_000)
    covered = cKDTree(xyz).query(seen)[0] < NEAR * case.size
    if case.centre is not None:
        xyz = xyz[np.linalg.norm(xyz - case.centre, axis=1) < case.size]
    xyz = np.random.default_rng(0).choice(xyz, 50_000)
    return float(covered.mean()), float((scene.distance(xyz) > NEAR * case.size).mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_cloud_of_network_depth(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    scene = case.scene()
    written(tmp_path / "out", scene, case)
    covered, floating = shares(cloud_of(tmp_path / "out", scene), scene, case)
    assert covered >= 0.95 and floating < 0.01, (covered, floating)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_cloud_of_dense_depth(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    scene = case.scene()
    written(tmp_path / "out", scene, case)
    write_dense_maps(tmp_path / "out", scene)
    rebuild_cloud(read_result(tmp_path / "out"))
    covered, floating = shares(cloud_of(tmp_path / "out", scene), scene, case)
    assert covered >= 0.95 and floating < 0.01, (covered, floating)


def test_the_object_is_kept_with_all_its_pixels(tmp_path: Path) -> None:
    """The object is less certain than the floor in every frame, which says nothing about its depth."""
    case = CASES["armchair"]
    scene = case.scene()
    written(tmp_path / "out", scene, case)
    xyz = cloud_of(tmp_path / "out", scene)
    of_object = np.min([s.distance(xyz) for s in scene.solids if s.part_of], axis=0) < NEAR
    surface = len(np.unique(np.floor(scene.visible("object") / 0.01), axis=0))
    assert np.count_nonzero(of_object) > 0.5 * surface
