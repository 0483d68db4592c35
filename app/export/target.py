"""Target of an export: complete under its name or absent, without removing other files. Its README.txt."""

import logging
import os
import re
import secrets
import shutil
import textwrap
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stream_recon.app.core.input_file import read_file
from stream_recon.app.core.output_file import give_name, replacing
from stream_recon.app.export.job import ExportReport
from stream_recon.app.result.files import output_errors
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.metric_scale import EAST_NORTH_UP, FIRST_CAMERA, OF_FILE, MetricScale
from stream_recon.app.result.run_record import REFINEMENT, RUN_NAME, program_version
from stream_recon.configs.errors import OutputError

log = logging.getLogger(__name__)

README_NAME = "README.txt"
README_TITLE = "stream-recon export"
EXPORT_FILES = re.compile(
    r"README\.txt|images/frame_\d+\.jpg|(depth|masks|confidence)/frame_\d+\.png|sparse/0/(cameras|images|points3D|rigs|frames)\.bin"
    r"|stereo/depth_maps/frame_\d+\.jpg\.geometric\.bin|fused\.ply|transforms\.json|points\.ply|cameras\.csv|trajectory_tum\.txt|trajectory_kitti\.txt|times_kitti\.txt"
    r"|trajectory_euroc\.csv|bag/(metadata\.yaml|bag\.mcap)"
)
"""Names of all files in folders of exports; with any other file, a folder is not replaced."""
LEFT_SECONDS = 86_400.0
"""Time without a change after which an unfinished export is one that was killed."""
RESULT_FILES = frozenset(
    {"points.ply", "cameras.json", "trajectory.txt", "tracks.npz", "map.npz", "splats.ply", RUN_NAME}
)
"""Names of a result's files, which no export replaces."""


def check_target(target: Path, overwrite: bool, *, is_file: bool) -> None:
    """Check that an export may be written to ``target``; puts back what a killed export had moved from there.

    Raises OutputError: something is there, and is not an earlier export or ``overwrite`` is not given.
    """
    if target.name in RESULT_FILES and (target.absolute().parent / RUN_NAME).is_file():
        raise OutputError(f"{target} is a file of the result itself: choose another -o TARGET")
    with output_errors(target):
        _see_left_behind(target)
        if not target.exists() and not target.is_symlink():
            if not target.absolute().parent.is_dir():
                raise OutputError(f"{target} cannot be written: there is no folder {target.absolute().parent}")
        elif is_file != target.is_file():
            raise OutputError(f"{target} is a {'folder' if is_file else 'file'}: choose another -o TARGET")
        elif is_file or any(target.iterdir()):
            if not overwrite:
                raise OutputError(f"{target} exists: use --overwrite, or another -o TARGET")
            if not is_file:
                _check_earlier_export(target)


def _check_earlier_export(folder: Path) -> None:
    """Raises OutputError where a folder is no export, or has other files."""
    if not _is_own_readme(folder / README_NAME):
        raise OutputError(f"{folder} is no earlier export: choose another -o TARGET")
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if (not path.is_dir() or path.is_symlink()) and not EXPORT_FILES.fullmatch(name):
            raise OutputError(f"{path} was not written by an export: move it, or choose another -o TARGET")


def check_readme(path: Path) -> None:
    """Raises OutputError where the README of an exported file would replace one of the user."""
    with output_errors(path):
        if path.is_symlink() or (path.exists() and not _is_own_readme(path)):
            raise OutputError(f"{path} was not written by an export: move it, or choose another -o TARGET")


def _is_own_readme(path: Path) -> bool:
    return path.is_file() and read_file(path).startswith(README_TITLE.encode())


@contextmanager
def staged_folder(target: Path, overwrite: bool) -> Iterator[Path]:
    """A new folder that becomes ``target`` when the block ends, and is removed when it raises.

    Raises OutputError: see `check_target`; or a system error such as a full disk.
    """
    check_target(target, overwrite, is_file=False)
    part, old = _sibling(target, "part"), _sibling(target, "old")
    with output_errors(target):
        try:
            part.mkdir()
            yield part
            if target.exists():
                target.replace(old)
            part.replace(target)
        finally:
            if old.exists() and not target.exists():  # also by Ctrl-C
                old.replace(target)
            for each in (part, old):
                shutil.rmtree(each, ignore_errors=True)


@contextmanager
def staged_file(target: Path, overwrite: bool) -> Iterator[Path]:
    """A path to write to, which becomes ``target`` when the block ends, and is removed when it raises.

    Raises OutputError: as `staged_folder`.
    """
    check_target(target, overwrite, is_file=True)
    part = _sibling(target, "part")
    with output_errors(target):
        try:
            yield part
            give_name(part, target, overwrite=overwrite)
        finally:
            part.unlink(missing_ok=True)


def _sibling(target: Path, kind: str) -> Path:
    """A hidden path in the folder of ``target``, on the same file system."""
    # A path that ends in ".." or "." has no name. The suffix comes last because writers choose their format by it.
    target = target if target.name else target.resolve()
    return target.with_name(f".{target.stem}.{secrets.token_hex(8)}.{kind}{target.suffix}")


def _see_left_behind(target: Path) -> None:
    """Put back or name what killed exports to this target left; remove it once no export can still be writing to it."""
    target = target if target.name else target.resolve()
    ours = re.compile(rf"\.{re.escape(target.stem)}\.[0-9a-f]{{16}}\.(part|old)(\.part)?{re.escape(target.suffix)}")
    with suppress(OSError):
        for path in target.parent.iterdir():
            left = ours.fullmatch(path.name)
            if left is None or path.is_symlink():
                continue
            if left[1] == "old" and not os.path.lexists(target):
                path.replace(target)
                log.warning("%s is put back: an export that would have replaced it was killed", target)
            elif time.time() - max(each.lstat().st_mtime for each in (path, *path.rglob("*"))) < LEFT_SECONDS:
                log.warning("%s is of an export that was killed or goes on; it is removed after a day", path)
            else:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def pack(folder: Path, target: Path) -> Path:
    """Pack an export's folder into a ZIP file, which is returned. Raises OSError."""
    with replacing(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, path.relative_to(folder.parent))
    return target


AXES = {
    FIRST_CAMERA: "World: the axes of the first camera, up to the error of its own pose: x right, y down, z forward.",
    EAST_NORTH_UP: "World: x east, y north, z up.",
    OF_FILE: "World: the axes of the track file that the scale comes from.",
}
OWN_UNIT = (
    "Unit: the reconstruction's own, since a single camera does not observe metric scale. The surfaces of the first "
    "frames are at a distance of about 1."
)


def readme(form: str, result: ResultFolder, report: ExportReport) -> str:
    """Text of the README.txt of an export to the format ``form``."""
    run, cameras = result.run, result.cameras
    lines = [
        f"{README_TITLE}: {form}",
        "",
        f"Exported by stream-recon {program_version()} from {result.folder.resolve().name} (source: {run['source']}).",
        report.summary,
        "",
        *_world(result.metric_scale),
        *report.notes,
    ]
    if isinstance(run.get(REFINEMENT), dict):
        lines.append("Poses and depth were refined by bundle adjustment.")
    segments = 1 + max((camera.segment for camera in cameras), default=0)
    if segments > 1:
        lines.append(f"The source has {segments} segments without overlap; their relative poses are not known.")
    if run["interrupted"]:
        lines.append("The run was interrupted or not finished; the export has the frames up to then.")
    lines += [f"Note: {warning}" for warning in report.warnings]
    return "\n".join(textwrap.fill(line, 100) if line else "" for line in lines) + "\n"


def _world(metres: MetricScale | None) -> list[str]:
    if metres is None:
        return [AXES[FIRST_CAMERA], OWN_UNIT]
    error = "unknown" if metres.error is None else f"about {100 * metres.error:.2g} %"
    lines = [AXES[metres.world], f"Unit: metres, by {metres.given} ({metres.how}); error of the scale: {error}."]
    if metres.origin is not None and metres.world == EAST_NORTH_UP:
        latitude, longitude, height = metres.origin
        lines.append(f"Origin: latitude {latitude:.7f}, longitude {longitude:.7f} degrees, height {height:.2f} m.")
    elif metres.origin is not None:
        x, y, z = metres.origin
        lines.append(f"Origin: ({x:.0f}, {y:.0f}, {z:.0f}) of that file's coordinates.")
    return lines
