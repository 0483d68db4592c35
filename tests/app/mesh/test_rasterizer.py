import numpy as np
import pytest

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.mesh.rasterizer import Projection, barycentric, project_vertices, rasterize, sampled, signed_areas

CAMERA = Intrinsics(100.0, 100.0, 60.0, 40.0)
SIZE = (120, 80)


def triangles(*corners: tuple[tuple[float, float, float], ...]) -> tuple[np.ndarray, np.ndarray]:
    xyz = np.array(corners, np.float32).reshape(-1, 3)
    return xyz, np.arange(len(xyz), dtype=np.int32).reshape(-1, 3)


def test_random_triangles_agree_with_rays() -> None:
    random = np.random.default_rng(0)
    centre = random.uniform((-1.5, -1, 2), (1.5, 1, 6), (300, 1, 3))
    xyz = (centre + random.normal(0, 0.25, (300, 3, 3))).reshape(-1, 3).astype(np.float32)
    faces = np.arange(900, dtype=np.int32).reshape(-1, 3)
    projection = project_vertices(xyz, np.eye(4), CAMERA)
    owner, inverse = rasterize(projection, faces, SIZE)
    # Moeller and Trumbore at every pixel.
    u, v = np.meshgrid((np.arange(120) + 0.5 - 60) / 100, (np.arange(80) + 0.5 - 40) / 100)
    rays = np.stack([u, v, np.ones_like(u)], axis=-1).reshape(-1, 1, 3)
    a, b, c = (xyz[faces[:, k]].astype(np.float64) for k in range(3))
    p = np.cross(rays, c - a)
    det = (p * (b - a)).sum(-1)
    s = (p * -a).sum(-1) / det
    q = np.cross(-a, b - a)
    t, z = (q * rays).sum(-1) / det, (q * (c - a)).sum(-1) / det
    z = np.where((s >= 0) & (t >= 0) & (s + t <= 1) & (z > 0), z, np.inf)
    expected = np.where(np.isfinite(z.min(axis=1)), z.argmin(axis=1), -1).reshape(80, 120)
    assert (owner == expected).mean() > 0.999
    same = (owner == expected) & (owner >= 0)
    assert 1 / inverse[same] == pytest.approx(z.min(axis=1).reshape(80, 120)[same], rel=1e-4)
    assert (inverse[owner < 0] == 0).all()


def test_shares_give_the_point_in_space() -> None:
    xyz, faces = triangles(((-1, -0.5, 2), (1.5, -0.5, 6), (0, 1, 3)))
    projection = project_vertices(xyz, np.eye(4), CAMERA)
    owner, inverse = rasterize(projection, faces, SIZE)
    rows, columns, shares = barycentric(projection, faces, owner)
    points = np.einsum("kc,kcj->kj", shares, xyz[faces[owner[rows, columns]]])
    assert len(rows) > 1000 and points[:, 2] == pytest.approx(1 / inverse[rows, columns], rel=1e-3)
    assert points[:, 0] / points[:, 2] * 100 + 60 == pytest.approx(columns + 0.5, abs=0.01)


def test_the_front_of_a_triangle_has_a_positive_area() -> None:
    # Counter-clockwise seen from the camera, with y down.
    xyz, faces = triangles(((0, 0, 2), (0, 1, 2), (1, 0, 2)))
    projection = project_vertices(xyz, np.eye(4), CAMERA)
    assert signed_areas(projection, faces)[0] == pytest.approx(0.5 * 50 * 50)
    assert signed_areas(projection, faces[:, ::-1])[0] == pytest.approx(-0.5 * 50 * 50)
    assert signed_areas(Projection(projection.xy, -projection.z), faces)[0] == 0


def test_neighbours_leave_no_gap_and_behind_the_camera_is_nothing() -> None:
    x, y = np.meshgrid(np.linspace(-2, 2, 30), np.linspace(-2, 2, 30))
    xyz = np.stack([x, y, np.full_like(x, 2.0)], axis=-1).reshape(-1, 3).astype(np.float32)
    number = np.arange(900).reshape(30, 30)
    a, b, c, d = number[:-1, :-1], number[:-1, 1:], number[1:, :-1], number[1:, 1:]
    faces = np.concatenate([np.stack([a, c, b], -1).reshape(-1, 3), np.stack([b, c, d], -1).reshape(-1, 3)])
    faces = faces.astype(np.int32)
    assert (rasterize(project_vertices(xyz, np.eye(4), CAMERA), faces, SIZE)[0] >= 0).all()
    turned = np.diag([-1.0, 1.0, -1.0, 1.0])
    assert (rasterize(project_vertices(xyz, turned, CAMERA), faces, SIZE)[0] < 0).all()
    none = np.zeros(len(faces), bool)
    assert (rasterize(project_vertices(xyz, np.eye(4), CAMERA), faces, SIZE, none)[0] < 0).all()


def test_colours_at_pixels() -> None:
    image = np.arange(12 * 16 * 3, dtype=np.uint8).reshape(12, 16, 3)
    pixels = np.array([[0.5, 0.5], [15.5, 11.5], [3.5, 4.5], [-5, 99]], np.float32)
    expected = image[[0, 11, 4, 11], [0, 15, 3, 0]]
    assert (sampled(image, pixels) == expected).all()
