"""Images of a result's frames, from the source, or the result's small images where the source is gone."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.source_identity import source_change
from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.view import PinholeView, undistorted_view
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.depth import depth_path, read_depth
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import PARTS
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.image_files import images_below, only_photographs
from stream_recon.app.sources.joined import CameraChange, JoinedPart, JoinedReader
from stream_recon.app.sources.opening import ADDRESS
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import InputError, OutputError, StreamReconError

GONE = "the source ({}) cannot be read again from here: the images are the small ones of the result"
CHANGED = "the source has changed since the run: the images are the small ones of the result"
Images = Iterator[tuple[FrameCamera, NDArray[np.uint8], NDArray[np.bool_] | None]]
"""Camera, image [h, w, 3] and pixels excluded by the user's masks [h, w], if any."""


@dataclasses.dataclass(frozen=True)
class FrameImages:
    """Exported images of some frames, in order."""

    view: PinholeView
    warning: str | None
    """Why the images are not the source's, if so."""
    missing: list[FrameCamera]
    """Frames without a readable image, filled while the images are read."""
    _read: Callable[[], Images]

    def __iter__(self) -> Images:
        return self._read()


def frame_images(
    result: ResultFolder, cameras: Sequence[FrameCamera], view: PinholeView, max_side: int | None
) -> FrameImages:
    """Images of ``cameras`` (one or more, in order) at the size of the source, or with sides of at most ``max_side``.

    Raises OutputError: the result's own images are needed, and there are none.
    """
    missing: list[FrameCamera] = []
    open_again = source_of(result)
    warning = GONE.format(result.run["source"])
    if open_again is not None:
        if _is_unchanged(result, cameras, view, open_again):
            source_view = view.scaled(max_side)
            return FrameImages(
                source_view, None, missing, lambda: _from_source(open_again, cameras, source_view, missing)
            )
        warning = CHANGED
    first = _first_stored(result, cameras)
    if first is None:
        raise OutputError(f"{warning.split(':')[0]}, and {result.folder} has no readable images of these frames")
    small = max(max(size) for size in first[1])
    small_view = view.scaled(min(small, max_side or small))
    return FrameImages(small_view, warning, missing, lambda: _from_result(result, cameras, small_view, missing))


def source_of(result: ResultFolder) -> Callable[[], Source] | None:
    """A function that opens a result's source again with the same choice of frames; None where it is not readable."""
    options = result.run.get("options")
    open_again = _opener(options) if isinstance(options, dict) else None
    if open_again is None:
        return None
    try:
        open_again().close()
    except (StreamReconError, TypeError, ValueError, AttributeError):
        return None
    return open_again


def _opener(options: Mapping[str, Any]) -> Callable[[], Source] | None:
    """A function that opens the source of a run's ``options``; None where there is none that can be opened again."""
    if isinstance(options.get(PARTS), list):
        return _opener_of_parts(options[PARTS])
    spec = options.get("source")
    if not isinstance(spec, str) or ADDRESS.match(spec) or not _exists(spec):
        return None
    names = [field.name for field in dataclasses.fields(FrameChoice)]
    choice = {name: options[name] for name in names if options.get(name) is not None}

    def open_again() -> Source:
        try:
            return open_source(spec, FrameChoice(**choice))
        except InputError:
            # A scene of a data set: its reader finds the images in subfolders and their order.
            scenes = [scene for scene in find_scenes(Path(spec)) if scene.path == Path(spec).absolute()]
            if len(scenes) != 1:
                raise
            scene = dataclasses.replace(scenes[0], camera=choice.get("camera"), masks=choice.get("masks"))
            return scene.open(choice.get("stride", 1), choice.get("max_frames"))

    return open_again


def _opener_of_parts(parts: Sequence[Any]) -> Callable[[], Source] | None:
    """A function that opens the sources of a merged result; None where one is gone."""
    openers = []
    for part in parts:
        try:
            change = None if part["change"] is None else CameraChange.from_json(part["change"])
            opener = _opener(part["options"])
            first, start, name = int(part["first"]), float(part["start"]), str(part["name"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        if opener is None:
            return None
        openers.append((JoinedPart(opener, first, start, change), name))
    return lambda: Source(JoinedReader([part for part, _ in openers], " + ".join(name for _, name in openers)))


def image_files(result: ResultFolder) -> list[Path] | None:
    """Image files of a result's source by frame number, where it is a folder of images that still exists."""
    options = result.run.get("options")
    spec = options.get("source") if isinstance(options, dict) else None
    if not isinstance(spec, str) or not _exists(spec) or not Path(spec).expanduser().is_dir():
        return None
    return only_photographs(images_below(Path(spec).expanduser())[1])[0] or None


def _exists(spec: str) -> bool:
    try:
        path = Path(spec).expanduser()
        return path.is_dir() or path.is_file()
    except OSError:
        return False


def _first_stored(
    result: ResultFolder, cameras: Sequence[FrameCamera]
) -> tuple[FrameCamera, list[tuple[int, int]]] | None:
    """The first frame with an image in the result, and the sizes of its images; None without any."""
    for camera in cameras:
        sizes = []
        with suppress(OutputError):
            sizes.append(read_depth(depth_path(result.folder, camera.index)).transform.network_size)
        if camera.index in result.dense:
            with suppress(OutputError, ValueError):
                height, width = result.dense_map(camera.index).image.shape[:2]
                sizes.append((width, height))
        if sizes:
            return camera, sizes
    return None


def _is_unchanged(
    result: ResultFolder, cameras: Sequence[FrameCamera], view: PinholeView, open_again: Callable[[], Source]
) -> bool:
    """Whether the source still shows the frames ``cameras``, at the size of ``view``."""
    if cameras[0].source_size not in (None, view.source_size):
        return False
    try:
        return source_change(result.folder, cameras, open_again) is None
    except (InputError, OutputError):
        return False


def _from_source(
    open_again: Callable[[], Source], cameras: Sequence[FrameCamera], view: PinholeView, missing: list[FrameCamera]
) -> Images:
    unread = {camera.index: camera for camera in cameras}
    with open_again() as source:
        for frame in source.frames_at(frozenset(unread)):
            if (frame.rgb.shape[1], frame.rgb.shape[0]) == view.source_size:
                mask = None if frame.mask is None else view.mask(frame.mask)
                yield unread.pop(frame.index), view.image(frame.rgb), mask
    missing.extend(unread.values())


def _from_result(
    result: ResultFolder, cameras: Sequence[FrameCamera], view: PinholeView, missing: list[FrameCamera]
) -> Images:
    for camera in cameras:
        try:
            yield camera, stored_image(result, camera, view), None
        except OutputError:
            missing.append(camera)


def stored_image(result: ResultFolder, camera: FrameCamera, view: PinholeView) -> NDArray[np.uint8]:
    """The exported image [h, w, 3] of a frame from the sharpest one in the result. Raises OutputError."""
    if camera.index in result.dense:
        with suppress(OutputError, ValueError):
            dense = result.dense_map(camera.index)
            shown = dense.result(camera)
            # The stored image is larger than the dense map, of the same pinhole camera.
            height, width = dense.image.shape[:2]
            transform = dataclasses.replace(dense.transform, network_size=(width, height))
            return np.asarray(view.from_map(dense.image, dataclasses.replace(shown, transform=transform)), np.uint8)
    stored = read_depth(depth_path(result.folder, camera.index))
    return np.asarray(view.from_network(stored.rgb, stored.transform), np.uint8)


def surface_images(job: ExportJob, max_side: int) -> Iterator[tuple[FrameResult, NDArray[np.uint8]]]:
    """Results of the keyframes and images [H, W, 3] that show the same as their depth maps.

    Images have sides of at most ``max_side``, or 960 with dense depth maps. They are from the source where it can be
    read again. Frames that cannot be read are left out. Raises StreamReconError: there are no frames.
    """
    result = job.result
    cameras = job.cameras("keyframes")
    if result.dense:
        for camera in result.surface_cameras:
            if camera.index in result.dense:
                try:
                    dense = result.dense_map(camera.index)
                    yield dense.result(camera), dense.image
                except (OutputError, ValueError):
                    continue
        return
    view = undistorted_view(job.view.source_size, job.view.source)
    for camera, image, _ in frame_images(result, cameras, view, max_side):
        try:
            shown = result.surface_of(camera)
        except OutputError:
            continue
        yield shown, image
