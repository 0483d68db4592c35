"""The formats by name, and how an export is carried out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.export.colmap import write_colmap
from stream_recon.app.export.depth import write_depth_images
from stream_recon.app.export.gltf import write_scene
from stream_recon.app.export.job import ExportJob, ExportOptions, ExportReport
from stream_recon.app.export.mesh import write_mesh
from stream_recon.app.export.page import write_page
from stream_recon.app.export.rerun_log import write_recording
from stream_recon.app.export.target import README_NAME, check_target, readme, staged_file, staged_folder
from stream_recon.app.export.trajectory import write_trajectory
from stream_recon.app.export.transforms import write_transforms
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import ConfigError

Writer = Callable[[ExportJob, Path], ExportReport]


@dataclass(frozen=True)
class Format:
    """One form of export."""

    name: str
    write: Writer
    suffixes: tuple[str, ...] = ()
    """Of the one file that it makes, the usual one first; none: it makes a folder."""


FORMATS = {
    f.name: f
    for f in (
        Format("trajectory", write_trajectory),
        Format("depth", write_depth_images),
        Format("transforms", write_transforms),
        Format("colmap", write_colmap),
        Format("glb", write_scene, (".glb",)),
        Format("html", write_page, (".html",)),
        Format("rrd", write_recording, (".rrd",)),
        Format("mesh", write_mesh, (".ply", ".obj", ".glb")),
    )
}


def default_target(folder: Path, form: Format) -> Path:
    """``OUT-NAME``, ``OUT.glb`` or ``OUT-mesh.ply`` beside the result folder, whose own files a run may replace."""
    whole = folder.resolve()
    suffix = form.suffixes[0] if form.suffixes else ""
    return whole.with_name(whole.name + (suffix if suffix == f".{form.name}" else f"-{form.name}{suffix}"))


def export(
    folder: Path,
    name: str,
    target: Path | None = None,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, ExportReport]:
    """Export a result folder, which a run may still be writing to; gives where to, and what came of it.

    A file ``X.glb`` gets ``X.glb.README.txt`` beside it, a folder its README.txt within.

    Args:
        name: of a format in `FORMATS`.
        target: a file or folder, as the format makes it; None: see `default_target`.
        overwrite: an earlier export there may be replaced.
        progress: told how many frames are done, of how many; what it raises ends the export.

    Raises:
        StreamReconError: nothing to export, no room, something else at ``target``; nothing is then left there.
    """
    form = FORMATS[name]
    target = target or default_target(folder, form)
    if form.suffixes and target.suffix.lower() not in form.suffixes:
        raise ConfigError(f"-o {target}: a file of --format {name} is called NAME{' or NAME'.join(form.suffixes)}")
    check_target(target, overwrite, is_file=bool(form.suffixes))
    result = read_result(folder)
    job = ExportJob(result, options or ExportOptions(), progress)
    if not form.suffixes:
        with staged_folder(target, overwrite) as part:
            told = form.write(job, part)
            (part / README_NAME).write_text(readme(name, result, told), encoding="utf-8")
    else:
        beside = target.with_name(f"{target.name}.{README_NAME}")
        with staged_file(target, overwrite) as part:
            told = form.write(job, part)
            with staged_file(beside, overwrite=True) as text:
                text.write_text(readme(name, result, told), encoding="utf-8")
    return target, told
