"""Textured surfaces of keyframes: geometry, coverage, limits, revisions."""

import json
import struct
from dataclasses import replace

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.types import Certainty, FrameResult, FrameRevision, Intrinsics, Revision
from stream_recon.app.viewer.surface_grid import surface_grid, triangulate
from stream_recon.app.viewer.surfaces import SurfaceLimits, SurfaceStore
from stream_recon.app.viewer.timeline import Timeline
from tests.app.boxroom import room_result, walk_pose
from tests.app.viewer.clouds import wall_distance

SIZE = (56, 42)


def filled(count: int, step: int = 1, limits: SurfaceLimits | None = None) -> SurfaceStore:
    store = SurfaceStore(Timeline(), limits=limits or SurfaceLimits())
    for index in range(0, count * step, step):
        add(store, room_result(index, size=SIZE))
    return store


def add(store: SurfaceStore, result: FrameResult) -> None:
    ordinal = store.timeline.add_frame(result.index, result.T_world_camera, result.intrinsics)
    store.add(ordinal, result, result.rgb, causal=True)


def in_world(store: SurfaceStore, ordinal: int) -> NDArray[np.float64]:
    surface, T = store.surfaces[ordinal], store.timeline.poses[ordinal]
    return np.asarray((surface.triangles.xyz * surface.scale(store.timeline)) @ T[:3, :3].T + T[:3, 3])


def test_triangles_lie_on_the_walls_and_face_the_camera() -> None:
    result = room_result(7, size=SIZE)
    grid = surface_grid(result)
    triangles = triangulate(grid, np.zeros(grid.depth.shape, bool))
    T = result.T_world_camera
    assert len(triangles.faces) > 0.5 * 2 * SIZE[0] * SIZE[1]
    # Corners between walls are smoothed by a pixel or two.
    distance = wall_distance(triangles.xyz.astype(np.float64) @ T[:3, :3].T + T[:3, 3])
    assert np.median(distance) < 1e-4 and np.quantile(distance, 0.9) < 0.01 and distance.max() < 0.2
    a, b, c = (triangles.xyz[triangles.faces[:, k]] for k in range(3))
    assert (np.einsum("ni,ni->n", np.cross(b - a, c - a), a) < 0).all()


def test_texture_coordinates_are_where_the_camera_sees_the_vertex() -> None:
    result = room_result(3, size=SIZE)
    triangles = triangulate(surface_grid(result), np.zeros(SIZE[::-1], bool))
    k, (x, y, z) = result.network_intrinsics, triangles.xyz.T.astype(np.float64)
    expected = np.stack([(k.fx * x / z + k.cx) / SIZE[0], (k.fy * y / z + k.cy) / SIZE[1]], axis=1)
    np.testing.assert_allclose(triangles.uv, expected, atol=1e-5)


def test_a_thing_in_front_is_cut_from_what_is_behind_and_unsure_pixels_are_holes() -> None:
    result = room_result(0, size=SIZE)
    depth, confidence = np.full(SIZE[::-1], 2.0, np.float32), np.full(SIZE[::-1], 9.0, np.float32)
    depth[10:30, 20:40] = 1.0
    confidence[34:40, 4:14] = 0.05
    grid = surface_grid(replace(result, depth=depth, confidence=confidence))
    triangles = triangulate(grid, np.zeros(grid.depth.shape, bool))
    z = triangles.xyz[triangles.faces][..., 2]
    assert {round(float(value), 3) for value in np.unique(z)} == {1.0, 2.0}
    assert (np.ptp(z, axis=1) == 0).all(), "no triangle joins both"
    pixels = (triangles.uv * SIZE).astype(int)
    assert not ((pixels[:, 0] > 5) & (pixels[:, 0] < 12) & (pixels[:, 1] > 35) & (pixels[:, 1] < 38)).any()


def test_a_surface_at_a_grazing_angle_is_left_out() -> None:
    result = room_result(0, size=SIZE)
    k = result.network_intrinsics
    rows = np.arange(SIZE[1]) + 0.5
    floor = np.where(rows > k.cy + 1, 0.02 * k.fy / np.maximum(rows - k.cy, 1e-3), 0)  # seen from just above
    depth = np.repeat(floor[:, None], SIZE[0], axis=1).astype(np.float32)
    grid = surface_grid(replace(result, depth=depth, confidence=np.full(depth.shape, 9.0, np.float32)))
    triangles = triangulate(grid, np.zeros(depth.shape, bool))
    flat = np.full(depth.shape, 1.0, np.float32)
    whole = triangulate(surface_grid(replace(result, depth=flat)), np.zeros(depth.shape, bool))
    assert len(triangles.faces) < 0.3 * len(whole.faces)


def test_what_an_earlier_keyframe_shows_is_not_shown_again() -> None:
    store = SurfaceStore(Timeline())
    add(store, room_result(0, walk_pose(0), size=SIZE))
    add(store, room_result(1, walk_pose(0), size=SIZE))
    assert list(store.surfaces) == [0], "the same view"
    for index in range(2, 40):
        add(store, room_result(index, size=SIZE))
    counts = [len(s.triangles.faces) for s in store.surfaces.values()]
    assert 1 < len(counts) < 38 and max(counts[1:]) < 1.01 * counts[0]
    distance = np.concatenate([wall_distance(in_world(store, k)) for k in store.surfaces])
    assert np.quantile(distance, 0.9) < 1e-2


def test_surfaces_that_are_made_anew_leave_no_holes() -> None:
    store = filled(30)
    before = set(_seen_cells(store))
    for ordinal in range(30):
        result = room_result(ordinal, size=SIZE)
        store.add(ordinal, result, result.rgb, causal=False)
    after = set(_seen_cells(store))
    assert len(before - after) < 0.02 * len(before)


def _seen_cells(store: SurfaceStore) -> list[tuple[int, ...]]:
    """Cells of half a unit of the walls that triangles cover."""
    cells = []
    for ordinal, surface in store.surfaces.items():
        corners = in_world(store, ordinal)[surface.triangles.faces].mean(axis=1)
        cells += [tuple(cell) for cell in np.floor(2 * corners).astype(int)]
    return cells


def test_what_earlier_cameras_saw_through_is_left_out() -> None:
    store = filled(4)
    false = room_result(4, size=SIZE)
    wrong = false.depth.copy()
    wrong[10:25, 10:35] *= 0.5  # a ghost in mid-air
    ghost = replace(false, depth=wrong)
    add(store, ghost)
    assert all(np.quantile(wall_distance(in_world(store, k)), 0.98) < 0.2 for k in store.surfaces)


def test_limits_are_kept_by_thinning_the_oldest_first() -> None:
    whole = filled(60, step=5)
    limits = SurfaceLimits(full=2, triangles=whole.triangles // 3)
    store = filled(60, step=5, limits=limits)
    assert 0 < store.triangles <= whole.triangles // 3
    kept = list(store.surfaces.values())
    assert kept[0].thinned and not kept[-1].thinned
    thin = next(s for s in kept if s.thinned)
    image = cv2.imdecode(np.frombuffer(thin.jpeg, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    assert len(filled(60, step=5, limits=replace(limits, surfaces=3)).surfaces) <= 3
    assert len(filled(20, step=5, limits=replace(limits, bytes=1)).surfaces) == 1, "one is always there"


def test_a_similarity_and_another_focal_length_need_no_new_triangles() -> None:
    store = filled(3, step=10)
    before = {k: (in_world(store, k), s.version) for k, s in store.surfaces.items()}
    frames = []
    for ordinal in range(3):
        pose, k = store.timeline.poses[ordinal].copy(), store.timeline.intrinsics(ordinal)
        pose[:3, 3] *= 2
        frames.append(FrameRevision(10 * ordinal, pose, 2.0, Intrinsics(k.fx / 2, k.fy / 2, k.cx, k.cy)))
    store.revise(store.timeline.revise(Revision(tuple(frames))))
    assert not store.bent and not store.update(1)
    for ordinal, (points, version) in before.items():
        T, surface = store.timeline.poses[ordinal], store.surfaces[ordinal]
        assert surface.version == version
        local = (in_world(store, ordinal) - T[:3, 3]) @ T[:3, :3]
        old = (points - T[:3, 3] / 2) @ T[:3, :3]
        np.testing.assert_allclose(local, old * [4, 4, 2], atol=1e-5)


def test_a_depth_field_bends_the_triangles_once() -> None:
    store = filled(2, step=10)
    (first, second) = store.surfaces
    before = store.surfaces[first].triangles
    versions = [store.surfaces[k].version for k in (first, second)]
    field = np.zeros((7, 7), np.float16)
    field[:, 3:] = 0.2
    pose = store.timeline.poses[first].copy()
    store.revise(store.timeline.revise(Revision((FrameRevision(0, pose, depth_field=field),))))
    assert store.bent == {first}
    assert not store.update(10**6)
    surface = store.surfaces[first]
    assert surface.version != versions[0] and store.surfaces[second].version == versions[1]
    np.testing.assert_allclose(surface.scale(store.timeline), 1.0)
    farthest = [each.xyz[each.uv[:, 0] > 0.6, 2].max() for each in (before, surface.triangles)]
    assert farthest[1] / farthest[0] == pytest.approx(np.exp(0.2), rel=0.02)
    store.revise(np.array([first]))
    assert not store.bent


def test_a_dense_depth_map_replaces_the_surface_at_the_frames_present_scale() -> None:
    store = filled(1)
    pose = store.timeline.poses[0].copy()
    store.revise(store.timeline.revise(Revision((FrameRevision(0, pose, 3.0),))))
    result = room_result(0, size=SIZE)
    certainty = np.full(SIZE[::-1], Certainty.CONFIRMED, np.uint8)
    version = store.surfaces[0].version
    dense = replace(result, depth=3 * result.depth, certainty=certainty)
    store.add(0, dense, result.rgb, causal=False)
    surface = store.surfaces[0]
    assert surface.is_dense and surface.version != version
    np.testing.assert_allclose(surface.scale(store.timeline), 1.0)
    assert np.median(surface.triangles.xyz[:, 2]) == pytest.approx(3 * np.median(result.depth), rel=0.1)


def test_a_surface_is_a_single_sided_glb_file_without_lighting() -> None:
    surface = filled(1).surfaces[0]
    content = surface.triangles.glb(surface.jpeg)
    (length,) = struct.unpack_from("<I", content, 12)
    document = json.loads(content[20 : 20 + length])
    (material,) = document["materials"]
    assert "KHR_materials_unlit" in material["extensions"] and not material.get("doubleSided", False)
    assert abs(len(content) - surface.size) < 3000
