"""One scale of a map whose parts share no points."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import align
from stream_recon.app.slam.ba import robust_ba
from stream_recon.app.slam.ba.problem import BAScene, Observations
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.frame_data import DepthGrid
from stream_recon.app.slam.offline import scale_consistency
from stream_recon.app.slam.offline.config import REFINE
from stream_recon.app.slam.offline.second_pass import scale_jumps
from tests.app.slam.room import FOCAL, SIZE, Video, walk

COUNT, BREAK = 10, 5
LENS = CameraModel(FOCAL, SIZE[0] / 2, SIZE[1] / 2)
ONE = np.zeros(COUNT, np.intp)


def parted(factor: float) -> tuple[BAState, list[DepthGrid], NDArray[np.float64]]:
    """A map of a room whose last keyframes share no points with the first ones, and have another scale."""
    truth = walk(COUNT)
    grids = [view.grid for view in Video(truth, truth, focal=FOCAL, scale_noise=0.0).views()]
    T, points, seen = truth.copy(), [], []
    for number, part in enumerate((range(BREAK), range(BREAK, COUNT))):
        growth, centre, middle = factor**number, truth[part[0], :3, 3], part[len(part) // 2]
        uv, z = grids[middle].pixels()
        world = (LENS.unproject(uv) * z[:, None]) @ truth[middle, :3, :3].T + truth[middle, :3, 3]
        for k in part:
            local = (world - truth[k, :3, 3]) @ truth[k, :3, :3]
            pixel = LENS.project(local)
            inside = np.flatnonzero((local[:, 2] > 0) & (pixel > 0).all(axis=1) & (pixel < SIZE).all(axis=1))
            point = inside + sum(map(len, points))
            seen.append((np.full(len(inside), k), point, pixel[inside], local[inside, 2]))
            T[k, :3, 3] = centre + growth * (truth[k, :3, 3] - centre)
        points.append(centre + growth * (world - centre))
    camera, point, pixel, depth = (np.concatenate(column) for column in zip(*seen, strict=True))
    observations = Observations(camera, point, pixel, depth=depth)
    scene = BAScene(T, np.concatenate(points), LENS, np.zeros(COUNT))
    return robust_ba.with_errors(scene, observations, np.arange(len(observations))), grids, truth


@pytest.mark.parametrize("factor", [1.3, 0.75])
def test_a_part_of_another_scale_is_noticed_and_gets_that_of_the_rest(factor: float) -> None:
    start, grids, truth = parted(factor)
    assert np.median(start.errors) < 1e-6
    found = scale_consistency.jumps(start, grids, ONE)
    assert [k for k, _ in found] == [BREAK] and found[0][1] == pytest.approx(factor, rel=0.03)
    tie = scale_consistency.tie(start, grids, ONE)
    assert tie is not None and tie.correction == pytest.approx(max(factor, 1 / factor), rel=0.03)

    def error(T: NDArray[np.float64]) -> float:
        ours, true = T[:, :3, 3], truth[:, :3, 3]
        return float(np.linalg.norm(align(ours, true).apply(ours) - true, axis=1).max())

    assert error(tie.state.scene.T_world_camera) < 0.3 * error(start.scene.T_world_camera)
    restored = tie.restored(tie.state)
    assert start.observations.depth is not None and restored.observations.depth is not None
    assert np.allclose(restored.observations.depth, start.observations.depth)
    assert not scale_consistency.jumps(restored, grids, ONE)


def test_a_map_of_one_scale_stays() -> None:
    start, grids, _ = parted(1.0)
    assert scale_consistency.tie(start, grids, ONE) is None and not scale_consistency.jumps(start, grids, ONE)


@pytest.mark.parametrize(("views", "count"), [(None, 1), ([0] * COUNT, 1), ([0] * BREAK + [1] * (COUNT - BREAK), 0)])
def test_another_view_of_a_rig_is_no_change_of_scale(views: list[int] | None, count: int) -> None:
    start, grids, _ = parted(1.3)
    rig = None if views is None else SimpleNamespace(part=np.array(views))
    data: Any = SimpleNamespace(keyframe_grids=grids, keyframe_segment=ONE, keyframe_rig=rig)
    assert len(scale_jumps(data, start, REFINE)) == count


def test_segments_without_a_known_relative_pose_are_not_tied() -> None:
    start, grids, _ = parted(1.3)
    segment = (np.arange(COUNT) >= BREAK).astype(np.intp)
    assert not scale_consistency.jumps(start, grids, segment)


def test_depth_maps_give_the_scale_of_a_keyframe_with_hardly_any_points() -> None:
    start, grids, _ = parted(1.0)
    grids[3] = grids[3].scaled(0.5)
    few = np.flatnonzero(start.observations.camera == 3)[:4]
    keep = (start.observations.camera != 3) | np.isin(np.arange(len(start.observations)), few)
    seen = start.observations.take(keep)
    without = robust_ba.with_errors(start.scene, seen, start.feature[keep])
    scales = scale_consistency.depth_scales(without, grids, ONE, scale_consistency.ScaleConfig(min_points=5))
    assert scales[3] == pytest.approx(2.0, rel=0.05) and scales[[2, 4]] == pytest.approx(1.0, rel=0.05)
