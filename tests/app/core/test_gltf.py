import io
import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.gltf import POINTS, Primitive, glb, read_glb, write_glb

trimesh = pytest.importorskip("trimesh")

QUAD = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]], np.float32)
FACES = np.array([[0, 1, 2], [0, 2, 3]], np.int32)
UV = np.array([[0, 1], [1, 1], [1, 0], [0, 0]], np.float32)


def jpeg(height: int, width: int, seed: int = 0) -> bytes:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return bytes(cv2.imencode(".jpg", image)[1])


def test_colours_are_linear_as_the_format_wants_them(tmp_path: Path) -> None:
    rgb = np.array([[0, 64, 255], [10, 128, 200]], np.uint8)
    write_glb(tmp_path / "p.glb", [Primitive(np.eye(3, dtype=np.float32)[:2], rgb=rgb, mode=POINTS)], "test")
    data = (tmp_path / "p.glb").read_bytes()
    assert data[:4] == b"glTF" and int.from_bytes(data[8:12], "little") == len(data)
    stored = np.frombuffer(data[-16:], "<u2").reshape(2, 4) / 65535
    linear = np.where(rgb / 255 <= 0.04045, rgb / 255 / 12.92, ((rgb / 255 + 0.055) / 1.055) ** 2.4)
    assert stored[:, :3] == pytest.approx(linear, abs=1e-5) and (stored[:, 3] == 1).all()


def test_textured_primitives_have_a_material_and_an_image_each() -> None:
    # An odd number of bytes: what follows an image must be aligned all the same.
    images = [jpeg(8, 16) + b"\0" * k for k in (1, 2)]
    pages = [Primitive(QUAD + k, FACES, uv=UV, texture=image, name=f"page{k}") for k, image in enumerate(images)]
    data = glb(pages)
    document = json.loads(data[20 : 20 + int.from_bytes(data[12:16], "little")])
    assert document["scenes"] == [{"nodes": [0, 1]}]
    assert len(document["materials"]) == len(document["images"]) == len(document["textures"]) == 2
    for number, material in enumerate(document["materials"]):
        assert material["doubleSided"] is False and "KHR_materials_unlit" in material["extensions"]
        assert material["pbrMetallicRoughness"]["baseColorTexture"]["index"] == number
    assert document["samplers"][0]["wrapS"] == document["samplers"][0]["wrapT"] == 33071
    assert all(view["byteOffset"] % 4 == 0 for view in document["bufferViews"])
    scene = trimesh.load(io.BytesIO(data), file_type="glb")
    for k in range(2):
        read = scene.geometry[f"page{k}"]
        assert np.asarray(read.vertices) == pytest.approx(QUAD + k)
        assert read.visual.material.baseColorTexture.size == (16, 8)
        # trimesh counts v from the lower border.
        assert np.asarray(read.visual.uv) == pytest.approx(np.stack([UV[:, 0], 1 - UV[:, 1]], 1))


def test_a_texture_without_coordinates_is_refused() -> None:
    with pytest.raises(ValueError, match="coordinates"):
        glb([Primitive(QUAD, FACES, texture=jpeg(4, 4))])


def test_nothing_makes_a_valid_file() -> None:
    data = glb([Primitive(np.empty((0, 3), np.float32))])
    document = json.loads(data[20 : 20 + int.from_bytes(data[12:16], "little")])
    assert "nodes" not in document and "accessors" not in document
    assert document["scenes"] == [{}], "the format forbids an empty list of nodes"


def test_a_file_is_read_back_as_it_was_written() -> None:
    rgb = np.random.default_rng(1).integers(0, 256, (4, 3), np.uint8)
    parts = [
        Primitive(QUAD, FACES, uv=UV, texture=jpeg(8, 16) + b"\0", name="textured"),
        Primitive(QUAD + 1, FACES, rgb, name="coloured"),
        Primitive(QUAD, name="plain", mode=POINTS, colour=(0.2, 0.4, 0.6)),
    ]
    content = glb(parts)
    for part, again in zip(parts, read_glb(content), strict=True):
        assert (again.name, again.mode, again.texture) == (part.name, part.mode, part.texture)
        assert again.colour == pytest.approx(part.colour, abs=0.5 / 255)
        for name in ("xyz", "faces", "rgb", "uv"):
            np.testing.assert_array_equal(getattr(again, name), getattr(part, name), name)
    for wrong in (b"", b"glTF", content[:-100], b"x" + content[1:], content[:12] + b"\0" * 40):
        with pytest.raises(ValueError):
            read_glb(wrong)
