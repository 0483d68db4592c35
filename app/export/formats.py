"""The formats by name, and how an export is carried out."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.export.colmap import write_colmap
from stream_recon.app.export.depth import write_depth_images
from stream_recon.app.export.glb import write_scene
from stream_recon.app.export.job import ExportOptions, Job, Told
from stream_recon.app.export.readme import readme
from stream_recon.app.export.target import README_NAME, check_target, staged_file, staged_folder
from stream_recon.app.export.trajectory import write_trajectory
from stream_recon.app.export.transforms import write_transforms
from stream_recon.app.output.folder import read_result
from stream_recon.configs.errors import ConfigError

Writer = Callable[[Job, Path], Told]


@dataclass(frozen=True)
class Format:
    """One form of export."""

    name: str
    write: Writer
    suffix: str | None = None
    """Of the one file that it makes; None: it makes a folder."""


FORMATS = {
    f.name: f
    for f in (
        Format("trajectory", write_trajectory),
        Format("depth", write_depth_images),
        Format("transforms", write_transforms),
        Format("colmap", write_colmap),
        Format("glb", write_scene, ".glb"),
    )
}


def default_target(folder: Path, form: Format) -> Path:
    """``OUT-NAME`` or ``OUT.SUFFIX`` beside the result folder, whose own files a run may replace."""
    whole = folder.resolve()
    return whole.with_name(whole.name + (form.suffix or f"-{form.name}"))


def export(
    folder: Path,
    name: str,
    target: Path | None = None,
    options: ExportOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Path, Told]:
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
    if form.suffix is not None and target.suffix.lower() != form.suffix:
        raise ConfigError(f"-o {target}: a file of --format {name} is called NAME{form.suffix}")
    check_target(target, overwrite, is_file=form.suffix is not None)
    result = read_result(folder)
    job = Job(result, options or ExportOptions(), progress)
    if form.suffix is None:
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
