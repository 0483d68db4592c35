"""Keyframes that a result's mesh is not made of, drawn from it: errors of textures and of colours at vertices.

Every n-th frame of the mesh is held out of depth and of textures. PSNR is over the pixels that the mesh covers; the
share of covered pixels is printed beside it. A mesh has one exposure and a video many: PSNR is printed also after one
gain for each channel of each frame. Time is of one core.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.gltf import glb
from stream_recon.app.export.mesh.build import FACES, primitives, surface, with_texture
from stream_recon.app.export.mesh.drawing import Drawable, draw, drawables
from stream_recon.app.export.mesh.fusion import SourceView, mesh_cameras, source_view
from stream_recon.app.result.folder import read_result


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("results", type=Path, nargs="+", metavar="OUT", help="result folders")
    parser.add_argument("--every", type=int, default=8, help="one of this number of frames is held out (default 8)")
    parser.add_argument("--faces", type=int, default=FACES, help=f"triangles (default {FACES})")


def run(options: Namespace) -> None:
    print("| result | triangles, views | MB | s: surface, texture | PSNR: texture, vertices | with gains | covered |")
    print("|---|---|---|---|---|---|---|")
    for folder in options.results:
        print(_row(folder, options.every, options.faces), flush=True)


def _row(folder: Path, every: int, faces: int) -> str:
    result = read_result(folder)
    cameras = mesh_cameras(result)
    held = cameras[every // 2 :: every]
    used = [camera for camera in cameras if camera not in held]
    begin = time.process_time()
    found = surface(result, used, faces)
    middle = time.process_time()
    mesh = with_texture(result, used, found)
    end = time.process_time()
    size = len(glb(primitives(mesh, np.eye(3))))
    textured, plain = drawables(mesh), [Drawable(found.mesh.xyz, found.mesh.faces, found.mesh.rgb)]
    views = [source_view(result, camera) for camera in held]
    (psnr, fitted, covered), (vertices, vertices_fitted, _) = _errors(textured, views), _errors(plain, views)
    return (
        f"| {folder.name} | {mesh.triangles}, {mesh.views} | {size / 1e6:.1f} | {middle - begin:.0f}, "
        f"{end - middle:.0f} | {psnr:.2f}, {vertices:.2f} | {fitted:.2f}, {vertices_fitted:.2f} | {covered:.1%} |"
    )


def _errors(parts: Sequence[Drawable], views: Sequence[SourceView]) -> tuple[float, float, float]:
    """Means of PSNR in dB, of PSNR after gains, and of the share of covered pixels."""
    psnr, fitted, covered = [], [], []
    for view in views:
        image, shown = draw(parts, view.T_world_camera, view.camera, (view.image.shape[1], view.image.shape[0]))
        covered.append(float(shown.mean()))
        if shown.any():
            drawn, wanted = image[shown].astype(np.float64), view.image[shown].astype(np.float64)
            gains = (drawn * wanted).sum(axis=0) / np.maximum(np.square(drawn).sum(axis=0), 1)
            psnr.append(_psnr(drawn, wanted))
            fitted.append(_psnr(drawn * gains, wanted))
    return float(np.mean(psnr)), float(np.mean(fitted)), float(np.mean(covered))


def _psnr(drawn: NDArray[np.float64], image: NDArray[np.float64]) -> float:
    return float(10 * np.log10(255**2 / np.square(drawn - image).mean()))
