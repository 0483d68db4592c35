"""Table of export formats, which the command line, the web page and the viewer read, and `export`, which writes one.

Exporters are imported when they are needed: the command line reads the table at each start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stream_recon.app.core.output_file import write_new
from stream_recon.configs.errors import ConfigError

if TYPE_CHECKING:
    from stream_recon.app.export.job import ExportJob, ExportOptions, ExportReport

Writer = Callable[["ExportJob", Path], "ExportReport"]


@dataclass(frozen=True)
class Format:
    """An export format."""

    name: str
    title: str
    """Its name for people."""
    writer: str
    """``module.function`` of this folder, a `Writer`."""
    options: str
    """Fields of `ExportOptions` that concern it."""
    suffixes: tuple[str, ...] = ()
    """Suffixes of its file, the default first; none where it writes a folder."""
    web_suffixes: tuple[str, ...] | None = None
    """Suffixes that the web page offers, the default first; ``("",)`` for a folder; None: those of the file."""
    in_viewer: bool = False
    """Whether the viewer's page offers it."""

    @property
    def offered(self) -> tuple[str, ...]:
        """Suffixes that pages offer, the default first; ``""`` for a folder, which is packed."""
        return (self.suffixes or ("",)) if self.web_suffixes is None else self.web_suffixes

    def label(self, suffix: str) -> str:
        """Text of a button that saves a file with this suffix, or a packed folder."""
        return f"{self.title} ({suffix[1:].upper() or 'ZIP'})"

    def concerns(self, option: str) -> bool:
        """Whether a field of `ExportOptions` has an effect."""
        return option in self.options.split()

    def write(self, job: "ExportJob", target: Path) -> "ExportReport":
        """Write a result into a file or an empty folder. Raises StreamReconError, or OSError for system errors."""
        module, function = self.writer.split(".")
        return cast(Writer, getattr(import_module(f"stream_recon.app.export.{module}"), function))(job, target)


MESH_OFFER = (".glb", ".ply", ".obj")
"""With textures first; `--format mesh` without a target writes what most programs read."""
CLOUD = "frames points confidence voxel"
"""Options of formats with points."""
FORMATS = {
    f.name: f
    for f in (
        Format("mesh", "Mesh", "mesh.write_mesh", "frames faces up box", (".ply", ".obj", ".glb"), MESH_OFFER, True),
        Format("glb", "Points and cameras", "glb.write_scene", f"{CLOUD} up box", (".glb",), in_viewer=True),
        Format("html", "Page to share", "page.write_page", f"{CLOUD} box", (".html",), in_viewer=True),
        Format("colmap", "COLMAP", "colmap.write_colmap", "frames max_side dense confidence voxel", in_viewer=True),
        Format("transforms", "nerfstudio", "pose_formats.write_transforms", f"{CLOUD} max_side"),
        Format("trajectory", "Trajectory", "pose_formats.write_trajectory", "frames"),
        Format("depth", "Depth images", "depth.write_depth_images", "frames max_side"),
        Format("rrd", "Rerun", "rerun_log.write_recording", f"{CLOUD} box", (".rrd",)),
        Format("mcap", "Foxglove", "robot_recordings.write_mcap", "frames confidence voxel", (".mcap",)),
        Format("ros2bag", "ROS 2 bag", "robot_recordings.write_ros2_bag", "frames confidence voxel"),
        Format("splats", "Gaussian splats", "splats.write_splats_file", "box", (".ply", ".spz"), web_suffixes=()),
    )
}
"""In the order in which pages offer them."""


def concerned(option: str) -> str:
    """The names of the formats that an option concerns, for people."""
    return ", ".join(form.name for form in FORMATS.values() if form.concerns(option))


def default_target(folder: Path, form: Format) -> Path:
    """``OUT-NAME``, ``OUT.glb`` or ``OUT-mesh.ply`` next to the result folder, in which a run may replace files."""
    resolved = folder.resolve()
    suffix = form.suffixes[0] if form.suffixes else ""
    return resolved.with_name(resolved.name + (suffix if suffix == f".{form.name}" else f"-{form.name}{suffix}"))


def export(
    folder: Path,
    name: str,
    target: Path | None = None,
    options: "ExportOptions | None" = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> "tuple[Path, ExportReport]":
    """Export a result folder, which a run may still be writing to.

    A folder gets a README.txt, and a file ``X.glb`` an ``X.glb.README.txt`` next to it.

    Args:
        name: a format of `FORMATS`.
        target: file or folder, by the format; None: `default_target`.
        overwrite: replace an earlier export.
        progress: called with the number of frames done and their total; an exception from it ends the export.

    Returns the target and the report, which warns of options without effect. Raises StreamReconError: nothing to
    export, no disk space, or other files at ``target``; nothing is written then.
    """
    from stream_recon.app.export import target as targets
    from stream_recon.app.export.job import ExportJob, ExportOptions
    from stream_recon.app.result.folder import read_result

    form, options = FORMATS[name], options or ExportOptions()
    target = target or default_target(folder, form)
    if options.box is not None and not form.concerns("box"):
        raise ConfigError(f"--box cuts {concerned('box')}, not {name}")
    if form.suffixes and target.suffix.lower() not in form.suffixes:
        raise ConfigError(f"-o {target}: for --format {name} use NAME{' or NAME'.join(form.suffixes)}")
    targets.check_target(target, overwrite, is_file=bool(form.suffixes))
    result = read_result(folder)
    job = ExportJob(result, options, progress)
    job.box_planes()  # refused before anything is done
    if not form.suffixes:
        with targets.staged_folder(target, overwrite) as part:
            report = form.write(job, part)
            write_new(part / targets.README_NAME, targets.readme(name, result, report))
    else:
        readme_path = target.with_name(f"{target.name}.{targets.README_NAME}")
        targets.check_readme(readme_path)
        with targets.staged_file(readme_path, overwrite=True) as text, targets.staged_file(target, overwrite) as part:
            report = form.write(job, part)
            write_new(text, targets.readme(name, result, report))
            readme_path.unlink(missing_ok=True)  # a kill from here on leaves no text about another file
    without = [option for option in options.changed if not form.concerns(option)]
    report.warnings += [f"--{option.replace('_', '-')} has no effect on --format {name}" for option in without]
    return target, report
