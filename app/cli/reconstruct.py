"""Command ``reconstruct``, the default one: a source reconstructed into a folder, with a live viewer."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

import typer

from stream_recon.app.cli import options as shared
from stream_recon.app.cli.console import INTERRUPTED, Terminal, at_terminal, reported
from stream_recon.app.cli.view import ViewerChoice

if TYPE_CHECKING:
    from stream_recon.app.result.verdict import Level
    from stream_recon.app.run.options import RunJob

MAX_NAME = 80
"""Characters of the name of a default result folder; a source's name may be longer than file systems allow."""


def _print_version(is_set: bool) -> None:
    if is_set:
        from importlib.metadata import version

        typer.echo(f"stream-recon {version('stream-recon')}")
        raise typer.Exit


@reported
def reconstruct_command(
    source: Annotated[
        str,
        typer.Argument(
            help="Video, folder of images, ROS recording (.bag, .mcap), camera number or address (rtsp://, zenoh://)."
        ),
    ],
    stride: shared.Stride = 1,
    fps: Annotated[
        float | None, shared.option("Take frames at this rate; for images: their rate.", panel=shared.INPUT)
    ] = None,
    start: Annotated[float | None, shared.option("Start at this second of the source.", panel=shared.INPUT)] = None,
    end: Annotated[float | None, shared.option("Stop before this second of the source.", panel=shared.INPUT)] = None,
    max_frames: shared.MaxFrames = None,
    topic: Annotated[
        str | None, shared.option("Topic of a ROS recording; of a rig several, by commas.", panel=shared.INPUT)
    ] = None,
    masks: Annotated[
        Path | None,
        shared.option(
            "Folder of masks named like the images, or by frame number. Black pixels are left out.", panel=shared.INPUT
        ),
    ] = None,
    rig: Annotated[
        Path | None,
        shared.option(
            "Rig of several cameras: Kalibr's camchain, COLMAP's rig_config.json, EuRoC's mav0 or KITTI's calib.txt; "
            "the source is the folder of their folders or films, or a ROS recording. tf: as the recording states.",
            panel=shared.INPUT,
        ),
    ] = None,
    mask_sky: shared.MaskSky = False,
    output: Annotated[
        Path | None,
        shared.option("Result folder; default: NAME-recon, numbered.", "--output", "-o", panel=shared.OUTPUT),
    ] = None,
    overwrite: shared.Overwrite = False,
    resume: Annotated[bool, shared.option("Continue an interrupted run.", "--resume", panel=shared.OUTPUT)] = False,
    keep_depth: Annotated[
        Literal["all", "keyframes", "none"], shared.option("Frames whose depth files are kept.", panel=shared.OUTPUT)
    ] = "all",
    max_disk: Annotated[
        str | None,
        shared.option("Size of the result, such as 20GB; beyond it the oldest depth files go.", panel=shared.OUTPUT),
    ] = None,
    publish: shared.Publish = None,
    mesh: shared.Mesh = True,
    splat: shared.Splat = False,
    keep_map: shared.KeepMap = True,
    confidence: shared.Confidence = None,
    voxel: shared.Voxel = None,
    dense: shared.Dense = "on",
    dense_side: shared.DenseSide = shared.DENSE_SIDE,
    intrinsics: Annotated[
        str | None,
        shared.option(
            "Known camera: fx,fy,cx,cy[,k1,k2,p1,p2[,k3]] in pixels, a calibration file, or exif.",
            panel=shared.CAMERA,
            metavar="CAMERA",
        ),
    ] = None,
    preset: shared.PresetName = "small",
    weights: shared.Weights = None,
    device: shared.Device = "auto",
    attention: shared.Attention = "auto",
    cache: shared.Cache = "full",
    precision: shared.Precision = "auto",
    keyframes: shared.Keyframes = None,
    mapping: shared.Mapping = "full",
    scale_from: shared.ScaleFrom = None,
    poses: shared.Poses = None,
    onto: Annotated[
        Path | None,
        shared.option(
            "Put the result into the world of another one of the same place.",
            "--onto",
            panel=shared.MAPPING,
            metavar="OUT",
        ),
    ] = None,
    viewer: Annotated[bool, shared.option("Serve a live view.", "--viewer/--no-viewer", panel=shared.VIEWER)] = True,
    host: shared.Host = "127.0.0.1",
    port: shared.Port = None,
    token: shared.Token = True,
    public_address: shared.PublicAddress = None,
    keep_open: Annotated[
        bool,
        shared.option("Keep the viewer open at the end; always at a terminal.", "--keep-open", panel=shared.VIEWER),
    ] = False,
    reconnect: Annotated[
        float, shared.option("Seconds to wait for a lost camera or stream; 0: end.", panel=shared.LIVE)
    ] = 120.0,
    as_json: Annotated[
        bool, shared.option("Print the result as one JSON object on stdout.", "--json", panel=shared.OUTPUT)
    ] = False,
    progress: Annotated[
        Literal["bars", "json"], shared.option("Progress on stderr: bars, or lines of JSON.", panel=shared.OUTPUT)
    ] = "bars",
    log_level: Annotated[
        Literal["info", "warning", "error"], shared.option("Least level of what is printed.", panel=shared.OUTPUT)
    ] = "info",
    fail_on: Annotated[
        Literal["doubtful", "failed"] | None,
        shared.option("Exit with code 1 where the verdict is this or worse.", "--fail-on", panel=shared.OUTPUT),
    ] = None,
    version: Annotated[
        bool, shared.option("Print the version.", "--version", is_eager=True, callback=_print_version)
    ] = False,
) -> int:
    """Reconstruct camera poses, depth and a 3D point cloud from a video, frame by frame."""
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.run.options import RunJob, RunOptions
    from stream_recon.app.sources.frame_choice import FrameChoice, rig_text

    camera = shared.source_camera(intrinsics)
    mask_folder = None if masks is None else str(masks.absolute())
    options = RunOptions(
        FrameChoice(stride, fps, start, end, max_frames, camera, mask_folder, topic, rig_text(rig)),
        ModelChoice(preset, weights, device, attention, keyframes, cache, confidence, voxel, precision),
        keep_depth=keep_depth,
        max_disk=max_disk,
        mesh=mesh,
        splat=splat,
        keep_map=keep_map,
        dense_side=dense_side if dense == "on" else None,
        mapping=mapping,
        mask_sky=mask_sky,
        scale_from=scale_from,
        poses=poses,
        onto=onto,
        reconnect=reconnect,
        publish=tuple(publish or ()),
        publish_token=token,
    )
    view = ViewerChoice(host, port, keep_open or at_terminal(), token, public_address) if viewer else None
    folder = output or default_output(source, overwrite or resume)
    job = RunJob(source, options, folder, overwrite, resume)
    return run_job(job, view, Terminal(as_json, progress, log_level), fail_on)


def run_job(
    job: "RunJob",
    view: ViewerChoice | None,
    terminal: Terminal = Terminal(),  # noqa: B008 - immutable
    fail_on: "Level | None" = None,
    on_finished: Callable[[Path], None] = lambda folder: None,
) -> int:
    """Reconstruct a source; returns the exit code. Raises StreamReconError.

    Args:
        fail_on: verdict from which on the exit code is 1; None: none.
        on_finished: called with the complete result, before the viewer stays open.
    """
    if _may_exist(job.spec) and not job.resume:
        # Imports and weights take seconds: a user should see at once that something happens.
        terminal.consoles()[0].print("loading the network")
    from stream_recon.app.cli.ending import end_code
    from stream_recon.app.cli.reconstruct_run import TerminalRun
    from stream_recon.app.stages.source_run import reconstruct_source

    if not reconstruct_source(TerminalRun(job, view, terminal, on_finished)):
        return INTERRUPTED
    return end_code(job.folder, terminal, fail_on)


def default_output(spec: str, overwrite: bool) -> Path:
    """``NAME-recon`` in the current folder; where it exists, the next free number unless ``overwrite`` is set."""
    if "://" in spec:
        name = urlsplit(spec).hostname or "stream"
    elif spec.isdecimal() and not Path(spec).exists():
        name = f"camera-{spec}"
    else:
        path = Path(spec).expanduser().resolve()
        name = path.name if _is_folder(path) else path.stem
    base = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:MAX_NAME] or "stream"
    folder, number = Path(f"{base}-recon"), 1
    while folder.exists() and not overwrite:
        number += 1
        folder = Path(f"{base}-recon-{number}")
    return folder


def _may_exist(spec: str) -> bool:
    """Whether a source is worth loading the network for; found out without imports."""
    with suppress(OSError, RuntimeError):  # such as a name that is too long, or an unknown user
        return "://" in spec or spec.isdecimal() or Path(spec).expanduser().exists()
    return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long
        return False
