import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.mesh.config import HoleConfig, VisibilityConfig
from stream_recon.app.mesh.holes import borders, closed_holes, ears
from stream_recon.app.mesh.surface import Mesh, subset
from stream_recon.app.mesh.tsdf import FusionView


def sheet(side: int = 40, bend: float = 0.0) -> Mesh:
    """A square of triangles at about z = 3, whose front is seen from the origin. ``bend``: height of a ridge."""
    x, y = np.meshgrid(np.arange(side + 1) - side / 2, np.arange(side + 1) - side / 2)
    z = 60 - bend * np.abs(x)
    xyz = (0.05 * np.stack([x, y, z], axis=-1).reshape(-1, 3)).astype(np.float32)
    number = np.arange((side + 1) ** 2).reshape(side + 1, side + 1)
    a, b, c, d = number[:-1, :-1], number[:-1, 1:], number[1:, :-1], number[1:, 1:]
    faces = np.concatenate([np.stack([a, c, b], -1).reshape(-1, 3), np.stack([b, c, d], -1).reshape(-1, 3)])
    return Mesh(xyz, np.full((len(xyz), 3), 90, np.uint8), faces.astype(np.int32))


def without(mesh: Mesh, x: float, y: float, radius: float) -> Mesh:
    """The mesh with a round hole."""
    centre = mesh.xyz[mesh.faces].mean(axis=1)
    return subset(mesh, np.hypot(centre[:, 0] - x, centre[:, 1] - y) > radius)


def area(mesh: Mesh) -> float:
    a, b, c = (mesh.xyz[mesh.faces[:, k]] for k in range(3))
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2)


def wall_view(depth: float) -> FusionView:
    image = np.zeros((60, 60, 3), np.uint8)
    return FusionView(np.full((60, 60), depth, np.float32), image, Intrinsics(60, 60, 30, 30), np.eye(4))


def closed_mesh(mesh: Mesh, views: list[FusionView], config: HoleConfig | None = None) -> tuple[Mesh, int]:
    return closed_holes(mesh, views, config or HoleConfig(), VisibilityConfig())


@pytest.mark.parametrize("radius", [0.08, 0.15, 0.5])
def test_a_hole_in_a_plane_is_closed_exactly(radius: float) -> None:
    whole = sheet()
    closed, count = closed_mesh(without(whole, 0.2, -0.1, radius), [wall_view(3.0)] * 3)
    assert count == 1 and area(closed) == pytest.approx(area(whole), rel=1e-4)
    assert len(borders(closed.faces, HoleConfig())) == 1  # the outer one
    # The new triangles face the same way and have the colour around them.
    a, b, c = (closed.xyz[closed.faces[:, k]] for k in range(3))
    assert (np.cross(b - a, c - a)[:, 2] < 0).all()
    assert (closed.rgb == 90).all()


def test_borders_are_the_same_in_any_order_of_triangles() -> None:
    mesh = without(sheet(6), 0.0, 0.0, 0.06)

    def found(faces: NDArray[np.int32]) -> set[frozenset[int]]:
        return {frozenset(border.tolist()) for border in borders(faces, HoleConfig())}

    expected = found(mesh.faces)
    assert len(expected) == 2
    for k in range(len(mesh.faces)):
        faces = np.roll(mesh.faces, k, axis=0)
        assert all(found(np.roll(faces, turn, axis=1)) == expected for turn in range(3))


def test_new_vertices_are_as_far_from_all_sides_of_a_hole() -> None:
    whole = sheet()
    centre = whole.xyz[whole.faces].mean(axis=1)
    mesh = subset(whole, (np.abs(centre[:, 0]) > 0.4) | (np.abs(centre[:, 1]) > 0.2))
    closed, count = closed_mesh(mesh, [])
    added = closed.xyz[len(mesh.xyz) :]
    middle = (added.min(axis=0) + added.max(axis=0)) / 2
    assert count == 1 and len(added) > 10 and middle == pytest.approx([0, 0, 3], abs=1e-3)


def test_the_outer_border_of_a_sheet_stays_open() -> None:
    small = sheet(5)
    assert len(borders(small.faces, HoleConfig())) == 1
    assert closed_mesh(small, []) == (small, 0)


def test_a_doorway_that_frames_see_through_stays_open() -> None:
    open_mesh = without(sheet(), 0.0, 0.0, 0.5)
    closed, count = closed_mesh(open_mesh, [wall_view(5.0)] * 3)
    assert count == 0 and len(closed.faces) == len(open_mesh.faces)
    # One frame alone may err.
    assert closed_mesh(open_mesh, [wall_view(5.0), *[wall_view(3.0)] * 8])[1] == 1


def test_large_holes_are_closed_in_planes_alone() -> None:
    bent = without(sheet(bend=1.0), 0.0, 0.0, 0.5)
    assert closed_mesh(bent, [])[1] == 0
    assert closed_mesh(without(sheet(bend=0.3), 0.0, 0.0, 0.08), [])[1] == 1


def test_ears_cover_a_concave_polygon() -> None:
    comb = np.array([[0, 0], [6, 0], [6, 3], [5, 1], [4, 3], [3, 1], [2, 3], [1, 1], [0, 3]], float)
    found = ears(comb)
    assert found is not None and found.shape == (7, 3)
    u, v = comb[found[:, 1]] - comb[found[:, 0]], comb[found[:, 2]] - comb[found[:, 0]]
    areas = (u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]) / 2
    x, y = comb.T
    assert (areas > 0).all() and areas.sum() == pytest.approx((x * np.roll(y, -1) - np.roll(x, -1) * y).sum() / 2)
    assert ears(np.array([[0, 0], [1, 1], [1, 0], [0, 1]], float)) is None
