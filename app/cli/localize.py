"""Command ``localize``: poses of images in the world of a result."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from stream_recon.app.cli.console import DONE, PlainConsole, reported, result_consoles
from stream_recon.app.cli.downloads import result_name
from stream_recon.app.cli.options import (
    VIEWER,
    Folder,
    Host,
    Intrinsics,
    MaxFrames,
    Port,
    Stride,
    Token,
    option,
    source_camera,
)
from stream_recon.app.cli.place import show_located
from stream_recon.app.cli.view import ViewerChoice, show_all
from stream_recon.app.core.output_file import new_text
from stream_recon.configs.errors import OutputError

if TYPE_CHECKING:
    from stream_recon.app.core.types import Frame
    from stream_recon.app.localization.localize import Localization, LocalizationMap, NotLocalized
    from stream_recon.app.sources.source import Source
    from stream_recon.app.viewer.viewer import Viewer


@reported
def localize_command(
    folder: Folder,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="An image, a folder of images, a video, a camera or an address.")
    ],
    json_file: Annotated[
        Path | None, option("Write JSON lines there; - for standard output.", "--json", metavar="FILE")
    ] = None,
    overwrite: Annotated[bool, option("Replace an existing file.", "--overwrite")] = False,
    intrinsics: Intrinsics = None,
    stride: Stride = 1,
    max_frames: MaxFrames = None,
    viewer: Annotated[
        bool, option("Show the result with the images where they were taken, until Ctrl-C.", "--viewer", panel=VIEWER)
    ] = False,
    host: Host = "127.0.0.1",
    port: Port = None,
    token: Token = True,
) -> int:
    """Find where images were taken in the place of a result.

    Prints a line of the TUM format for each: time or number, position, and rotation as a quaternion, in the result's
    world and unit. An image that does not show the place gets a comment line with the reason. In a film points are
    tracked between frames. A frame of 360 degrees has one pose, that of its front view.
    """
    from stream_recon.app.localization.localize import LocalizationMap, NotLocalized
    from stream_recon.app.sources.frame_choice import FrameChoice
    from stream_recon.app.sources.source import open_source

    out, err = result_consoles()
    place = LocalizationMap.open(folder)
    choice = FrameChoice(stride=stride, max_frames=max_frames, camera=source_camera(intrinsics))
    total, here, delays, sigmas = 0, 0, [], []
    with (
        open_source(source, choice) as frames,
        _lines(json_file, overwrite, out) as write,
        _page(folder, ViewerChoice(host, port, keep_open=True, token=token) if viewer else None) as page,
    ):
        for frame, localization, delay in (_located if frames.rig is None else _of_rig)(place, frames):
            write(frame, localization)
            total += 1
            delays.append(delay)
            if not isinstance(localization, NotLocalized):
                here += 1
                sigmas.append(localization.position_sigma)
                if page is not None:
                    show_located(page, frame, localization)
        for warning in frames.warnings:
            err.print(f"warning: {warning}", soft_wrap=True)
        delays.sort()
        sigmas.sort()
        spread = f", typical standard deviation {sigmas[len(sigmas) // 2]:.2g}" if sigmas else ""
        slow = delays[min(int(0.95 * len(delays)), len(delays) - 1)]
        err.print(
            f"{here} of {total} images show this place{spread}; delay {delays[len(delays) // 2]:.2f} s, 95 % within "
            f"{slow:.2f} s"
        )
        if page is not None:
            err.print(f"The viewer stays open at {page.url}; Ctrl-C ends it.")
            page.wait()
    return DONE


_Located = Iterator[tuple["Frame", "Localization | NotLocalized", float]]
"""Frames, where they were taken, and the seconds that it took to find that."""


def _located(place: "LocalizationMap", frames: "Source") -> _Located:
    from stream_recon.app.localization.tracking import FilmLocalizer

    film: FilmLocalizer | None = None
    for frame in frames:
        started = time.monotonic()
        if frames.image_names is not None:
            localization = place.localize(frame.rgb, frames.intrinsics)
        else:
            film = film or FilmLocalizer(place, frames.intrinsics)
            localization = film.push(frame.rgb)
        yield frame, localization, time.monotonic() - started


def _of_rig(place: "LocalizationMap", frames: "Source") -> _Located:
    """The frames of a panorama, after all of its views."""
    from stream_recon.app.localization.rig_frames import RigLocalizer

    assert frames.rig is not None
    localizer, started = RigLocalizer(place, frames.rig), time.monotonic()
    for frame in frames:
        assert frames.intrinsics is not None, "the camera of views is known"
        localizer.push(frame, frames.intrinsics)
    found = [*localizer.located()]
    yield from ((*each, (time.monotonic() - started) / len(found)) for each in found)


@contextmanager
def _page(folder: Path, view: ViewerChoice | None) -> "Iterator[Viewer | None]":
    """The page of a result, on which pictures can be shown; None where no viewer was chosen."""
    if view is None:
        yield None
        return
    from stream_recon.app.result.folder import read_result

    result = read_result(folder)
    _, err = result_consoles()
    with view.open(result.points, err, err) as viewer:  # standard output has the poses
        viewer.name(result_name(folder))
        viewer.status(f"{result.run['source']}: where pictures were taken")
        show_all(viewer, result, lambda _: None)
        yield viewer


@contextmanager
def _lines(path: Path | None, overwrite: bool, out: PlainConsole) -> Iterator[Any]:
    """A function that writes one image's result as a line. Raises OutputError."""
    if path is None or str(path) == "-":
        yield lambda frame, localization: out.print(
            _tum(frame, localization) if path is None else _json(frame, localization)
        )
        return
    try:
        if overwrite and (path.is_file() or path.is_symlink()):
            path.unlink()
        file = new_text(path)
    except FileExistsError as error:
        raise OutputError(f"{path} exists: use --overwrite, or another file") from error
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    with file:
        yield lambda frame, localization: _write(file, _json(frame, localization))


def _write(file: TextIO, line: str) -> None:
    file.write(line + "\n")
    file.flush()  # a live reader waits for it


def _tum(frame: "Frame", localization: "Localization | NotLocalized") -> str:
    from stream_recon.app.core.transforms import quaternion_xyzw
    from stream_recon.app.localization.localize import NotLocalized

    if isinstance(localization, NotLocalized):
        return f"# {frame.timestamp:.6f} not here: {localization.reason}"
    numbers = [*localization.T_world_camera[:3, 3], *quaternion_xyzw(localization.T_world_camera[:3, :3])]
    return f"{frame.timestamp:.6f} " + " ".join(f"{value:.7f}" for value in numbers)


def _json(frame: "Frame", localization: "Localization | NotLocalized") -> str:
    from stream_recon.app.localization.localize import NotLocalized

    record: dict[str, Any] = {"index": frame.index, "timestamp": frame.timestamp}
    if isinstance(localization, NotLocalized):
        return json.dumps({**record, "here": False, "reason": localization.reason})
    k = localization.intrinsics
    return json.dumps(
        {
            **record,
            "here": True,
            "T_world_camera": localization.T_world_camera.tolist(),
            **{"fx": k.fx, "fy": k.fy, "cx": k.cx, "cy": k.cy},
            "position_sigma": localization.position_sigma,
            "rotation_sigma_deg": localization.rotation_sigma_deg,
            "inliers": localization.inliers,
            "frames": list(localization.frames),
        }
    )
