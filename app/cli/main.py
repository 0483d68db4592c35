"""The command line. Only what parses options is imported here: `--help` answers at once, torch comes later."""

import functools
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Literal, NoReturn, ParamSpec

import typer

from stream_recon.app.cli.console import BAD_INPUT, INTERRUPTED
from stream_recon.configs.errors import ConfigError, InputError, StreamReconError
from stream_recon.configs.schema import AttentionChoice, CacheChoice

P = ParamSpec("P")

LONGEST_LINE = 600

EPILOG = (
    "Commands are words: 'stream-recon view OUT' shows a result folder, 'stream-recon refine OUT' refines one by "
    "geometry, 'stream-recon scale OUT WHAT' brings one to metres, 'stream-recon eval SEQUENCE...' measures "
    "against ground truth, 'stream-recon batch ROOT' does every scene under a folder, 'stream-recon datasets' lists "
    "what it recognises, 'stream-recon plan VIDEO --memory 8GB' prints what a GPU's memory is best spent on, "
    "'stream-recon export OUT --format F' writes a result for other programs, "
    "'stream-recon render OUT flight.mp4' films a flight through it, "
    "'stream-recon convert IN.pt OUT.safetensors' makes weights of a published checkpoint; 'stream-recon view --help' "
    "says more. A word is a command only as the first argument; for a video or folder that "
    "is called like one write ./view. Exit codes: 0 done, 2 bad input, 130 stopped by Ctrl-C "
    "(what was finished is kept)."
)


def reported(command: Callable[P, int]) -> Callable[P, None]:
    """The one place where errors for users become a line on stderr and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        _print_any_name()
        try:
            with _terminable():
                code = command(*args, **kwargs)
        except StreamReconError as error:
            _say(f"error: {_shortened(' '.join(str(error).split()))}")
            code = BAD_INPUT
        except MemoryError:
            _say("error: out of memory")
            code = BAD_INPUT
        except OSError as error:
            # What has no place of its own, such as a limit on open files.
            _say(f"error: the system does not let it go on: {_shortened(' '.join(str(error).split()))}")
            code = BAD_INPUT
        except ImportError as error:
            _say(f"error: the program cannot be loaded, for want of memory or by a broken installation: {error}")
            code = BAD_INPUT
        except KeyboardInterrupt:
            _say("stopped")
            code = INTERRUPTED
        raise typer.Exit(code)

    return run


@contextmanager
def _terminable() -> Iterator[None]:
    """Within the block SIGTERM is what Ctrl-C is."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # outside the main thread there are no signals to be had
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    # Whoever read our errors may be gone.
    with suppress(OSError, ValueError):
        typer.echo(f"stream-recon: {line}", err=True)


def _shortened(line: str) -> str:
    """A line fit for a terminal: a name may have thousands of characters."""
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"


def _print_any_name() -> None:
    """Names of files need not be text; let what the terminal's encoding lacks be printed as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _at_terminal() -> bool:
    # Service managers close it.
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"stream-recon {version('stream-recon')}")
        raise typer.Exit


Preset = Annotated[str, typer.Option(help="A preset that ships with the program, or a TOML file.")]
Weights = Annotated[Path | None, typer.Option(help="A .safetensors file that fits the preset; else the embedded one.")]
Device = Annotated[Literal["auto", "cuda", "cpu"], typer.Option(help="Where the network runs.")]
Attention = Annotated[AttentionChoice, typer.Option(help="Attention kernel; auto: the fastest, timed once on a GPU.")]
Cache = Annotated[
    CacheChoice,
    typer.Option(help="Past frames in full precision, or in fp8 at half the memory (GPUs from Ada on)."),
]
Keyframes = Annotated[
    str | None,
    typer.Option(help="flow (by apparent motion), every, or a number N for every N-th frame.", metavar="flow|every|N"),
]
Mapping = Annotated[
    Literal["full", "stream", "off"],
    typer.Option(
        help="stream: correct poses by what the images' own points say while frames come in; full: that, and refine "
        "everything at the end of a file; off: the network alone."
    ),
]
Host = Annotated[
    str, typer.Option(help="Address that the viewer listens on; 0.0.0.0 lets other machines in, by an address to keep.")
]
Token = Annotated[
    bool,
    typer.Option("--token/--no-token", help="For other machines than this: ask for the token of the printed address."),
]
KNOWN_CAMERA = (
    "The camera, where it is known: fx,fy,cx,cy[,k1,k2,p1,p2[,k3]] in pixels, or a file of COLMAP, nerfstudio, ROS, "
    "Kalibr or OpenCV. Frames are undistorted as they are read, and its focal length is kept"
)
Intrinsics = Annotated[str | None, typer.Option(help=f"{KNOWN_CAMERA}. Of all scenes.", metavar="CAMERA")]
Calibrated = Annotated[
    bool, typer.Option("--calibrated", help="Use the camera that each scene's own files say, as --intrinsics would.")
]
ScaleFrom = Annotated[
    str | None,
    typer.Option(
        help="Bring the result to metres at its end: marker:METRES (side of a printed ArUco or AprilTag marker), "
        "frames:A,B,METRES (between the cameras of two frames), height:METRES (of the camera above the ground), "
        "track:FILE[@SECONDS] (GPX, CSV or TUM positions), exif (GPS of photographs).",
        metavar="WHAT",
    ),
]
MaskSky = Annotated[
    bool, typer.Option("--mask-sky", help="Leave the sky out likewise: where the network sees next to nothing.")
]
Reconnect = Annotated[
    float, typer.Option(help="Seconds that a camera or stream which broke off is waited for; 0: its end is the end.")
]
Port = Annotated[int, typer.Option(help="Port of the viewer.", min=0, max=65535)]


@reported
def reconstruct_command(
    source: Annotated[
        str,
        typer.Argument(
            help="Video file, folder of images, recording of ROS (.bag, .mcap), camera number (0), or address (rtsp://)"
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Result folder; else NAME-recon here, numbered if that exists."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier result in that folder.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the result in that folder, which was cut off.")
    ] = False,
    stride: Annotated[int, typer.Option(help="Take every n-th frame.")] = 1,
    fps: Annotated[float | None, typer.Option(help="Take frames at this rate; for images: their rate.")] = None,
    start: Annotated[float | None, typer.Option(help="Begin at this second of the source.")] = None,
    end: Annotated[float | None, typer.Option(help="Stop before this second of the source.")] = None,
    max_frames: Annotated[int | None, typer.Option(help="Stop after so many frames.")] = None,
    intrinsics: Annotated[
        str | None,
        typer.Option(
            help=f"{KNOWN_CAMERA}; or exif: the focal length that photographs and films of phones say themselves.",
            metavar="CAMERA",
        ),
    ] = None,
    masks: Annotated[
        Path | None,
        typer.Option(
            help="A folder of mask images, called like the frames' images or by their numbers in a video: what is "
            "black is left out of depth, points, tracks and exports.",
        ),
    ] = None,
    mask_sky: MaskSky = False,
    topic: Annotated[str | None, typer.Option(help="Topic of images in a recording of ROS that has several.")] = None,
    scale_from: ScaleFrom = None,
    reconnect: Reconnect = 120.0,
    keep_depth: Annotated[
        Literal["all", "keyframes", "none"],
        typer.Option(help="Frames whose depth files are kept; poses and points are."),
    ] = "all",
    max_disk: Annotated[
        str | None, typer.Option(help="Of the result, such as 20GB: beyond it the oldest depth files are removed.")
    ] = None,
    preset: Preset = "small",
    weights: Weights = None,
    device: Device = "auto",
    attention: Attention = "auto",
    cache: Cache = "full",
    keyframes: Keyframes = None,
    mapping: Mapping = "full",
    viewer: Annotated[bool, typer.Option("--viewer/--no-viewer", help="Serve a live view for the browser.")] = True,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    token: Token = True,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Keep the viewer open at the end; at a terminal it always is.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> int:
    """Reconstruct camera poses, depth and a 3D point cloud from a video, frame by frame.

    Works with SOURCE alone. The viewer's address is printed first; results are written as they come.
    """
    from stream_recon.app.cli.reconstruct import reconstruct_source
    from stream_recon.app.cli.view import ViewerChoice
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.sources.calibration import EXIF, parse_camera
    from stream_recon.app.sources.frame_choice import FrameChoice

    # As numbers: the file may not be there any more when the source is read again.
    camera = intrinsics if intrinsics in (None, EXIF) else parse_camera(intrinsics).text()
    return reconstruct_source(
        source,
        output=output,
        overwrite=overwrite,
        resume=resume,
        frames=FrameChoice(
            stride, fps, start, end, max_frames, camera, None if masks is None else str(masks.absolute()), topic
        ),
        mask_sky=mask_sky,
        reconnect=reconnect,
        keep_depth=keep_depth,
        max_disk=max_disk,
        model=ModelChoice(preset, weights, device, attention, keyframes, cache),
        view=ViewerChoice(host, port, keep_open=keep_open or _at_terminal(), token=token) if viewer else None,
        mapping=mapping,
        scale_from=scale_from,
    )


@reported
def view_command(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Result folder of an earlier run")],
    host: Host = "127.0.0.1",
    port: Port = 8080,
    token: Token = True,
) -> int:
    """Show a finished (or interrupted) result in the browser until Ctrl-C."""
    from stream_recon.app.cli.view import ViewerChoice, view_folder

    return view_folder(folder, ViewerChoice(host, port, keep_open=True, token=token))


@reported
def refine_command(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Result folder of an earlier run")],
) -> int:
    """Refine a finished or interrupted result by geometry, again or for the first time.

    Begins from what the network gave, and reads the source's images again; where they are gone the result's own small
    ones serve. Ctrl-C leaves the result as it was.
    """
    from stream_recon.app.cli.refine import refine_folder

    return refine_folder(folder)


@reported
def scale_command(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Result folder of an earlier run")],
    what: Annotated[
        str,
        typer.Argument(
            metavar="WHAT", help="marker:METRES, frames:A,B,METRES, height:METRES, track:FILE[@SECONDS] or exif"
        ),
    ],
) -> int:
    """Bring a result to metres: cameras, depth, points, tracks, and with them all exports and the page.

    By a printed ArUco or AprilTag marker of a known side, seen from several places; by the distance between the cameras
    of two frames; by the camera's height above the ground; by a track of positions beside the video (GPX, CSV, TUM),
    whose axes the result then has; or by the GPS positions of photographs. run.json says the scale and its error. Given
    again, with anything else, the result follows the last one. Ctrl-C leaves the result as it was.
    """
    from stream_recon.app.cli.scale import scale_folder

    return scale_folder(folder, what)


@reported
def eval_command(
    sequences: Annotated[list[Path], typer.Argument(metavar="SEQUENCE...", help="Folders with rgb/ and ground truth")],
    stride: Annotated[int, typer.Option(help="Take every n-th frame.")] = 1,
    frames: Annotated[int | None, typer.Option(help="Take at most so many frames.", min=1)] = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file, too.")] = None,
    preset: Preset = "small",
    weights: Weights = None,
    device: Device = "auto",
    attention: Attention = "auto",
    cache: Cache = "full",
    keyframes: Keyframes = None,
    mapping: Mapping = "full",
    intrinsics: Intrinsics = None,
    calibrated: Calibrated = False,
) -> int:
    """Run on sequences with ground truth and print errors beside those of simple baselines."""
    from stream_recon.app.cli.evaluate import run
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.pipeline.process import memory_errors

    with memory_errors():
        return run(
            sequences,
            stride=stride,
            frames=frames,
            json_path=json,
            model=ModelChoice(preset, weights, device, attention, keyframes, cache),
            mapping=mapping,
            camera=_camera(intrinsics, calibrated),
        )


def _camera(intrinsics: str | None, calibrated: bool) -> str | None:
    """A known camera of scenes, as they take it. Raises ConfigError, InputError."""
    from stream_recon.app.datasets.scene import CALIBRATED
    from stream_recon.app.sources.calibration import parse_camera

    if calibrated and intrinsics is not None:
        raise ConfigError("use --intrinsics or --calibrated, not both")
    return CALIBRATED if calibrated else None if intrinsics is None else parse_camera(intrinsics).text()


@reported
def batch_command(
    root: Annotated[Path, typer.Argument(metavar="ROOT", help="Folder with scenes in it, or one video file")],
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder or address (s3://bucket/folder) for the results; else ROOT's name with -batch, here.",
            metavar="FOLDER|ADDRESS",
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Take all scenes as of this layout ('stream-recon datasets' lists them).")
    ] = None,
    stride: Annotated[int, typer.Option(help="Take every n-th frame of each scene.")] = 1,
    max_frames: Annotated[int | None, typer.Option(help="Take at most so many frames of each scene.")] = None,
    intrinsics: Intrinsics = None,
    calibrated: Calibrated = False,
    masks: Annotated[
        Path | None,
        typer.Option(
            help="Masks as for one video: a folder with a folder called like each scene, or the name of a folder "
            "within each scene.",
        ),
    ] = None,
    mask_sky: MaskSky = False,
    scale_from: Annotated[
        str | None,
        typer.Option(
            help="Bring each result to metres: marker:METRES, height:METRES or exif, as for one video; track:FOLDER "
            "with a track called like each scene (SCENE.gpx, .csv, .txt), or track:NAME of a file in each scene's "
            "folder.",
            metavar="WHAT",
        ),
    ] = None,
    preset: Preset = "small",
    weights: Weights = None,
    device: Device = "auto",
    attention: Attention = "auto",
    cache: Cache = "full",
    keyframes: Keyframes = None,
    mapping: Mapping = "full",
    workers: Annotated[
        int | None,
        typer.Option(help="Processes, each with the model loaded and its GPU or its share of the CPU; else one."),
    ] = None,
    streams: Annotated[
        int | None,
        typer.Option(
            help="Scenes at once through one network on each GPU, a frame of each in one step, decoded and written on "
            "all cores; with the embedded network on a GPU 16 unless there are --workers (--workers 1: one by one)."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Work on a Ray cluster, with --workers actors, else one a GPU. All nodes need ROOT and the output.",
            metavar="local|auto|ADDRESS",
        ),
    ] = None,
    split: Annotated[
        int,
        typer.Option(help="Cut each video into so many overlapping windows, shared out to the workers, then stitched."),
    ] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the scenes and their frames; run nothing.")] = False,
    compare: Annotated[
        Path | None, typer.Option(help="Print the figures beside those of another batch's summary.json.")
    ] = None,
) -> int:
    """Reconstruct every scene under a folder, measure where truth is known, and sum up.

    Leaves a result folder for each scene, summary.json, summary.csv and index.html. Given again, the command goes on
    where it was. Exit codes: 0 all done, 1 some scene failed, 2 bad input, 130 stopped by Ctrl-C.
    """
    from stream_recon.app.batch.jobs import EngineLoader
    from stream_recon.app.cli.batch import BatchOptions, run
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.sources.frame_choice import FrameChoice

    recorded = {
        "dataset": dataset,
        "stride": stride,
        "max_frames": max_frames,
        "device": device,
        "attention": attention,
        "cache": cache,
        "keyframes": keyframes,
        "split": split,
        "mapping": mapping,
    }
    camera = _camera(intrinsics, calibrated)
    recorded |= {"camera": camera} if camera else {}
    added = {"masks": None if masks is None else str(masks), "mask_sky": mask_sky, "scale_from": scale_from}
    recorded |= {name: value for name, value in added.items() if value}
    choice = FrameChoice(stride, max_frames=max_frames, camera=camera)
    options = BatchOptions(
        root, output, dataset, choice, mapping, split, workers, streams, ray, dry_run, compare, masks, mask_sky,
        scale_from,
    )  # fmt: skip
    return run(options, EngineLoader(ModelChoice(preset, weights, device, attention, keyframes, cache)), recorded)


@reported
def datasets_command() -> int:
    """List the layouts of data sets that 'stream-recon batch' recognises."""
    from stream_recon.app.cli.datasets import run

    return run()


@reported
def plan_command(
    source: Annotated[str, typer.Argument(help="Video file, folder of images, camera number (0), or address")],
    memory: Annotated[
        str | None, typer.Option(help="Of the GPU, such as 8GB or 8GiB; else what is free on this machine's.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="This preset or TOML file alone; else all that ship.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the first choice as a preset, for --preset FILE.", metavar="FILE.toml")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file if it exists.")] = False,
) -> int:
    """Print what fits in a GPU's memory for a source: preset, window, image size, expected frames/s and memory.

    Nothing is reconstructed, and no GPU is needed.
    """
    from stream_recon.app.cli.plan import run

    return run(source, memory=memory, preset=preset, write=write, overwrite=overwrite)


@reported
def convert_command(
    checkpoint: Annotated[Path, typer.Argument(metavar="IN.pt", help="A published LingBot-Map checkpoint")],
    target: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="The file to write")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace that file if it exists.")] = False,
) -> int:
    """Convert a published checkpoint into the format that --weights takes. Nothing but tensors is read from it."""
    from stream_recon.app.cli.convert import run

    return run(checkpoint, target, overwrite=overwrite)


@reported
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Result folder of a run, finished or not")],
    format: Annotated[
        Literal["trajectory", "depth", "transforms", "glb", "colmap", "mesh", "html", "rrd"],
        typer.Option(
            help="trajectory: TUM, KITTI, EuRoC; depth: 16-bit PNG; transforms: nerfstudio's transforms.json with "
            "images and depth; glb: points, cameras and path in one file; colmap: images and a sparse model; "
            "mesh: the surface as triangles, as -o NAME.ply, NAME.obj or NAME.glb; html: a page for "
            "any browser, without a server; rrd: a recording for Rerun."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder, or file; else named after OUT, beside it.", metavar="TARGET"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export there.")] = False,
    frames: Annotated[
        str | None,
        typer.Option(
            help="keyframes, all, or a number N for every N-th; else all for trajectory and depth, keyframes for "
            "the others.",
            metavar="keyframes|all|N",
        ),
    ] = None,
    max_side: Annotated[
        int | None,
        typer.Option(
            help="Longer side of images, and of depth made as fine, in pixels; else as in the source, "
            "and depth as the network gave it.",
            min=16,
        ),
    ] = None,
    points: Annotated[
        int, typer.Option(help="At most so many points in glb, html, rrd and transforms.", min=0)
    ] = 1_000_000,
    faces: Annotated[int, typer.Option(help="At most about so many triangles in mesh.", min=100)] = 500_000,
    up: Annotated[
        Literal["auto", "keep"],
        typer.Option(help="Of GLB files, whose y is up: auto finds it, keep takes the first camera's."),
    ] = "auto",
    dense: Annotated[
        int | None,
        typer.Option(
            help="colmap: at most so many points of depth maps besides those with tracks; else none, or 100000 where "
            "no refinement has made tracks.",
            min=0,
        ),
    ] = None,
) -> int:
    """Write a result for other programs: evaluation tools, splat trainers, viewers.

    A README.txt says units, axes and frame. Images are read from the source again; where it is gone, the result's own
    small ones serve. It may be used while the run goes on, for what is there. Nothing is left under the final name
    unless all of it is written.
    """
    from stream_recon.app.cli.export import export_folder
    from stream_recon.app.export.job import ExportOptions

    options = ExportOptions(frames, max_side, points, faces, up, dense)
    return export_folder(folder, format, output, options, overwrite=overwrite)


@reported
def render_command(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Result folder of a run, finished or not")],
    video: Annotated[Path, typer.Argument(metavar="VIDEO.mp4", help="The video to write")],
    flight: Annotated[
        Literal["trajectory", "orbit", "top-down", "path", "around", "above"],
        typer.Option(
            help="trajectory: along the camera's, smoothed; orbit: once around the scene; top-down: from above, while "
            "it grows. path, around and above are their old names."
        ),
    ] = "trajectory",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file there.")] = False,
    seconds: Annotated[float, typer.Option(help="Length of the video.", min=0.1, max=3600)] = 12.0,
    fps: Annotated[float, typer.Option(help="Its frames a second.", min=1, max=120)] = 30.0,
    size: Annotated[str, typer.Option(help="Its width and height in pixels.", metavar="WxH")] = "1920x1080",
    points: Annotated[int, typer.Option(help="At most about so many points.", min=1)] = 1_500_000,
) -> int:
    """Film a flight through a result's points, in H.264 where ffmpeg or OpenCV can write it.

    It may be used while the run goes on, for what is there.
    """
    from stream_recon.app.cli.render import render
    from stream_recon.app.export.render.camera_path import CAMERA_PATH_NAMES
    from stream_recon.app.export.render.film import FilmOptions

    path = CAMERA_PATH_NAMES[flight]
    return render(folder, video, FilmOptions(path, _size(size), seconds, fps, points), overwrite=overwrite)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.partition("x")
    if not all(part.isascii() and part.isdecimal() and 16 <= int(part) <= 7680 for part in (width, height)):
        raise ConfigError(f"--size {text}: use WxH, such as 1920x1080")
    # Encoders want even numbers.
    return int(width) // 2 * 2, int(height) // 2 * 2


COMMANDS: dict[str, Callable[..., None]] = {
    "view": view_command,
    "refine": refine_command,
    "scale": scale_command,
    "eval": eval_command,
    "batch": batch_command,
    "datasets": datasets_command,
    "plan": plan_command,
    "export": export_command,
    "render": render_command,
    "convert": convert_command,
}


@reported
def _name_is_a_command(word: str) -> int:
    raise InputError(f"'{word}' is a command: for the file or folder of that name write ./{word}")


def main() -> None:
    """Entry point: the first argument chooses the command if it is exactly one of their words."""
    arguments = sys.argv[1:]
    word = arguments[0] if arguments else ""
    program = typer.Typer(add_completion=False)
    if word not in COMMANDS:
        program.command(epilog=EPILOG)(reconstruct_command)
        name = "stream-recon"
    elif len(arguments) == 1 and Path(word).exists():
        program.command()(lambda: _name_is_a_command(word))
        name, arguments = "stream-recon", []
    else:
        program.command()(COMMANDS[word])
        name, arguments = f"stream-recon {word}", arguments[1:]
    try:
        typer.main.get_command(program).main(arguments, prog_name=name)
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise


def _leave(code: int) -> None:
    """End here where a camera's thread still waits in OpenCV: Python's own end would abort once it returns."""
    if any(thread.daemon and thread.name.startswith("read ") for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
