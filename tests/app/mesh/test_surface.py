"""The mesh of a box room whose walls are known."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.formats import export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.mesh.build import surface
from stream_recon.app.mesh.config import DEFAULT_MESH
from stream_recon.app.mesh.fusion import mesh_cameras
from stream_recon.app.mesh.surface import Mesh, decimated, extract, without_floaters
from stream_recon.app.mesh.tsdf import MIN_INCIDENCE, FusionView, Volume, incidences
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import ConfigError
from tests.app.export.rooms import off_the_walls, room_frames, write_room

trimesh = pytest.importorskip("trimesh")


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mesh") / "out"
    write_room(folder, 6, source=False)
    return folder


def ball(voxel: float = 0.05, radius: float = 1.0) -> Volume:
    """A ball in front of a camera, fused from one exact depth map."""
    size, f = 128, 120.0
    x, y = np.meshgrid((np.arange(size) + 0.5 - size / 2) / f, (np.arange(size) + 0.5 - size / 2) / f)
    squared = x * x + y * y + 1
    inside = 9 - squared * (9 - radius**2)
    with np.errstate(invalid="ignore"):
        depth = np.where(inside > 0, (3 - np.sqrt(inside)) / squared, 0).astype(np.float32)
    volume = Volume(voxel, 4 * voxel, 10_000)
    rgb = np.full((size, size, 3), (200, 100, 50), np.uint8)
    volume.integrate(FusionView(depth, rgb, Intrinsics(f, f, size / 2, size / 2), np.eye(4)))
    return volume


@pytest.mark.parametrize("suffix", [".ply", ".obj", ".glb"])
def test_the_walls_are_where_they_are(room: Path, tmp_path: Path, suffix: str) -> None:
    target, report = export(room, "mesh", tmp_path / f"room{suffix}", ExportOptions(frames="all", up="keep"))
    mesh = trimesh.load(target, force="mesh", process=False)
    flip = np.array([1.0, -1, -1] if suffix == ".glb" else [1.0, 1, 1])
    assert len(mesh.faces) > 500 and f"{len(mesh.faces)} triangles" in report.summary
    off = off_the_walls(mesh.triangles_center * flip)
    assert np.quantile(off, 0.95) < 0.02
    # Seen from where the cameras are, in the middle of the room, all triangles turn the same way.
    towards = ((room_frames(1)[0].T_world_camera[:3, 3] * flip - mesh.triangles_center) * mesh.face_normals).sum(axis=1)
    assert (towards > 0).mean() > 0.99
    readme = (tmp_path / f"room{suffix}.README.txt").read_text()
    assert "counter-clockwise" in readme and ("glTF" in readme) == (suffix == ".glb")
    if suffix != ".glb":  # trimesh leaves colours aside where there is a material
        colours = np.asarray(mesh.visual.vertex_colors)
        assert len(colours) == len(mesh.vertices) and np.ptp(colours[:, :3], axis=0).min() > 30


def test_a_ball_is_round_and_seamless() -> None:
    mesh = extract(ball(), 1)
    radius = np.linalg.norm(mesh.xyz - (0, 0, 3), axis=1)
    assert np.abs(np.median(radius) - 1) < 0.01 and np.quantile(np.abs(radius - 1), 0.95) < 0.05
    assert (mesh.rgb == (200, 100, 50)).all(axis=1).mean() > 0.99
    # Chunks meet without a seam: an edge is shared by two triangles, but for the rim of what was seen.
    edges = np.sort(mesh.faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    edges, count = np.unique(edges, axis=0, return_counts=True)
    assert count.max() == 2 and (count == 1).any()
    assert mesh.xyz[edges[count == 1], 2].min() > 2.3
    assert not len(extract(ball(), 2).faces)


def test_thinning_keeps_shape_and_colour() -> None:
    mesh = extract(ball(), 1)
    thin = decimated(mesh, 300)
    assert 100 < len(thin.faces) <= 320
    assert np.quantile(np.abs(np.linalg.norm(thin.xyz - (0, 0, 3), axis=1) - 1), 0.9) < 0.05
    assert (thin.rgb == (200, 100, 50)).all(axis=1).mean() > 0.95
    assert decimated(mesh, 10**6) is mesh


def test_small_parts_are_left_out() -> None:
    mesh = without_floaters(extract(ball(), 1), 0.002)
    far = Mesh(
        np.concatenate([mesh.xyz, mesh.xyz[:3] + 50]),
        np.concatenate([mesh.rgb, mesh.rgb[:3]]),
        np.concatenate([mesh.faces, np.array([[0, 1, 2]], np.int32) + len(mesh.xyz)]),
    )
    assert len(without_floaters(far, 0.002).faces) == len(mesh.faces)


def test_a_volume_has_no_more_blocks_than_it_may() -> None:
    volume = Volume(0.01, 0.04, 50)
    depth = np.full((40, 40), 2.0, np.float32)
    volume.integrate(FusionView(depth, np.zeros((40, 40, 3), np.uint8), Intrinsics(40, 40, 20, 20), np.eye(4)))
    assert volume.full and len(volume.cells) == 50
    assert not ball().full


def test_large_scenes_get_larger_voxels(room: Path) -> None:
    result = read_result(room)
    cameras = mesh_cameras(result, 600, "all")
    small = replace(DEFAULT_MESH, fusion=replace(DEFAULT_MESH.fusion, max_blocks=150))
    fine, coarse = (surface(result, cameras, config) for config in (DEFAULT_MESH, small))
    assert coarse.fused.voxel > fine.fused.voxel
    assert 100 < len(coarse.mesh.faces) < len(fine.mesh.faces)


def test_wrong_suffixes(room: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"NAME\.ply or NAME\.obj or NAME\.glb"):
        export(room, "mesh", tmp_path / "room.stl")
    assert not list(tmp_path.iterdir())


def plane_view(distance: float, slope: float = 0.0, fade: float = 1.0) -> FusionView:
    """A plane before the camera, whose depth grows with ``slope`` to the right."""
    side, f = 32, 30.0
    ray = np.broadcast_to((np.arange(side) + 0.5 - side / 2) / f, (side, side))
    depth = (distance / (1 - slope * ray)).astype(np.float32)
    k = Intrinsics(f, f, side / 2, side / 2)
    some = np.full((side, side), 0.6, np.float32)
    rgb = np.zeros((side, side, 3), np.uint8)
    return FusionView(depth, rgb, k, np.eye(4), band=some, fade=np.full_like(some, fade))


@pytest.mark.parametrize(("fade", "is_kept"), [(1.0, False), (0.0, True)])
def test_votes_that_do_not_fade_keep_a_surface_that_frames_place_differently(fade: float, is_kept: bool) -> None:
    volume = Volume(0.02, 0.1, 10_000)
    for distance in (2.0, 2.05, 2.1):  # 2.5 voxels apart
        volume.integrate(plane_view(distance, fade=fade))
    z = extract(volume, 3).xyz[:, 2]
    assert bool(len(z)) is is_kept and (np.abs(z - 2.05) < 0.02).all()


def test_depth_between_pixels_is_that_of_the_surface() -> None:
    volume = Volume(0.02, 0.1, 10_000)
    volume.integrate(plane_view(2.0, slope=0.5))
    xyz = extract(volume, 1).xyz
    # Pixels are 7 cm wide, in which the plane goes back by half as much.
    inner = np.abs(xyz[:, 0] / xyz[:, 2]) < 0.4
    assert inner.sum() > 100
    assert np.quantile(np.abs(xyz[inner, 2] - xyz[inner, 0] / 2 - 2.0), 0.9) < 0.01


def test_depth_beside_an_edge_is_that_of_one_surface_or_the_other() -> None:
    view = plane_view(2.0)
    depth = view.depth.copy()
    depth[:, 16:] = 3.0
    volume = Volume(0.02, 0.1, 10_000)
    volume.integrate(replace(view, depth=depth))
    z = extract(volume, 1).xyz[:, 2]
    assert len(z) and (np.minimum(np.abs(z - 2), np.abs(z - 3)) < 0.02).all()


def floor_view(height: float, pitch: float) -> FusionView:
    """A floor below a camera that looks down by ``pitch`` radians, as far as eight heights away."""
    w, h, f = 96, 72, 90.0
    k = Intrinsics(f, f, w / 2, h / 2)
    y = np.broadcast_to((np.arange(h)[:, None] + 0.5 - k.cy) / f, (h, w))
    down = y * np.cos(pitch) + np.sin(pitch)
    depth = np.where(down > 1 / 8, height / np.maximum(down, 1e-3), 0).astype(np.float32)
    T = np.eye(4)
    T[1:3, 1:3] = [[np.cos(pitch), np.sin(pitch)], [-np.sin(pitch), np.cos(pitch)]]
    view = FusionView(depth, np.zeros((h, w, 3), np.uint8), k, T)
    return replace(view, incidence=incidences(depth, k))


def test_incidence_is_the_distance_along_the_normal() -> None:
    view = floor_view(1.0, 0.5)
    assert view.incidence is not None
    known = view.depth > 0
    inner = np.zeros_like(known)
    inner[12:-12, 12:-12] = True
    # A point one unit of depth farther along the ray is that much deeper below the floor.
    expected = (1 / np.where(known, view.depth, 1)).clip(MIN_INCIDENCE, 1)
    np.testing.assert_allclose(view.incidence[inner & known], expected[inner & known], atol=0.02)
    sparse = np.where(np.random.default_rng(0).uniform(size=known.shape) < 0.2, view.depth, 0)
    assert (incidences(sparse, view.camera) == 1).all(), "too little is known"
    assert (incidences(np.full((3, 2), 2.0), view.camera) == 1).all(), "smaller than the window"


@pytest.mark.parametrize("height", [1.0, 1.007, 1.013])
def test_a_floor_seen_from_aside_has_no_gaps(height: float) -> None:
    """Whatever its place between the voxels: its next voxel in depth is several truncations away along the rays."""
    volume = Volume(0.02, 0.06, 50_000)
    view = floor_view(height, 0.25)
    assert view.incidence is not None
    for _ in range(2):
        volume.integrate(view)
    xyz = extract(volume, 1).xyz
    near = xyz[xyz[:, 2] < 3.9]  # farther away a pixel is longer than a surface's pixels may differ
    assert np.quantile(np.abs(near[:, 1] - height), 0.99) < 0.01  # half a voxel
    # In squares of 10 cm of what is seen at up to three heights away.
    square = np.unique(np.floor(xyz[:, [0, 2]] / 0.1).astype(int), axis=0)
    a, b = np.meshgrid(np.arange(-5, 5), np.arange(21, 30))
    wanted = {(int(i), int(j)) for i, j in zip(a.ravel(), b.ravel(), strict=True)}
    assert wanted <= {(int(i), int(j)) for i, j in square}
    plain = Volume(0.02, 0.06, 50_000)
    plain.integrate(replace(view, incidence=None))
    assert len(extract(plain, 1).faces) < 0.9 * len(extract(volume, 1).faces)
