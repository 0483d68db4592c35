"""Keyframes that a result's mesh is not made of, drawn from it: errors of textures and of colours at vertices.

Every n-th frame of the mesh is held out of depth and of textures. PSNR is over the pixels that the mesh covers; the
share of covered pixels is printed beside it. A mesh has one exposure and a video many: PSNR is printed also after one
gain for each channel of each frame, and levelled, by a smooth correction in each frame. Where something is missing from
the mesh, what is behind it is drawn: levelled PSNR is printed also of the pixels whose depth in the mesh is that of the
frame. Texture and colours at vertices are treated alike. Time is of one core.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from bench.drawing import Drawable, draw, drawables
from bench.table import header, row
from stream_recon.app.core.gltf import glb
from stream_recon.app.mesh.build import primitives, surface, with_texture
from stream_recon.app.mesh.config import DEFAULT_MESH
from stream_recon.app.mesh.fusion import SourceView, mesh_cameras, source_view
from stream_recon.app.mesh.rasterizer import project_vertices, rasterize, signed_areas
from stream_recon.app.result.folder import read_result

LEVEL_BLUR = 0.05
"""Standard deviation of the window of levelling, as a share of an image's longer side."""
SAME_DEPTH = 0.06
"""Share by which depths differ that count as the same."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("results", type=Path, nargs="+", metavar="OUT", help="result folders")
    parser.add_argument("--every", type=int, default=8, help="one of this number of frames is held out (default 8)")
    parser.add_argument(
        "--faces", type=int, default=DEFAULT_MESH.faces, help=f"triangles (default {DEFAULT_MESH.faces})"
    )


def run(options: Namespace) -> None:
    columns = "PSNR: texture, vertices", "with gains", "levelled", "same depth", "covered"
    header("result", "triangles, views", "MB", "s: surface, texture", *columns)
    for folder in options.results:
        row(folder.name, *_cells(folder, options.every, options.faces))


def _cells(folder: Path, every: int, faces: int) -> list[str]:
    result = read_result(folder)
    cameras = mesh_cameras(result, DEFAULT_MESH.fusion.max_frames)
    held_out = cameras[every // 2 :: every]
    used = [camera for camera in cameras if camera not in held_out]
    begin = time.process_time()
    plain_mesh = surface(result, used, replace(DEFAULT_MESH, faces=faces))
    middle = time.process_time()
    mesh = with_texture(result, used, plain_mesh, DEFAULT_MESH.texture)
    end = time.process_time()
    size = len(glb(primitives(mesh, np.eye(3))))
    textured, plain = drawables(mesh), [Drawable(plain_mesh.mesh.xyz, plain_mesh.mesh.faces, plain_mesh.mesh.rgb)]
    views = [source_view(result, camera) for camera in held_out]
    pairs = zip(_errors(textured, views), _errors(plain, views), strict=True)
    errors = [f"{one:.2f}, {other:.2f}" for one, other in pairs]
    covered = np.mean([draw(plain, view.T_world_camera, view.camera, _size(view))[1].mean() for view in views])
    return [
        f"{mesh.triangles}, {mesh.views}",
        f"{size / 1e6:.1f}",
        f"{middle - begin:.0f}, {end - middle:.0f}",
        *errors,
        f"{covered:.1%}",
    ]


def _size(view: SourceView) -> tuple[int, int]:
    return view.image.shape[1], view.image.shape[0]


def _errors(parts: Sequence[Drawable], views: Sequence[SourceView]) -> NDArray[np.float64]:
    """Means of PSNR in dB [4]: as drawn, with gains, levelled, and levelled where the mesh has the frame's depth."""
    rows = []
    for view in views:
        image, shown = draw(parts, view.T_world_camera, view.camera, _size(view))
        same = shown & _same_depth(parts, view)
        if not same.any():
            continue
        drawn, target = image[shown].astype(np.float64), view.image[shown].astype(np.float64)
        gains = (drawn * target).sum(axis=0) / np.maximum(np.square(drawn).sum(axis=0), 1)
        level = _levelled(image, view.image, shown)
        errors = [_psnr(level[mask], view.image[mask].astype(np.float64)) for mask in (shown, same)]
        rows.append([_psnr(drawn, target), _psnr(drawn * gains, target), *errors])
    return np.asarray(np.mean(rows, axis=0), np.float64)


def _levelled(image: NDArray[np.uint8], target: NDArray[np.uint8], shown: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The image [H, W, 3] with the smooth part of its difference from the target one removed."""
    difference = np.where(shown[..., None], target.astype(np.float64) - image, 0)
    blur = LEVEL_BLUR * max(shown.shape)
    known = cv2.GaussianBlur(shown.astype(np.float64), (0, 0), blur)
    smooth = cv2.GaussianBlur(difference, (0, 0), blur) / np.maximum(known, 1e-3)[..., None]
    return np.asarray(image + smooth, np.float64)


def _same_depth(parts: Sequence[Drawable], view: SourceView) -> NDArray[np.bool_]:
    """Which pixels [H, W] have the same depth in the mesh and in the frame."""
    width, height = _size(view)
    nearest = np.zeros((height, width), np.float32)
    for part in parts:
        projection = project_vertices(part.xyz, view.T_world_camera, view.camera)
        front = signed_areas(projection, part.faces) > 0
        nearest = np.maximum(nearest, rasterize(projection, part.faces, (width, height), front)[1])
    depth = cv2.resize(view.depth, (width, height), interpolation=cv2.INTER_NEAREST)
    ratio = nearest * depth  # inverse depth of the mesh times the frame's depth
    return np.asarray(np.abs(ratio - 1) < SAME_DEPTH)


def _psnr(drawn: NDArray[np.float64], image: NDArray[np.float64]) -> float:
    return float(10 * np.log10(255**2 / np.square(drawn - image).mean()))
