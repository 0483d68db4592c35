"""Dense depth of a refined result: multi-view stereo of its keyframes, with the images of its source.

The maps go to the folder ``dense`` of the result, under temporary names until all are there. They count from the moment
when ``run.json`` names their refinement; a run that was stopped leaves the result, and earlier maps, as they were.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import Certainty, ImageTransform
from stream_recon.app.result.amend import rebuild_cloud
from stream_recon.app.result.dense import DENSE_FOLDER, DenseMap, dense_path, encoded_image, write_dense_beside
from stream_recon.app.result.disk_limit import bytes_without
from stream_recon.app.result.files import in_order, output_errors, remove_temporary, replace_json
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import DENSE, RUN_NAME
from stream_recon.app.run.options import DENSE_SIDE, RunOptions
from stream_recon.app.slam.dense.config import DEFAULT_STEREO, StereoConfig
from stream_recon.app.slam.dense.stereo import DenseDepth, DenseStereo
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.dense_input import MIN_KEYFRAMES, DenseInput, frames_of
from stream_recon.app.stages.stage import Stage, StageContext
from stream_recon.configs.errors import InputError, OutputError


@dataclass(frozen=True)
class DenseStage(Stage):
    """Dense depth of a refined result, and its cloud. One that was not refined, or whose source is gone, gets none."""

    name = "dense depth"
    absent = "no dense depth"
    stopped = "stopped: the result is complete without dense depth; 'stream-recon refine' computes it"
    side: int = DENSE_SIDE
    """Longer side of the maps in pixels; never more than that of the source's images."""
    device: str = "auto"
    """``auto``, ``cuda`` or ``cpu``."""
    stereo: StereoConfig = DEFAULT_STEREO

    @classmethod
    def of(cls, options: RunOptions) -> "DenseStage | None":
        if options.mapping != "full" or options.dense_side is None:
            return None
        device = options.model.device
        return DenseStage(options.dense_side, "cpu" if device == "mps" else device)

    def is_done(self, context: StageContext) -> bool:
        result = context.result
        record = result.run.get(DENSE)
        return isinstance(record, dict) and record.get("refinement") == result.refinement_id

    def why_not(self, context: StageContext) -> str | None:
        return why_not_dense(context.result, context.open_again)

    def run(self, context: StageContext) -> Sequence[str]:
        from stream_recon.app.localization.build import update_map

        try:
            report = write_dense_depth(context, self)
            rebuild_cloud(context.result, partial(context.observer.on_step, "points"))
            update_map(context.folder)
        except InputError as error:
            context.observer.on_message(f"no dense depth: {error}", warning=True)
            return []
        return [
            f"dense depth: {report.keyframes} keyframes at {report.side} pixels, {report.confirmed:.0%} of the "
            f"pixels confirmed by other views, {report.near:.0%} near these; {report.seconds:.1f} s"
        ]


@dataclass
class DenseReport:
    """Figures of dense depth; its fields are keys of ``run.json``."""

    refinement: str
    """Id of the refinement whose poses were used."""
    side: int
    keyframes: int = 0
    """Keyframes with a dense map."""
    confirmed: float = 0.0
    near: float = 0.0
    network: float = 0.0
    """Shares of all pixels by `Certainty`; the rest has no depth."""
    seconds: float = 0.0


def why_not_dense(result: ResultFolder, open_again: Callable[[], Source] | None) -> str | None:
    """Why a result has nothing to compute dense depth from; None where it has."""
    if result.refinement_id is None:
        return "the result is not refined"
    if open_again is None:
        return "the source's images are gone"
    return "the refinement kept the network's poses" if DenseInput.of(result) is None else None


def write_dense_depth(context: StageContext, stage: DenseStage) -> DenseReport:
    """Compute and write the dense depth maps of a refined result.

    Raises:
        Cancelled.
        InputError: see `why_not_dense`, the source cannot be read, or the bound of the files' size does not suffice.
        OutputError: a file cannot be written.
        The result is unchanged then.
    """
    result, open_again = context.result, context.open_again
    job = DenseInput.of(result)
    if job is None or open_again is None:
        raise InputError(why_not_dense(result, open_again) or "the result is not refined")
    return _Writing(job, stage, context).run(open_again)


@dataclass
class _Writing:
    """Computation and writing of all maps of a job."""

    job: DenseInput
    stage: DenseStage
    context: StageContext
    images: dict[int, bytes] = field(default_factory=dict)
    """JPEG files of the keyframes whose maps are not complete yet."""
    written: dict[int, Path] = field(default_factory=dict)
    """Complete maps under temporary names, by the frame's number."""
    room: int | None = None
    """Bytes that further files may have; None: any number."""
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(Certainty), np.int64))

    def run(self, open_again: Callable[[], Source]) -> DenseReport:
        """Write all maps, then ``run.json``."""
        folder, total = self.job.result.folder, len(self.job.keyframes)
        report = DenseReport(self.job.result.refinement_id or "", self.stage.side)
        with output_errors(folder):
            (folder / DENSE_FOLDER).mkdir(exist_ok=True)
        _remove_useless(self.job.result)
        stereo = DenseStereo.on(self.stage.device, self.stage.side, self.stage.stereo, total)
        if self.context.max_bytes is not None:
            # Until the end, earlier maps of the same refinement need room, too.
            self.room = self.context.max_bytes - bytes_without(folder, "")
        started = time.monotonic()
        self.context.progress("dense depth")(0, total)
        try:
            with open_again() as source, ThreadPoolExecutor(1, "views") as pool:
                frames = frames_of(source, self.job.keyframes)
                read = partial(self.job.view, side=self.stage.side)
                for view, image in in_order(pool, read, frames, ahead=2):
                    self.images[view.index] = encoded_image(image)
                    self._write(stereo.push(view), report)
            self._write(stereo.finish(), report)
            if report.keyframes < MIN_KEYFRAMES:
                raise InputError(f"{self.job.result.run['source']} has no longer the frames of this result")
            shares = self.counts / max(int(self.counts.sum()), 1)
            report.confirmed, report.near, report.network = (
                round(float(shares[c]), 4) for c in (Certainty.CONFIRMED, Certainty.NEAR, Certainty.NETWORK)
            )
            report.seconds = round(time.monotonic() - started, 3)
            with output_errors(folder):
                for index, path in self.written.items():
                    path.replace(dense_path(folder, index))
            replace_json(folder / RUN_NAME, {**self.job.result.run, DENSE: vars(report)})
        finally:
            stereo.close()
            _remove(self.job.result, self.written.values())
        others = {camera.index for camera in self.job.result.cameras} - set(self.written)
        _remove(self.job.result, [dense_path(folder, index) for index in others])
        return report

    def _write(self, maps: Sequence[DenseDepth], report: DenseReport) -> None:
        cameras = {camera.index: camera for camera in self.job.keyframes}
        for dense in maps:
            camera = cameras[dense.index]
            height, width = dense.depth.shape
            full = camera.source_size
            transform = ImageTransform(full, (0.0, 0.0, float(full[0]), float(full[1])), (width, height))
            depth = dense.depth / np.float32(camera.depth_scale)
            stored = DenseMap(dense.index, depth, dense.certainty, self.images.pop(dense.index), transform)
            path = self.written[dense.index] = write_dense_beside(self.job.result.folder, stored, report.refinement)
            if self.room is not None:
                self.room -= path.stat().st_size
                if self.room < 0:
                    raise InputError("it would exceed --max-disk")
            self.counts += np.bincount(dense.certainty.ravel(), minlength=len(Certainty))
            report.keyframes += 1
            if self.context.view is not None:
                self.context.view.show_dense(stored.result(camera), stored.image)
            self.context.progress("dense depth")(report.keyframes, len(self.job.keyframes))


def _remove_useless(result: ResultFolder) -> None:
    """Remove what a killed run left half done, and maps of other refinements."""
    folder = result.folder / DENSE_FOLDER
    if folder.is_symlink():
        raise OutputError(f"{folder} is a link to another folder: remove it")
    remove_temporary(folder)
    if not result.dense:
        _remove(result, [dense_path(result.folder, camera.index) for camera in result.cameras], keep_folder=True)


def _remove(result: ResultFolder, paths: Iterable[Path], *, keep_folder: bool = False) -> None:
    """Remove files of the folder of dense maps that exist, and the folder if it is empty; errors are ignored."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
    if not keep_folder:
        with suppress(OSError):
            (result.folder / DENSE_FOLDER).rmdir()
