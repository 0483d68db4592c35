"""Pictures of textured meshes, without lighting, as viewers draw them."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.mesh.rasterizer import barycentric, project_vertices, rasterize, sampled, signed_areas
from stream_recon.app.mesh.texture import TexturedMesh

FloatArray = NDArray[np.float32]


@dataclass(frozen=True)
class Drawable:
    """Triangles with an image or with colours at vertices."""

    xyz: FloatArray  # [N, 3]
    faces: NDArray[np.int32]  # [M, 3]
    rgb: NDArray[np.uint8] | None = None  # [N, 3]
    uv: FloatArray | None = None  # [N, 2] as in glTF, see `Primitive`
    image: NDArray[np.uint8] | None = None  # [H, W, 3]


def drawables(mesh: TexturedMesh) -> list[Drawable]:
    """The parts of a mesh with decoded images."""
    parts = [
        Drawable(part.xyz, part.faces, uv=part.uv, image=_decoded(part.jpeg)) for part in mesh.parts if len(part.faces)
    ]
    return [*parts, Drawable(mesh.untextured.xyz, mesh.untextured.faces, mesh.untextured.rgb)]


def draw(
    parts: Sequence[Drawable], T_world_camera: NDArray[np.float64], camera: Intrinsics, size: tuple[int, int]
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The image [h, w, 3] of a pinhole camera with ``size`` (width, height), and which pixels [h, w] show the mesh.

    Triangles are single sided. Pixels without one are black.
    """
    image = np.zeros((size[1], size[0], 3), np.uint8)
    nearest = np.zeros((size[1], size[0]), np.float32)
    for part in parts:
        if not len(part.faces):
            continue
        projection = project_vertices(part.xyz, T_world_camera, camera)
        owner, inverse = rasterize(projection, part.faces, size, signed_areas(projection, part.faces) > 0)
        owner = np.where(inverse > nearest, owner, np.int32(-1))
        nearest = np.maximum(nearest, inverse)
        rows, columns, shares = barycentric(projection, part.faces, owner)
        corners = part.faces[owner[rows, columns]]
        if part.uv is not None and part.image is not None:
            uv = np.einsum("kc,kcj->kj", shares, part.uv[corners])
            image[rows, columns] = sampled(part.image, uv * np.array(part.image.shape[1::-1], np.float32))
        elif part.rgb is not None:
            colours = np.einsum("kc,kcj->kj", shares, part.rgb[corners].astype(np.float32))
            image[rows, columns] = np.rint(colours).clip(0, 255)
    return image, nearest > 0


def _decoded(jpeg: bytes) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB))
