"""Images averaged over the mesh with those of other views."""

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.mesh.blending import Blender, companions
from stream_recon.app.export.mesh.fusion import SourceView
from stream_recon.app.export.mesh.surface import Mesh

WIDTH, HEIGHT, FOCAL, DISTANCE = 160, 120, 150.0, 2.0
NOISE = 8.0
CAMERA = Intrinsics(FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2)
PATTERN = 4 * cv2.GaussianBlur(np.random.default_rng(0).uniform(0, 255, (400, 600, 3)), (0, 0), 3) - 380


def wall() -> Mesh:
    """Two triangles that face the cameras."""
    xyz = np.array([[-3, -3, DISTANCE], [3, -3, DISTANCE], [3, 3, DISTANCE], [-3, 3, DISTANCE]], np.float32)
    return Mesh(xyz, np.full((4, 3), 120, np.uint8), np.array([[0, 2, 1], [0, 3, 2]], np.int32))


def clean(position: float) -> NDArray[np.float32]:
    """The wall's image from x = ``position``."""
    x, y = np.meshgrid(np.arange(WIDTH) + 0.5 - WIDTH / 2, np.arange(HEIGHT) + 0.5 - HEIGHT / 2)
    u, v = (x / FOCAL * DISTANCE + position) * 100 + 300, y / FOCAL * DISTANCE * 100 + 200
    found = cv2.remap(PATTERN.astype(np.float32), u.astype(np.float32), v.astype(np.float32), cv2.INTER_LINEAR)
    return np.asarray(found.clip(20, 235), np.float32)


def views() -> list[SourceView]:
    random, found = np.random.default_rng(1), []
    for number in range(4):
        position = 0.15 * number
        T = np.eye(4)
        T[0, 3] = position
        image = (clean(position) + random.normal(0, NOISE, (HEIGHT, WIDTH, 3))).clip(0, 255).astype(np.uint8)
        depth = np.full((HEIGHT, WIDTH), DISTANCE, np.float32)
        found.append(SourceView(image, CAMERA, T, depth, np.zeros(depth.shape, np.bool_)))
    return found


def blender(shown: list[SourceView], gains: NDArray[np.float32] | None = None) -> Blender:
    return Blender(shown.__getitem__, wall(), np.ones((4, 3), np.float32) if gains is None else gains)


INNER = np.s_[8:-8, 45:-45]
"""What all views show."""


def test_noise_falls_and_detail_stays() -> None:
    image = blender(views()).image(1, [0, 2, 3]).astype(np.float32)

    error = (image - clean(0.15))[INNER]
    assert error.std() < 0.65 * NOISE
    assert abs(error.mean()) < 1


def test_what_another_view_alone_shows_is_not_mixed_in() -> None:
    shown = views()
    shown[2].image[40:80, 50:90] = (250, 20, 20)  # somebody walks past
    alone, both = blender(shown).image(1, []), blender(shown).image(1, [2])

    changed = np.abs(both.astype(int) - alone).max(axis=2)[INNER]
    assert (changed > 30).mean() < 0.01


def test_gains_come_first() -> None:
    shown = views()
    shown[2].image[:] = (shown[2].image * 0.5).astype(np.uint8)
    gains = np.ones((4, 3), np.float32)
    gains[2] = 2

    image = blender(shown, gains).image(1, [2]).astype(np.float32)

    assert abs((image - clean(0.15))[INNER].mean()) < 1.5


def test_where_the_mesh_is_not_the_image_stays() -> None:
    shown = views()
    empty = Mesh(np.zeros((3, 3), np.float32), np.zeros((3, 3), np.uint8), np.zeros((0, 3), np.int32))
    image = Blender(shown.__getitem__, empty, np.ones((4, 3), np.float32)).image(1, [0, 2])
    np.testing.assert_array_equal(image, shown[1].image)


def test_companions_show_the_same_triangles_well() -> None:
    scores = np.array([[1, 1, 1, 0], [0.9, 0.8, 0, 0], [0.2, 0.2, 0.2, 1], [0, 0.9, 0.9, 0.9]], np.float16)
    found = companions(scores, np.array([0, 0, 0, 2], np.int32))
    assert found[0] == [1, 3]
    assert found[2] == [3]
    assert found[1] == []
