"""The rough shape of a mesh: near its surface, in its colours, small, and only where it is worth it."""

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.gltf import Primitive, glb, read_glb
from stream_recon.app.viewer.scene_mesh import ROUGH_TRIANGLES, SceneMesh


def wave(count: int, texture: bytes | None = None, shift: float = 0.0) -> Primitive:
    """A waved square of 2 * count^2 triangles, textured from left to right, or green."""
    x, y = np.meshgrid(np.linspace(0, 1, count + 1), np.linspace(0, 1, count + 1))
    xyz = np.stack([x + shift, y, height(x + shift)], axis=-1).reshape(-1, 3).astype(np.float32)
    first = (np.arange(count)[:, None] * (count + 1) + np.arange(count)).ravel()
    a, b, c, d = first, first + 1, first + count + 2, first + count + 1
    faces = np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)]).astype(np.int32)
    if texture is None:
        return Primitive(xyz, faces, np.tile(np.uint8([0, 255, 0]), (len(xyz), 1)))
    uv = np.stack([x, y], axis=-1).reshape(-1, 2).astype(np.float32)
    return Primitive(xyz, faces, uv=uv, texture=texture)


def height(x: NDArray[np.floating]) -> NDArray[np.floating]:
    return np.asarray(0.1 * np.sin(6 * x))


def read(folder: Path, content: bytes) -> SceneMesh:
    (folder / "mesh.glb").write_bytes(content)
    return SceneMesh.read(folder / "mesh.glb", np.eye(3))


def test_a_rough_shape_lies_on_the_mesh_and_has_its_colours(tmp_path: Path) -> None:
    image = np.zeros((256, 256, 3), np.uint8)
    image[:, :128, 2] = image[:, 128:, 0] = 255  # red, then blue
    mesh = read(tmp_path, glb([wave(200, cv2.imencode(".jpg", image)[1].tobytes()), wave(50, shift=1.0)]))
    assert mesh.title == "mesh of 85,000 triangles" and mesh.rough is not None
    (rough,) = read_glb(mesh.rough)
    assert rough.faces is not None and rough.rgb is not None
    assert ROUGH_TRIANGLES / 2 < len(rough.faces) < 2 * ROUGH_TRIANGLES and len(mesh.rough) < len(mesh.glb) / 4
    x, z = rough.xyz[:, 0], rough.xyz[:, 2]
    assert np.abs(z - height(x)).max() < 0.01
    a, b, c = np.moveaxis(rough.xyz[rough.faces], 1, 0)
    assert (np.cross(b - a, c - a)[:, 2] > 0).all(), "triangles face the same side"
    np.testing.assert_allclose(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2, 2.3, rtol=0.1)
    for low, high, channel in ((0.05, 0.45, 0), (0.55, 0.95, 2), (1.05, 1.95, 1)):
        colours = rough.rgb[(x > low) & (x < high)].astype(int)
        assert (colours[:, channel] > 200).all() and (np.delete(colours, channel, axis=1) < 60).all()


def test_a_small_mesh_and_one_of_another_program_have_no_rough_shape(tmp_path: Path) -> None:
    small = read(tmp_path, glb([wave(50)]))
    assert small.title == "mesh of 5,000 triangles" and small.rough is None
    other = read(tmp_path, b"glTF of another program")
    assert not other.parts and other.rough is None and other.glb == b"glTF of another program"
