"""Writer and reader of binary glTF 2.0 (GLB): points, lines, triangles, with vertex colours or textures, unlit.

It covers what reconstructions need of the Khronos Group's specification: one buffer, a node for each primitive, and
KHR_materials_unlit. Triangles are single sided: seen from behind they are not drawn.
"""

import io
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.output_file import new_file

POINTS, LINES, TRIANGLES = 0, 1, 4
"""Modes of primitives in glTF."""
FLOAT, UNSIGNED_SHORT, UNSIGNED_INT = 5126, 5123, 5125
"""Component types of accessors in glTF."""
ARRAY_BUFFER, ELEMENT_BUFFER = 34962, 34963
"""Targets of buffer views in glTF."""
LINEAR, LINEAR_MIPMAP_LINEAR, CLAMP_TO_EDGE = 9729, 9987, 33071
"""Filters and wrapping mode of samplers in glTF."""
JSON_CHUNK, BINARY_CHUNK = 0x4E4F534A, 0x004E4942
"""Chunk types of GLB."""


@dataclass(frozen=True)
class Primitive:
    """Named triangles, lines or points, in glTF's axes: y up, z backward."""

    xyz: NDArray[np.float32]  # [N, 3]
    faces: NDArray[np.int32] | None = None  # [M, 3]
    """Vertices of triangles, counter-clockwise seen from the front; None: all vertices, in order."""
    rgb: NDArray[np.uint8] | None = None  # [N, 3]
    """sRGB at vertices; None: ``colour`` for all."""
    uv: NDArray[np.float32] | None = None  # [N, 2]
    """Coordinates in the texture, from (0, 0) at its upper left corner to (1, 1) at its lower right one."""
    texture: bytes | None = None
    """A JPEG file; given with ``uv``, and multiplied by the colours."""
    unsure: NDArray[np.float32] | None = None  # [N]
    """Percentages, an attribute ``_UNSURE`` of the vertices, that only the program's pages read."""
    name: str = "mesh"
    mode: int = TRIANGLES
    """`POINTS`, `LINES` (pairs of positions) or `TRIANGLES`; not every program reads strips."""
    colour: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """sRGB, from 0 to 1."""


def glb(primitives: Sequence[Primitive], generator: str = "stream-recon") -> bytes:
    """The bytes of a GLB file, see `write_glb`. Raises ValueError."""
    file = io.BytesIO()
    write_glb(file, primitives, generator)
    return file.getvalue()


def write_glb(target: Path | BinaryIO, primitives: Sequence[Primitive], generator: str = "stream-recon") -> None:
    """Write a GLB file; primitives without vertices are left out.

    Each textured primitive has a material and an image. Raises OSError, or ValueError above the format's 4 GiB.
    """
    blocks: list[bytes] = []
    document = _document([p for p in primitives if len(p.xyz)], blocks, generator)
    size = sum(len(block) for block in blocks)
    document["buffers"] = [{"byteLength": size}] if size else []
    text = json.dumps({k: v for k, v in document.items() if v}, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + size
    if total >= 2**32:
        raise ValueError("a GLB file holds at most 4 GiB")
    head = struct.pack("<4sII", b"glTF", 2, total) + struct.pack("<II", len(text), JSON_CHUNK)
    parts = [head, text, struct.pack("<II", size, BINARY_CHUNK), *blocks]
    if isinstance(target, Path):
        with new_file(target) as file:
            file.writelines(parts)
    else:
        target.writelines(parts)


def read_glb(content: bytes) -> list[Primitive]:
    """The primitives of a file that `write_glb` wrote; ValueError for any other content."""
    try:
        magic, _, total, length, _ = struct.unpack_from("<4sIIII", content)
        if magic != b"glTF" or total > len(content):
            raise ValueError("not a complete GLB file")
        document = json.loads(content[20 : 20 + length])
        buffer = memoryview(content)[28 + length :]
        return [_read_primitive(document, buffer, node) for node in document.get("nodes", [])]
    except (struct.error, LookupError, TypeError) as error:
        raise ValueError(f"not a GLB file of this program: {error!r}") from error


def _read_primitive(document: dict[str, Any], buffer: memoryview, node: dict[str, Any]) -> Primitive:
    (drawn,) = document["meshes"][node["mesh"]]["primitives"]
    attributes, material = drawn["attributes"], document["materials"][drawn["material"]]
    surface = material["pbrMetallicRoughness"]
    rgb = uv = texture = None
    if "COLOR_0" in attributes:
        rgb = _to_srgb(_read(document, buffer, attributes["COLOR_0"])[:, :3] / 65535)
    if "TEXCOORD_0" in attributes:
        uv = np.asarray(_read(document, buffer, attributes["TEXCOORD_0"]), np.float32)
    if "baseColorTexture" in surface:
        image = document["images"][document["textures"][surface["baseColorTexture"]["index"]]["source"]]
        texture = bytes(_view(document, buffer, image["bufferView"]))
    faces = None
    if "indices" in drawn:
        faces = _read(document, buffer, drawn["indices"]).reshape(-1, 3).astype(np.int32)
    red, green, blue = (_to_srgb(np.array(surface["baseColorFactor"][:3])) / 255).tolist()
    xyz = np.asarray(_read(document, buffer, attributes["POSITION"]), np.float32)
    name, unsure = node.get("name", "mesh"), None
    if "_UNSURE" in attributes:
        unsure = np.asarray(_read(document, buffer, attributes["_UNSURE"]), np.float32)
    return Primitive(xyz, faces, rgb, uv, texture, unsure, name, drawn["mode"], (red, green, blue))


def _view(document: dict[str, Any], buffer: memoryview, number: int) -> memoryview:
    view = document["bufferViews"][number]
    start, length = view.get("byteOffset", 0), view["byteLength"]
    if start + length > len(buffer):
        raise ValueError("the GLB file is cut off")
    return buffer[start : start + length]


def _read(document: dict[str, Any], buffer: memoryview, number: int) -> NDArray[Any]:
    """An accessor's array [count] or [count, k]."""
    accessor = document["accessors"][number]
    width = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}[accessor["type"]]
    kind = {FLOAT: "<f4", UNSIGNED_SHORT: "<u2", UNSIGNED_INT: "<u4"}[accessor["componentType"]]
    flat = np.frombuffer(_view(document, buffer, accessor["bufferView"]), kind, accessor["count"] * width)
    return flat if width == 1 else flat.reshape(-1, width)


def _document(primitives: Sequence[Primitive], blocks: list[bytes], generator: str) -> dict[str, Any]:
    """The JSON part without ``buffers``; appends the content of the buffer to ``blocks``."""
    document: dict[str, Any] = {
        "asset": {"version": "2.0", "generator": generator},
        "extensionsUsed": ["KHR_materials_unlit"],
        "scene": 0,
        "scenes": [{"nodes": list(range(len(primitives)))} if primitives else {}],
        "nodes": [{"mesh": number, "name": p.name} for number, p in enumerate(primitives)],
        "meshes": [],
        "materials": [],
        "textures": [],
        "images": [],
        "samplers": [],
        "accessors": [],
        "bufferViews": [],
    }
    for p in primitives:
        attributes = {"POSITION": _accessor(document, blocks, np.ascontiguousarray(p.xyz, "<f4"), "VEC3")}
        bounds = document["accessors"][-1]
        bounds["min"], bounds["max"] = p.xyz.min(axis=0).tolist(), p.xyz.max(axis=0).tolist()
        if p.rgb is not None:
            attributes["COLOR_0"] = _accessor(document, blocks, _linear(p.rgb), "VEC4")
            document["accessors"][-1]["normalized"] = True
        if p.uv is not None:
            attributes["TEXCOORD_0"] = _accessor(document, blocks, np.ascontiguousarray(p.uv, "<f4"), "VEC2")
        if p.unsure is not None:
            attributes["_UNSURE"] = _accessor(document, blocks, np.ascontiguousarray(p.unsure, "<f4"), "SCALAR")
        drawn: dict[str, Any] = {"attributes": attributes, "mode": p.mode, "material": len(document["materials"])}
        if p.faces is not None:
            indices = np.ascontiguousarray(p.faces.ravel(), "<u4")
            drawn["indices"] = _accessor(document, blocks, indices, "SCALAR", ELEMENT_BUFFER)
        document["meshes"].append({"name": p.name, "primitives": [drawn]})
        document["materials"].append(_material(document, blocks, p))
    return document


def _material(document: dict[str, Any], blocks: list[bytes], p: Primitive) -> dict[str, Any]:
    """The material of a primitive; appends its image and texture, if it has one."""
    surface: dict[str, Any] = {
        "baseColorFactor": [*_to_linear(np.array(p.colour)).tolist(), 1.0],
        "metallicFactor": 0.0,
    }
    if p.texture is not None:
        if p.uv is None:
            raise ValueError("a texture needs coordinates at the vertices")
        if not document["samplers"]:
            document["samplers"].append(
                {"magFilter": LINEAR, "minFilter": LINEAR_MIPMAP_LINEAR, "wrapS": CLAMP_TO_EDGE, "wrapT": CLAMP_TO_EDGE}
            )
        view = _buffer_view(document, blocks, p.texture)
        document["images"].append({"bufferView": view, "mimeType": "image/jpeg", "name": p.name})
        document["textures"].append({"source": len(document["images"]) - 1, "sampler": 0})
        surface["baseColorTexture"] = {"index": len(document["textures"]) - 1}
    return {
        "name": p.name,
        "doubleSided": False,
        "extensions": {"KHR_materials_unlit": {}},
        "pbrMetallicRoughness": surface,
    }


def _buffer_view(document: dict[str, Any], blocks: list[bytes], content: bytes, target: int | None = None) -> int:
    """Append content to the buffer, padded to a multiple of 4 bytes; returns the index of its view."""
    offset = sum(len(block) for block in blocks)
    blocks.append(content)
    if len(content) % 4:
        blocks.append(bytes(-len(content) % 4))
    view = {"buffer": 0, "byteOffset": offset, "byteLength": len(content)}
    document["bufferViews"].append(view if target is None else {**view, "target": target})
    return len(document["bufferViews"]) - 1


def _accessor(
    document: dict[str, Any], blocks: list[bytes], array: NDArray[Any], form: str, target: int = ARRAY_BUFFER
) -> int:
    """Append an array, whose rows are a multiple of 4 bytes; returns the index of its accessor."""
    view = _buffer_view(document, blocks, array.tobytes(), target)
    kind = {"f4": FLOAT, "u2": UNSIGNED_SHORT, "u4": UNSIGNED_INT}[array.dtype.str[1:]]
    document["accessors"].append({"bufferView": view, "componentType": kind, "count": len(array), "type": form})
    return len(document["accessors"]) - 1


def _linear(srgb: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """Linear colours [N, 4] of glTF vertices from sRGB [N, 3].

    They have 16 bits, since 8 would leave few dark levels, and alpha, which makes rows a multiple of 4 bytes.
    """
    table = np.rint(65535 * _to_linear(np.arange(256) / 255)).astype("<u2")
    rgba = np.full((len(srgb), 4), 65535, "<u2")
    rgba[:, :3] = table[srgb]
    return rgba


def _to_linear(srgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear intensities in 0..1 from sRGB in 0..1 (IEC 61966-2-1)."""
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def _to_srgb(linear: NDArray[np.float64]) -> NDArray[np.uint8]:
    """sRGB levels from linear intensities in 0..1."""
    srgb = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * np.maximum(linear, 1e-12) ** (1 / 2.4) - 0.055)
    return np.asarray(np.rint(255 * np.clip(srgb, 0, 1)), np.uint8)
