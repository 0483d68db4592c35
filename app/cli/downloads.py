"""What the viewer offers of a result: mesh, splats, and exports and films that are made when they are asked for."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from stream_recon.app.export.formats import FORMATS, export

if TYPE_CHECKING:
    from stream_recon.app.viewer.viewer import Viewer

VIEWER_EXPORTS = {form.name: form.label(form.offered[0]) for form in FORMATS.values() if form.in_viewer}
"""Labels of the exports that the viewer offers, by the format's name."""
MIN_COVERAGE = 0.5
"""Share of what was filmed that a mesh must cover to replace the keyframes' surfaces."""
FILM_SECONDS = 10.0
"""Length of a film that a page asks for."""


def result_name(folder: Path) -> str:
    """Name of a result on its page."""
    return folder.resolve().name or "stream-recon"


def offer_result(viewer: "Viewer", folder: Path, film_seconds: float = FILM_SECONDS) -> None:
    """Show a result's mesh, and offer its files for download, films of that length."""
    from stream_recon.app.core.splats import read_splats
    from stream_recon.app.export.view import gltf_axes
    from stream_recon.app.result.cloud import POINTS_NAME
    from stream_recon.app.result.folder import MESH_NAME, current_splats, read_result
    from stream_recon.app.result.verdict import surface_coverage
    from stream_recon.configs.errors import StreamReconError

    viewer.offer_cloud(folder / POINTS_NAME)
    mesh = folder / MESH_NAME
    try:
        result = read_result(folder)
        if (scale := result.metric_scale) is not None:
            viewer.set_unit("metre", scale.error)
        axes = gltf_axes(result, "auto") if mesh.exists() else None
    except StreamReconError:
        return
    if axes is not None:
        covered = surface_coverage(result.run)
        if covered is None or covered >= MIN_COVERAGE:
            viewer.show_mesh(mesh, axes.T)
        viewer.offer("mesh", lambda _: mesh)
    splats = current_splats(result)
    if splats is not None:
        with suppress(StreamReconError):
            viewer.show_splats(read_splats(splats))
    for name in VIEWER_EXPORTS:
        if name != "mesh":  # which is a file of the result
            viewer.offer(name, partial(_exported, folder, name))
    viewer.offer("around", partial(_film, folder, "orbit", film_seconds))
    viewer.offer("path", partial(_film, folder, "trajectory", film_seconds))


def _exported(folder: Path, name: str, target: Path) -> Path:
    """Write an export of a result into ``target``, a folder as a ZIP file. Raises StreamReconError."""
    from stream_recon.app.export.target import pack

    suffix = FORMATS[name].offered[0]
    if suffix:
        return export(folder, name, target / f"{result_name(folder)}{suffix}")[0]
    made = export(folder, name, target / f"{result_name(folder)}-{name}")[0]
    return pack(made, target / f"{made.name}.zip")


def _film(folder: Path, camera_path: Literal["orbit", "trajectory"], seconds: float, target: Path) -> Path:
    """Write a video of a result into ``target``. Raises StreamReconError."""
    from stream_recon.app.export.render.film import FilmOptions, render_film

    path = target / f"{result_name(folder)}-{camera_path}.mp4"
    render_film(folder, path, FilmOptions(camera_path, size=(1280, 720), seconds=seconds))
    return path
