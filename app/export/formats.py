"""Table of export formats, and `export`, which writes one."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.export.colmap import write_colmap
from stream_recon.app.export.depth import write_depth_images
from stream_recon.app.export.glb import write_scene
from stream_recon.app.export.job import ExportJob, ExportOptions, ExportReport
from stream_recon.app.export.mesh import write_mesh
from stream_recon.app.export.page import write_page
from stream_recon.app.export.pose_formats import write_trajectory, write_transforms
from stream_recon.app.export.rerun_log import write_recording
from stream_recon.app.export.robot_recordings import write_mcap, write_ros2_bag
from stream_recon.app.export.splats import SUFFIXES, write_splats_file
from stream_recon.app.export.target import README_NAME, check_readme, check_target, readme, staged_file, staged_folder
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import ConfigError

Writer = Callable[[ExportJob, Path], ExportReport]


@dataclass(frozen=True)
class Format:
    """An export format."""

    name: str
    write: Writer
    suffixes: tuple[str, ...] = ()
    """Suffixes of the file that it writes, the default first; none where it writes a folder."""
    cuts: bool = False
    """Whether a box of the options cuts it."""


FORMATS = {
    f.name: f
    for f in (
        Format("trajectory", write_trajectory),
        Format("depth", write_depth_images),
        Format("transforms", write_transforms),
        Format("colmap", write_colmap),
        Format("glb", write_scene, (".glb",), cuts=True),
        Format("html", write_page, (".html",), cuts=True),
        Format("rrd", write_recording, (".rrd",), cuts=True),
        Format("ros2bag", write_ros2_bag),
        Format("mcap", write_mcap, (".mcap",)),
        Format("mesh", write_mesh, (".ply", ".obj", ".glb"), cuts=True),
        Format("splats", write_splats_file, SUFFIXES, cuts=True),
    )
}


def default_target(folder: Path, form: Format) -> Path:
    """``OUT-NAME``, ``OUT.glb`` or ``OUT-mesh.ply`` next to the result folder, in which a run may replace files."""
    resolved = folder.resolve()
    suffix = form.suffixes[0] if form.suffixes else ""
    return resolved.with_name(resolved.name + (suffix if suffix == f".{form.name}" else f"-{form.name}{suffix}"))


def export(
    folder: Path,
    name: str,
    target: Path | None = None,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, ExportReport]:
    """Export a result folder, which a run may still be writing to.

    A folder gets a README.txt, and a file ``X.glb`` an ``X.glb.README.txt`` next to it.

    Args:
        name: a format of `FORMATS`.
        target: file or folder, by the format; None: `default_target`.
        overwrite: replace an earlier export.
        progress: called with the number of frames done and their total; an exception from it ends the export.

    Returns the target and the report. Raises StreamReconError: nothing to export, no disk space, or other files at
    ``target``; nothing is written then.
    """
    form = FORMATS[name]
    target = target or default_target(folder, form)
    if options is not None and options.box is not None and not form.cuts:
        raise ConfigError(f"--box cuts {', '.join(f.name for f in FORMATS.values() if f.cuts)}, not {name}")
    if form.suffixes and target.suffix.lower() not in form.suffixes:
        raise ConfigError(f"-o {target}: for --format {name} use NAME{' or NAME'.join(form.suffixes)}")
    check_target(target, overwrite, is_file=bool(form.suffixes))
    result = read_result(folder)
    job = ExportJob(result, options or ExportOptions(), progress)
    if not form.suffixes:
        with staged_folder(target, overwrite) as part:
            report = form.write(job, part)
            (part / README_NAME).write_text(readme(name, result, report), encoding="utf-8")
    else:
        readme_path = target.with_name(f"{target.name}.{README_NAME}")
        check_readme(readme_path)
        with staged_file(target, overwrite) as part:
            report = form.write(job, part)
            with staged_file(readme_path, overwrite=True) as text:
                text.write_text(readme(name, result, report), encoding="utf-8")
    return target, report
