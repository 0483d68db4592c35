"""The same revisions through files, page and metrics: every point and every camera ends at the same place."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.depth_correction import GRID, correct_depth, validated_field
from stream_recon.app.core.ground_truth import DepthMap, GroundTruth
from stream_recon.app.core.ply import positions
from stream_recon.app.core.transforms import Similarity, invert_pose, rotation_matrix, transform_points
from stream_recon.app.core.types import FrameResult, FrameRevision, ImageTransform, Intrinsics, Revision
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.files import stored_points
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunInfo, RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.viewer.chunks import ChunkStore
from stream_recon.app.viewer.points import ranked_points
from stream_recon.app.viewer.timeline import Timeline
from stream_recon.configs.schema import PointsConfig
from tests.app.fake_engine import fake_preset, run_info, trajectory_of

CHUNK = 8
SIDE = 14
POINTS = PointsConfig(confidence=0.0, voxel=0.01)
FIRST = Intrinsics(24.0, 24.0, 14.0, 14.0)
SURER = Intrinsics(27.0, 26.0, 14.5, 13.0)


def view(index: int, count: int) -> FrameResult:
    """A wavy wall, seen on a way around a circle of which a frame is a hundredth, at most."""
    turn = 2 * np.pi * index / max(count, 100)
    T = np.eye(4)
    T[:3, :3] = [[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]]
    T[:3, 3] = [-20 * np.cos(turn), 0.3 * np.sin(5 * turn), 20 * np.sin(turn)]
    rows, columns = np.indices((SIDE, SIDE))
    # As files keep it.
    depth = (2 + 0.02 * columns + 0.1 * np.sin(rows)).astype(np.float16).astype(np.float32)
    return FrameResult(
        index=3 * index,
        timestamp=index / 10,
        T_world_camera=T,
        intrinsics=FIRST,
        depth=depth,
        confidence=1 + rows.astype(np.float32),
        rgb=np.full((SIDE, SIDE, 3), 90, np.uint8),
        transform=ImageTransform((2 * SIDE, 2 * SIDE), (0.0, 0.0, 2.0 * SIDE, 2.0 * SIDE), (SIDE, SIDE)),
        is_keyframe=index % 4 == 0,
        # The walls of different frames are not one surface, and would contradict each other.
        segment=index,
    )


def turned(result: FrameResult, change: Similarity, intrinsics: Intrinsics | None = None) -> FrameRevision:
    return FrameRevision(result.index, change.move_pose(result.T_world_camera), change.scale, intrinsics)


def similarity(size: float) -> Similarity:
    """The larger ``size`` is, the further from the identity."""
    rotation = rotation_matrix(np.array([0.02 * size, 0.1 * size, -0.05 * size, 1.0]))
    return Similarity(1 + 0.1 * size, rotation, size * np.array([0.5, -0.2, 0.9]))


def bulging(frame: FrameRevision, size: float) -> FrameRevision:
    """Besides, its depth is corrected by a smooth field, another one for each frame."""
    rows, columns = np.indices((GRID, GRID)) / (GRID - 1)
    field = size * (np.sin(3 * columns + frame.index) + rows * columns)
    return replace(frame, depth_field=validated_field(field))


def expected(results: Sequence[FrameResult], revisions: Sequence[Revision]) -> list[FrameResult]:
    """The rule in few lines: what a frame's last revision says holds, and frames without one stay."""
    last, cameras = {}, {}
    for frame in (frame for revision in revisions for frame in revision.frames):
        last[frame.index] = frame
        cameras[frame.index] = frame.intrinsics or cameras.get(frame.index, FIRST)
    return [
        replace(
            result,
            T_world_camera=last[result.index].T_world_camera,
            depth=correct_depth(result.depth, last[result.index].depth_scale, last[result.index].depth_field),
            intrinsics=cameras[result.index],
        )
        if result.index in last
        else result
        for result in results
    ]


def off_surface(points: NDArray[np.float32], result: FrameResult) -> float:
    """How far the furthest of a frame's points [N, 3] is from that of the pixel that it is seen in."""
    local = transform_points(invert_pose(result.T_world_camera), points)
    k = result.network_intrinsics
    columns = np.floor(local[:, 0] / local[:, 2] * k.fx + k.cx).astype(int).clip(0, SIDE - 1)
    rows = np.floor(local[:, 1] / local[:, 2] * k.fy + k.cy).astype(int).clip(0, SIDE - 1)
    return float(np.linalg.norm(local - result.camera_points[rows, columns], axis=1).max(initial=0.0))


def pixels_around(result: FrameResult) -> float:
    """Metres in which no other pixel's point is: an error below cannot hide."""
    return float(0.25 * result.depth.min() / result.network_intrinsics.fx)


class Files:
    def __init__(self, folder: Path) -> None:
        info = replace(run_info(), preset=replace(fake_preset(), points=POINTS))
        assert isinstance(info, RunInfo)
        self.folder = folder
        self.writer = ResultWriter(folder, info)

    def check(self, known: list[FrameResult]) -> None:
        self.writer.checkpoint(RunSummary())
        self.writer._cloud.rebuild()
        for result, ours in zip(known, read_result(self.folder), strict=True):
            np.testing.assert_allclose(ours.T_world_camera, result.T_world_camera, atol=1e-12)
            np.testing.assert_allclose(ours.depth, result.depth, rtol=1e-6)
            assert ours.intrinsics == result.intrinsics
        expected = [transform_points(r.T_world_camera, r.camera_points.reshape(-1, 3)) for r in known]
        points = positions(np.array(stored_points(self.folder / POINTS_NAME)))
        assert cKDTree(np.concatenate(expected)).query(points)[0].max() < 1e-4
        assert len(points) > 0.5 * len(known) * SIDE**2
        path = trajectory_of(self.folder)
        np.testing.assert_allclose(path[:, 1:4], [r.T_world_camera[:3, 3] for r in known], atol=1e-6)
        rotations = np.array([r.T_world_camera[:3, :3] for r in known])
        np.testing.assert_allclose(rotation_matrix(path[:, 4:]), rotations, atol=1e-6)


class PageData:
    """Store and timeline as the viewer's thread uses them."""

    def __init__(self) -> None:
        self.store = ChunkStore(2_000_000, POINTS.voxel, CHUNK, max_chunks=1000)
        self.timeline = Timeline()

    def add(self, result: FrameResult) -> None:
        ordinal = self.timeline.add_frame(result.index, result.T_world_camera, result.intrinsics)
        self.store.add_frame(ordinal, result.T_world_camera)
        self.store.add_points(ordinal, *ranked_points(result, POINTS))

    def revise(self, revision: Revision) -> None:
        named = self.timeline.revise(revision)
        self.store.revise(named, self.timeline.point_transforms(named), self.timeline.depth_fields[named])

    def check(self, known: list[FrameResult]) -> None:
        self.store.merge_pending()
        while self.store.update_points(100_000):
            pass
        np.testing.assert_allclose(self.timeline.poses, [r.T_world_camera for r in known], atol=1e-12)
        assert [self.timeline.intrinsics(i) for i in range(len(known))] == [r.intrinsics for r in known]
        points = self.store.world_points()
        order = np.argsort(points.frame, kind="stable")
        ends = np.searchsorted(points.frame[order], np.arange(len(known) + 1))
        for ordinal, result in enumerate(known):
            mine = points.xyz[order[ends[ordinal] : ends[ordinal + 1]]]
            # Half a voxel of a chunk that may have grown with its frames.
            assert off_surface(mine, result) <= 1.3 * POINTS.voxel / 2 + 1e-4
        assert len(points.xyz) > 0.5 * len(known) * SIDE**2


class Metrics:
    """The truth is where all should end: then nothing may be off."""

    def __init__(self, results: list[FrameResult], known: list[FrameResult]) -> None:
        self._depths = {result.index: result.depth for result in known}
        truth = GroundTruth(
            source_size=(2 * SIDE, 2 * SIDE),
            poses={result.index: result.T_world_camera for result in known},
            intrinsics=known[-1].intrinsics,
            metric=True,
            has_depth=True,
            read_depth=lambda index: DepthMap(self._depths[index]),
        )
        self.evaluator = Evaluator(truth)

    def check(self, known: list[FrameResult]) -> None:
        np.testing.assert_allclose(self.evaluator.poses(), [r.T_world_camera for r in known], atol=1e-12)
        figures = self.evaluator.scene_metrics()
        assert figures is not None and figures.ate_m is not None and figures.absrel is not None
        assert figures.ate_m < 1e-6 and figures.absrel < 1e-6
        assert self.evaluator.truth is not None and self.evaluator.truth.intrinsics is not None
        taken = self.evaluator.pixels.points(
            self.evaluator._latest, self.evaluator.truth.poses, self.evaluator.truth.intrinsics
        )
        assert taken is not None
        of_frames = taken[0].reshape(len(known), -1, 3)
        for points, result in zip(of_frames, known, strict=True):
            assert off_surface(points, result) < 1e-4


def cases(results: list[FrameResult]) -> dict[str, list[Revision]]:
    half = len(results) // 2
    return {
        "an anchor alone": [Revision((turned(results[CHUNK], similarity(0.5)),))],
        "a keyframe alone": [Revision((turned(results[CHUNK + 4], similarity(0.5)),))],
        "intrinsics alone": [Revision((replace(turned(results[5], Similarity.identity()), intrinsics=SURER),))],
        "half of the frames": [Revision(tuple(turned(r, similarity(1.0), SURER) for r in results[half:]))],
        "the other half": [Revision(tuple(turned(r, similarity(1.0), SURER) for r in results[:half]))],
        "a field alone": [Revision((bulging(turned(results[CHUNK + 4], Similarity.identity()), 0.1),))],
        "a field that goes again": [
            Revision(tuple(bulging(turned(r, similarity(0.5), SURER), 0.1) for r in results[half:])),
            Revision(tuple(turned(r, similarity(0.5), SURER) for r in results[half + 3 :])),
        ],
        "other fields": [
            Revision(tuple(bulging(turned(r, similarity(0.5)), 0.05) for r in results[half:])),
            Revision(tuple(bulging(turned(r, similarity(1.0), SURER), -0.1) for r in results[3:])),
        ],
        "one after another": [
            Revision(tuple(turned(r, similarity(1.0), SURER) for r in results[half:])),
            Revision(tuple(turned(r, similarity(0.3)) for r in results[3 : half + 5])),
            Revision((turned(results[-1], Similarity.identity()),)),
        ],
    }


def check_all(folder: Path, results: list[FrameResult], revisions: list[Revision]) -> None:
    known = expected(results, revisions)
    files, page, metrics = Files(folder), PageData(), Metrics(results, known)
    listeners = (files.writer, page, metrics.evaluator)
    for listener in listeners:
        for result in results:
            listener.add(result)
        for revision in revisions:
            listener.revise(revision)
    assert POINTS.voxel < pixels_around(results[0])
    for place in (files, page, metrics):
        place.check(known)
    files.writer.close()


@pytest.mark.parametrize("case", list(cases([view(index, 40) for index in range(40)])))
def test_points_and_cameras_end_at_the_same_place(tmp_path: Path, case: str) -> None:
    results = [view(index, 40) for index in range(40)]
    check_all(tmp_path, results, cases(results)[case])


@pytest.mark.slow
def test_a_loop_over_800_frames(tmp_path: Path) -> None:
    """Drift of a turn, a shift and a scale that grows along the way is taken back: no two frames move alike."""
    count = 800
    results = [view(index, count) for index in range(count)]
    loop = Revision(tuple(turned(r, similarity(i / count)) for i, r in enumerate(results[1:], start=1)))
    check_all(tmp_path, results, [loop])
