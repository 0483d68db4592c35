"""Commands ``export``, ``render`` and ``convert``: files for other programs."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stream_recon.app.cli.console import DONE, PlainConsole, reported, result_consoles
from stream_recon.app.cli.options import Confidence, Folder, Overwrite, Voxel, option
from stream_recon.app.export.formats import FORMATS, concerned, export
from stream_recon.configs.errors import ConfigError, OutputError
from stream_recon.configs.schema import points_overrides

if TYPE_CHECKING:
    from stream_recon.app.export.render.film import Painter

    FormatName = str
else:
    FormatName = Literal[tuple(FORMATS)]

MIN_SIDE, MAX_SIDE = 16, 7680
"""Pixels of a video's side: encoders take no less, and 8K is the largest that players show."""


@reported
def export_command(
    folder: Folder,
    format: Annotated[FormatName, option("; ".join(f"{form.name}: {form.title}" for form in FORMATS.values()) + ".")],
    output: Annotated[
        Path | None, option("Folder or file; default: named after OUT.", "--output", "-o", metavar="TARGET")
    ] = None,
    overwrite: Overwrite = False,
    frames: Annotated[
        str | None,
        option("Default: all for trajectory and depth, keyframes for the others.", metavar="keyframes|all|N"),
    ] = None,
    max_side: Annotated[
        int | None, option("Longer side of images and upsampled depth; default: as in the source.", min=16)
    ] = None,
    points: Annotated[int, option(f"Most points, in {concerned('points')}.", min=1)] = 1_000_000,
    faces: Annotated[int, option(f"Most triangles, about, in {concerned('faces')}.", min=100)] = 500_000,
    up: Annotated[
        Literal["auto", "keep"], option("Up axis of GLB files: estimated, or that of the first camera.")
    ] = "auto",
    dense: Annotated[
        int | None,
        option(
            f"{concerned('dense')}: most points from depth maps, and dense depth maps; default: 0, or 100000 without "
            "tracks.",
            min=0,
        ),
    ] = None,
    confidence: Confidence = None,
    voxel: Voxel = None,
    box: Annotated[
        str | None,
        option(
            f"{concerned('box')}: only what is inside. subject: what the cameras look at from around it. Or borders in "
            "axes of GLB files (y up), then degrees of turn about y; the page shows those of its box.",
            metavar="subject|X0,X1,Y0,Y1,Z0,Z1[,TURN]",
        ),
    ] = None,
) -> int:
    """Write a result for other programs.

    A README.txt in the export states units, axes and coordinate frame. Images are read from the source again, or else
    from the result. An export of a run in progress contains the frames so far, and appears only when it is complete.
    """
    from stream_recon.app.cli.progress import step_bars
    from stream_recon.app.export.job import ExportOptions

    selection = points_overrides(confidence, voxel)
    options = ExportOptions(
        frames,
        max_side,
        points,
        faces,
        up,
        dense,
        selection.get("points.confidence"),
        selection.get("points.voxel"),
        box,
    )
    out, err = result_consoles()
    with step_bars(out, err) as show:
        progress = partial(show, "frames")
        target, report = export(folder, format, output, options, overwrite=overwrite, progress=progress)
    for warning in report.warnings:
        err.print(f"warning: {warning}", soft_wrap=True)
    out.print(f"{target}: {report.summary}")
    return DONE


@reported
def render_command(
    folder: Folder,
    video: Annotated[Path, typer.Argument(metavar="VIDEO.mp4", help="The video to write.")],
    camera_path: Annotated[
        Literal["trajectory", "orbit", "top-down"],
        option("Along the camera's trajectory, once around the scene, or from above while it grows."),
    ] = "trajectory",
    overwrite: Annotated[bool, option("Replace an existing file.", "--overwrite")] = False,
    seconds: Annotated[float, option("Length of the video.", min=0.1, max=3600)] = 12.0,
    fps: Annotated[float, option("Frame rate of the video.", min=1, max=120)] = 30.0,
    size: Annotated[str, option("Size of the video in pixels.", metavar="WxH")] = "1920x1080",
    points: Annotated[int, option("Most points that are drawn, about.", min=1)] = 1_500_000,
    show: Annotated[
        Literal["points", "splats"], option("What is drawn; splats need an NVIDIA GPU and gsplat.")
    ] = "points",
) -> int:
    """Render a video of a flight through a result's points or Gaussian splats.

    It is written in H.264 where ffmpeg or OpenCV can do that.
    """
    from stream_recon.app.cli.progress import step_bars
    from stream_recon.app.export.render.film import FilmOptions, render_film

    options = FilmOptions(camera_path, _size(size), seconds, fps, points)
    paint = _splat_painter(folder) if show == "splats" else None
    out, err = result_consoles()
    with step_bars(out, err) as bar:
        summary = render_film(folder, video, options, overwrite=overwrite, progress=bar, paint=paint)
    out.print(f"{video}: {summary}")
    return DONE


def _splat_painter(folder: Path) -> "Painter":
    """What draws a result's splats. Raises StreamReconError: there are none, or no GPU."""
    from stream_recon.app.export.job import ExportJob
    from stream_recon.app.export.splats import job_splats
    from stream_recon.app.result.folder import read_result
    from stream_recon.app.splat.rasterizer import require_gsplat

    splats = job_splats(ExportJob(read_result(folder)))
    require_gsplat()
    import torch

    from stream_recon.app.splat.film import splat_painter

    return splat_painter(splats, torch.device("cuda"))


def _size(text: str) -> tuple[int, int]:
    sides = text.split("x")
    if len(sides) != 2 or not all(
        side.isascii() and side.isdecimal() and MIN_SIDE <= int(side) <= MAX_SIDE for side in sides
    ):
        raise ConfigError(f"--size {text}: use WxH, such as 1920x1080")
    width, height = (int(side) // 2 * 2 for side in sides)  # encoders require even numbers
    return width, height


@reported
def convert_command(
    checkpoint: Annotated[Path, typer.Argument(metavar="IN.pt", help="A published LingBot-Map checkpoint.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="The file to write.")],
    overwrite: Annotated[bool, option("Replace an existing file.", "--overwrite")] = False,
) -> int:
    """Convert a published checkpoint into a file for --weights.

    Only tensors are read from the checkpoint, no pickled code.
    """
    if target.exists() and not overwrite:
        raise OutputError(f"{target} exists: use --overwrite, or another OUT.safetensors")
    if target.suffix != ".safetensors":
        raise OutputError(f"{target}: the name of a weights file ends in .safetensors")

    from stream_recon.models.weights import convert_checkpoint

    count = convert_checkpoint(checkpoint, target)
    PlainConsole(soft_wrap=True).print(f"{count} tensors written to {target}")
    return DONE
