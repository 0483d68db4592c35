"""Export of a scene as binary glTF 2.0 (GLB): points, camera frusta and trajectory; writer of GLB files.

The writer covers what point clouds, lines and coloured meshes need of the Khronos Group's specification: one buffer, a
node for each primitive, colours without lighting.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ply import positions
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import sample_cloud, uniform_indices
from stream_recon.app.export.view import PinholeView, gltf_axes, gltf_note
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.run_record import PROGRAM

POINTS, LINES, TRIANGLES = 0, 1, 4
"""Modes of primitives in glTF."""
FLOAT, UNSIGNED_SHORT, UNSIGNED_INT = 5126, 5123, 5125
"""Component types of accessors in glTF."""
ARRAY_BUFFER, ELEMENT_BUFFER = 34962, 34963
"""Targets of buffer views in glTF."""
JSON_CHUNK, BINARY_CHUNK = 0x4E4F534A, 0x004E4942
"""Chunk types of GLB."""


@dataclass(frozen=True)
class Primitive:
    """Named points, lines or triangles."""

    name: str
    mode: int
    """`POINTS`, `LINES` (pairs of positions) or `TRIANGLES`; not every program reads strips."""
    positions: NDArray[np.float32]  # [N, 3]
    colours: NDArray[np.uint8] | None = None  # [N, 3]
    """sRGB; None: ``colour`` for all."""
    colour: tuple[float, float, float] = (1.0, 1.0, 1.0)
    """sRGB, from 0 to 1."""
    indices: NDArray[np.int32] | None = None  # [M], of positions; None: all, in order


def write_glb(path: Path, primitives: Sequence[Primitive], generator: str) -> None:
    """Write a GLB file. Raises OSError, or ValueError above the format's 4 GiB."""
    primitives = [p for p in primitives if len(p.positions)]
    blocks: list[NDArray[Any]] = []
    document: dict[str, Any] = {
        "asset": {"version": "2.0", "generator": generator},
        "extensionsUsed": ["KHR_materials_unlit"],
        "scene": 0,
        "scenes": [{"nodes": list(range(len(primitives)))}],
        "nodes": [{"mesh": number, "name": p.name} for number, p in enumerate(primitives)],
        "meshes": [],
        "materials": [],
        "accessors": [],
        "bufferViews": [],
    }
    for number, p in enumerate(primitives):
        attributes = {"POSITION": _add(document, blocks, np.ascontiguousarray(p.positions, "<f4"), FLOAT, "VEC3")}
        bounds = document["accessors"][-1]
        bounds["min"], bounds["max"] = p.positions.min(axis=0).tolist(), p.positions.max(axis=0).tolist()
        if p.colours is not None:
            attributes["COLOR_0"] = _add(document, blocks, _linear(p.colours), UNSIGNED_SHORT, "VEC4")
            document["accessors"][-1]["normalized"] = True
        drawn: dict[str, Any] = {"attributes": attributes, "mode": p.mode, "material": number}
        if p.indices is not None:
            indices = np.ascontiguousarray(p.indices, "<u4")
            drawn["indices"] = _add(document, blocks, indices, UNSIGNED_INT, "SCALAR", ELEMENT_BUFFER)
        document["meshes"].append({"name": p.name, "primitives": [drawn]})
        document["materials"].append(
            {
                "name": p.name,
                "doubleSided": True,
                "extensions": {"KHR_materials_unlit": {}},
                "pbrMetallicRoughness": {
                    "baseColorFactor": [*_to_linear(np.array(p.colour)).tolist(), 1.0],
                    "metallicFactor": 0.0,
                },
            }
        )
    size = sum(block.nbytes for block in blocks)
    document["buffers"] = [{"byteLength": size}]
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    text += b" " * (-len(text) % 4)
    total = 12 + 8 + len(text) + 8 + size
    if total >= 2**32:
        raise ValueError("a GLB file holds at most 4 GiB")
    with path.open("wb") as file:
        file.write(struct.pack("<4sII", b"glTF", 2, total))
        file.write(struct.pack("<II", len(text), JSON_CHUNK) + text)
        file.write(struct.pack("<II", size, BINARY_CHUNK))
        for block in blocks:
            file.write(block.data)


def _add(
    document: dict[str, Any],
    blocks: list[NDArray[Any]],
    array: NDArray[Any],
    kind: int,
    form: str,
    target: int = ARRAY_BUFFER,
) -> int:
    """Append an array, whose rows are a multiple of 4 bytes; returns the index of its accessor."""
    offset = sum(block.nbytes for block in blocks)
    blocks.append(array)
    view = {"buffer": 0, "byteOffset": offset, "byteLength": array.nbytes, "target": target}
    document["bufferViews"].append(view)
    document["accessors"].append(
        {"bufferView": len(blocks) - 1, "componentType": kind, "count": len(array), "type": form}
    )
    return len(blocks) - 1


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


MAX_FRUSTA = 500
"""Most frusta: more hide the points."""
FRUSTUM_SHARE = 0.02
"""Depth of a frustum as a share of the scene's extent (diagonal of the 5 % to 95 % quantiles of the points)."""
FRUSTUM_COLOUR, PATH_COLOUR = (0.12, 0.47, 0.86), (0.95, 0.45, 0.1)
"""Colours of frusta (blue) and trajectory (orange), sRGB from 0 to 1."""


def write_scene(job: ExportJob, path: Path) -> ExportReport:
    """Write points, frusta and trajectory. Raises StreamReconError, or OSError for system errors."""
    cameras = job.cameras("keyframes")
    vertices = sample_cloud(job.result.folder, job.options.points)
    axes = gltf_axes(job.result.cameras, job.options.up)
    xyz = _rotated(positions(vertices), axes)
    rgb = np.stack([vertices[channel] for channel in ("red", "green", "blue")], axis=1)
    poses = np.array([camera.T_world_camera for camera in job.result.cameras])
    shown = [cameras[k] for k in uniform_indices(len(cameras), MAX_FRUSTA)]
    size = FRUSTUM_SHARE * _extent(xyz if len(xyz) else poses[:, :3, 3])
    parts = [
        Primitive("points", POINTS, xyz, rgb),
        Primitive("cameras", LINES, _rotated(frusta(shown, job.view, size), axes), colour=FRUSTUM_COLOUR),
    ]
    if len(poses) > 1:
        line = _rotated(poses[:, :3, 3], axes)
        parts.append(Primitive("path", LINES, np.repeat(line, 2, axis=0)[1:-1], colour=PATH_COLOUR))
    write_glb(path, parts, PROGRAM)
    return ExportReport(
        f"{len(vertices)} points, {len(shown)} camera frusta, the trajectory of {len(poses)} frames.",
        [gltf_note(axes), "Nodes: points (colours at vertices), cameras (lines), path (a line through all frames)."],
    )


def frusta(cameras: list[Camera], view: PinholeView, depth: float) -> NDArray[np.float32]:
    """Line segments [N, 3], pairs of ends: from each camera to its image corners at ``depth``, and between these."""
    (width, height), k = view.size, view.intrinsics
    pixels = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    corners = np.ones((4, 3))
    corners[:, :2] = (pixels - (k.cx, k.cy)) / (k.fx, k.fy)
    ends = np.concatenate([np.zeros((1, 3)), corners * depth])
    pairs = np.array([[0, 1], [0, 2], [0, 3], [0, 4], [1, 2], [2, 3], [3, 4], [4, 1]]).ravel()
    T = np.array([camera.T_world_camera for camera in cameras])
    world = np.einsum("nij,pj->npi", T[:, :3, :3], ends[pairs]) + T[:, None, :3, 3]
    return np.asarray(world.reshape(-1, 3), np.float32)


def _rotated(xyz: NDArray[np.floating], axes: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(xyz @ axes.T, np.float32)


def _extent(xyz: NDArray[np.floating]) -> float:
    low, high = np.quantile(xyz, [0.05, 0.95], axis=0)
    return float(np.linalg.norm(high - low)) or 1.0
