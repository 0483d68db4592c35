"""A source reconstructed into a result folder, as the command does it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.api.camera import Camera
from stream_recon.app.api.options import OnProgress, ProgressCalls, chosen, dense_side_of
from stream_recon.app.api.result import Result, open_result
from stream_recon.app.core.cancel import Cancel, Cancelled
from stream_recon.app.core.views import ResultListener
from stream_recon.app.datasets.scene import given_camera
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.run.options import DENSE_SIDE, RunJob, RunOptions
from stream_recon.app.slam.mode import MappingChoice
from stream_recon.app.sources.calibration import EXIF
from stream_recon.app.sources.frame_choice import FrameChoice, rig_text
from stream_recon.app.sources.images import NAME, open_images
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.source_run import SourceRun, reconstruct_source
from stream_recon.configs.errors import ConfigError, InputError
from stream_recon.configs.schema import AttentionChoice, CacheChoice, DeviceChoice, PrecisionChoice

Image = NDArray[np.uint8]


class _ImagesRun(SourceRun):
    """A run over images of an iterable."""

    def __init__(self, images: object, *others: Any) -> None:
        """``others``: see `SourceRun`. Raises InputError."""
        if not isinstance(images, Iterable):
            raise InputError(f"a source is a path, an address, a camera number or images, not {type(images).__name__}")
        super().__init__(*others)
        self._images: Iterable[object] = images

    def open(self, frames: FrameChoice, reconnect: float) -> Source:
        return open_images(self._images, frames)

    @property
    def opens_again(self) -> bool:
        return not isinstance(self._images, Iterator)


def reconstruct(
    source: str | Path | int | Iterable[Image | Sequence[Image] | tuple[float, Image | Sequence[Image]]],
    output: str | Path,
    *,
    stride: int = 1,
    fps: float | None = None,
    start: float | None = None,
    end: float | None = None,
    max_frames: int | None = None,
    topic: str | None = None,
    masks: str | Path | None = None,
    rig: str | Path | None = None,
    mask_sky: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    keep_depth: Literal["all", "keyframes", "none"] = "all",
    max_disk: str | None = None,
    mesh: bool = True,
    splat: bool = False,
    keep_map: bool = True,
    confidence: str | float | None = None,
    voxel: float | None = None,
    dense: Literal["on", "off"] = "on",
    dense_side: int = DENSE_SIDE,
    intrinsics: Camera | str | Path | None = None,
    preset: str | Path = "small",
    weights: str | Path | None = None,
    device: DeviceChoice = "auto",
    attention: AttentionChoice = "auto",
    cache: CacheChoice = "full",
    precision: PrecisionChoice = "auto",
    keyframes: str | int | None = None,
    mapping: MappingChoice = "full",
    scale_from: str | None = None,
    poses: str | Path | None = None,
    onto: str | Path | None = None,
    reconnect: float = 120.0,
    publish: Sequence[str] = (),
    on_progress: OnProgress | None = None,
    cancel: Cancel | None = None,
    listeners: Sequence[ResultListener] = (),
) -> Result:
    """Reconstruct a source into a result folder, as the command does: frames, refinement, dense depth, mesh, verdict.

    Args:
        source: video, folder of images, ROS recording, camera number or stream address; or images, uint8 [H, W, 3], or
            pairs of seconds and image. A list, or what else can be iterated again, is as a video. An iterator is read
            once: as for a camera, refinement then has the result's small images, and there is no dense depth. With
            ``rig``, each moment has a list of images, one of each camera, COLMAP's ``ref_sensor`` first; no iterator.
        output: the result folder.
        intrinsics: known camera: a `Camera`, or what ``--intrinsics`` takes.
        publish: addresses of ``--publish``: ``foxglove``, ``zenoh`` or an MCAP file.
        on_progress: called with the step under way and the share of it that is done, None where that is not known; in
            the calling thread.
        cancel: a request ends the run as Ctrl-C does. It ends a camera's or stream's recording, whose stages follow; a
            second request ends these.
        listeners: get each result and each revision, in another thread.

    All other options are those of ``stream-recon --help``, by the same names.

    Raises StreamReconError, as ConfigError: what is wrong, and what to do. Cancelled: finished frames are in the
    folder, and ``resume=True`` continues.
    """
    for name, value, choices in (
        ("keep_depth", keep_depth, ("all", "keyframes", "none")),
        ("device", device, get_args(DeviceChoice)),
        ("attention", attention, get_args(AttentionChoice)),
        ("cache", cache, get_args(CacheChoice)),
        ("precision", precision, get_args(PrecisionChoice)),
        ("mapping", mapping, get_args(MappingChoice)),
    ):
        chosen(name, value, choices)
    if isinstance(source, Iterator) and resume:
        raise ConfigError("an iterator cannot be read again to resume: give a list, or overwrite=True")
    mask_folder = None if masks is None else str(Path(masks).absolute())
    frames = FrameChoice(stride, fps, start, end, max_frames, _camera(intrinsics), mask_folder, topic, rig_text(rig))
    least = None if confidence is None else str(confidence)
    every = None if keyframes is None else str(keyframes)
    file = None if weights is None else Path(weights)
    options = RunOptions(
        frames,
        ModelChoice(str(preset), file, device, attention, every, cache, least, voxel, precision),
        mapping,
        mask_sky=mask_sky,
        dense_side=dense_side_of(dense, dense_side),
        scale_from=scale_from,
        poses=None if poses is None else str(poses),
        onto=None if onto is None else Path(onto),
        mesh=mesh,
        splat=splat,
        keep_map=keep_map,
        keep_depth=keep_depth,
        max_disk=max_disk,
        reconnect=reconnect,
        publish=(publish,) if isinstance(publish, str) else tuple(publish),
    )
    is_path = isinstance(source, str | Path | int)
    job = RunJob(str(source) if is_path else NAME, options, Path(output), overwrite, resume)
    # No separate process: it would import the user's main module again.
    setup = job, ProgressCalls(on_progress), cancel, listeners
    if not reconstruct_source(SourceRun(*setup) if is_path else _ImagesRun(source, *setup)):
        raise Cancelled
    return open_result(output)


def _camera(intrinsics: Camera | str | Path | None) -> str | None:
    """A known camera as text. Raises ConfigError, InputError."""
    if intrinsics is None or intrinsics == EXIF:
        return None if intrinsics is None else EXIF
    camera = intrinsics.calibration() if isinstance(intrinsics, Camera) else given_camera(str(intrinsics))
    return camera.text()
