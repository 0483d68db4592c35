import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.box import Box, cut_primitive, cut_triangles
from stream_recon.app.core.gltf import POINTS, Primitive
from stream_recon.app.core.transforms import rotation_matrix
from stream_recon.configs.errors import ConfigError

TILTED = rotation_matrix(np.array([0.5, -0.5, 0.1, 0.7]) / np.linalg.norm([0.5, -0.5, 0.1, 0.7]))
BOX = Box((-0.5, -0.2, -1.0), (0.25, 0.9, 0.1), 30.0)


def sphere(n: int = 24) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """A closed sphere of radius 1 about the origin, counter-clockwise from outside."""
    theta, phi = np.meshgrid(np.linspace(0, np.pi, n), np.linspace(0, 2 * np.pi, 2 * n), indexing="ij")
    xyz = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1)
    index = np.arange(theta.size).reshape(theta.shape)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    faces = np.concatenate([np.stack([a, b, c], -1).reshape(-1, 3), np.stack([a, c, d], -1).reshape(-1, 3)])
    return xyz.reshape(-1, 3), faces


def areas(xyz: NDArray[np.floating], faces: NDArray[np.integer]) -> NDArray[np.float64]:
    a, b, c = np.moveaxis(xyz[faces], 1, 0)
    return np.asarray(np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2)


def test_a_box_is_read_as_it_is_written() -> None:
    again = Box.parse(BOX.text)
    assert again.turn_deg == 30 and again.low == pytest.approx(BOX.low) and again.high == pytest.approx(BOX.high)
    assert Box.parse("0,1,0,1,0,1").turn_deg == 0
    tiny = Box((0.001, 0, 0), (0.002, 0.001, 0.001))
    assert Box.parse(tiny.text).low == pytest.approx(tiny.low, abs=1e-7)


@pytest.mark.parametrize("text", ["", "1,2,3", "1,0,0,1,0,1", "0,1,0,1,0,x", "0,1,0,1,0,nan", "0,1,0,1,0,1,2,3"])
def test_texts_of_other_forms_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--box"):
        Box.parse(text)


def test_points_are_inside_where_all_sides_have_them_in_front() -> None:
    xyz = np.random.default_rng(0).uniform(-1.5, 1.5, (5000, 3))
    inside = BOX.contains(xyz, TILTED)
    planes = BOX.planes(TILTED)
    assert 50 < inside.sum() < 2500
    np.testing.assert_array_equal(inside, (xyz @ planes[:, :3].T + planes[:, 3] >= 0).all(axis=1))
    middle = BOX.corners(TILTED).mean(axis=0)
    assert BOX.contains(middle + 0.999 * (BOX.corners(TILTED) - middle), TILTED).all()
    assert not BOX.contains(middle + 1.001 * (BOX.corners(TILTED) - middle), TILTED).any()


def test_cut_triangles_fill_exactly_the_box() -> None:
    xyz, faces = sphere()
    planes = BOX.planes(TILTED)
    cut, rest, _ = cut_triangles(xyz, faces, np.zeros((len(xyz), 0)), planes)
    assert len(rest) and (cut @ planes[:, :3].T + planes[:, 3] > -1e-9).all()
    # Both halves of each plane together are the whole, and what is kept keeps its side.
    for plane in planes:
        halves = [cut_triangles(xyz, faces, np.zeros((len(xyz), 0)), side[None]) for side in (plane, -plane)]
        assert sum(areas(x, f).sum() for x, f, _ in halves) == pytest.approx(areas(xyz, faces).sum())
    a, b, c = np.moveaxis(cut[rest], 1, 0)
    outward = (np.cross(b - a, c - a) * a).sum(axis=1)
    assert (outward[areas(cut, rest) > 1e-9] > 0).all()


def test_nothing_is_left_of_what_is_outside_and_all_of_what_is_inside() -> None:
    xyz, faces = sphere()
    values = np.arange(len(xyz), dtype=float)[:, None]
    far = Box((2, 2, 2), (3, 3, 3)).planes(np.eye(3))
    assert [len(part) for part in cut_triangles(xyz, faces, values, far)] == [0, 0, 0]
    whole = cut_triangles(xyz, faces, values, Box((-2, -2, -2), (2, 2, 2)).planes(np.eye(3)))
    np.testing.assert_array_equal(whole[2][whole[1], 0], faces)


def test_texture_coordinates_and_colours_stay_at_their_places() -> None:
    xyz, faces = sphere()
    uv, rgb = np.float32(0.5 + 0.5 * xyz[:, :2]), np.uint8(np.rint(100 + 100 * xyz))
    planes = Box((-0.3, -2, -2), (0.4, 0.5, 2)).planes(np.eye(3))
    cut = cut_primitive(Primitive(np.float32(xyz), np.int32(faces), rgb, uv, b"jpeg"), planes)
    assert cut.uv is not None and cut.rgb is not None and cut.texture == b"jpeg"
    np.testing.assert_allclose(cut.uv, 0.5 + 0.5 * cut.xyz[:, :2], atol=1e-6)
    np.testing.assert_allclose(cut.rgb, 100 + 100 * cut.xyz, atol=1.01)
    points = cut_primitive(Primitive(np.float32(xyz), rgb=rgb, mode=POINTS), planes)
    assert 0 < len(points.xyz) < len(xyz) and points.rgb is not None and len(points.rgb) == len(points.xyz)
