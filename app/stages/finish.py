"""Last steps of a run, which can also follow later: offline refinement, metric scale and mesh of a finished result.

Each step imports what it needs: a run imports this file before its first frame.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stream_recon.app.core.cancel import Cancelled, cancel_on_signals
from stream_recon.app.core.process import memory_errors
from stream_recon.app.metric_scale.apply import ScaleView, apply_metric_scale
from stream_recon.app.metric_scale.scale_source import ScaleSource, parse_scale_source
from stream_recon.app.result.cloud import rebuild_cloud
from stream_recon.app.result.disk_limit import bytes_without
from stream_recon.app.result.feature_map import MAP_NAME, remove_map
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.mesh import MESH_NAME
from stream_recon.app.result.metric_scale import MetricScale, T_current_own
from stream_recon.app.result.run_record import CHANGES_NAME, DENSE, METRIC_SCALE, ONTO, REFINEMENT
from stream_recon.app.result.verdict import Verdict, record_verdict
from stream_recon.app.run.listeners import RefinementView, ResultListener, RunObserver
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.dense import (
    DenseOptions,
    DenseReport,
    DenseView,
    densify_result,
    why_not_dense,
)
from stream_recon.configs.errors import ConfigError, InputError, NoSurfaceError

if TYPE_CHECKING:
    from stream_recon.app.mesh.build import MeshReport
    from stream_recon.app.slam.offline.report import RefinementReport


class ResultView(RefinementView, ScaleView, DenseView, Protocol):
    """Viewer that shows how the result changes."""


@dataclass(frozen=True)
class FinishSteps:
    """Steps that follow the reconstruction."""

    refine: bool
    scale: tuple[ScaleSource, str] | None = None
    """Source of the metric scale, and the same as text."""
    mesh: bool = False
    dense: DenseOptions | None = None
    onto: Path | None = None
    """Result of the same place, in whose world this one is put."""

    @staticmethod
    def parse(
        *,
        refine: bool,
        scale_from: str | None,
        mesh: bool = False,
        dense: DenseOptions | None = None,
        onto: Path | None = None,
    ) -> "FinishSteps":
        """Steps from command-line options. Raises ConfigError, InputError, OutputError."""
        if onto is not None:
            if scale_from is not None:
                raise ConfigError("use --onto or --scale-from, not both: the other result gives the unit")
            if not refine:
                raise ConfigError("--onto needs a refinement: leave out --mapping")
            from stream_recon.app.stages.onto import check_onto

            check_onto(onto)
        return FinishSteps(refine, None if scale_from is None else parse_scale_source(scale_from), mesh, dense, onto)

    def remaining(self, record: Mapping[str, Any], folder: Path) -> "FinishSteps":
        """Steps that are not done yet, by the result's ``run.json`` and files."""
        refine = self.refine and REFINEMENT not in record
        scale = None if record.get(METRIC_SCALE) else self.scale
        dense = None if not refine and DENSE in record else self.dense
        onto = None if ONTO in record and not refine else self.onto
        return FinishSteps(refine, scale, self.mesh and not (folder / MESH_NAME).exists(), dense, onto)

    def __bool__(self) -> bool:
        return self.refine or self.scale is not None or self.mesh or self.dense is not None or self.onto is not None


@dataclass(frozen=True)
class Finisher:
    """Refines a result folder, recovers its metric scale and makes its mesh.

    Ctrl-C ends a step and leaves the result as it was.

    Args:
        open_again: opens the source again; None: only what the result holds is there.
        listeners: get the revision of a refinement.
        page: viewer of the result, where there is one.
        is_locked: the caller holds the folder's lock.
        max_bytes: bound for all files of the result; None: no bound.
    """

    folder: Path
    open_again: Callable[[], Source] | None
    observer: RunObserver = field(default_factory=RunObserver)
    listeners: Sequence[ResultListener] = ()
    page: ResultView | None = None
    is_locked: bool = False
    max_bytes: int | None = None
    keep_map: bool = True
    """Whether a refinement leaves the features by which the place is recognized."""

    def run(self, steps: FinishSteps) -> bool:
        """Do these steps and judge the result; False where Ctrl-C ended a step. Raises StreamReconError."""
        unscaled: InputError | None = None
        done = self._refined(steps) and (steps.dense is None or self.densify(steps.dense))
        if done and (steps.scale is not None or steps.onto is not None):
            try:
                done = self.onto(steps.onto) if steps.onto is not None else self._scaled(steps)
            except InputError as error:
                # The mesh follows all the same: it is part of a complete result.
                unscaled = error
        done = done and (not steps.mesh or self.mesh())
        if unscaled is None or steps != FinishSteps(False, steps.scale):
            self.judge()
        if unscaled is not None:
            raise InputError(f"{unscaled}; {self.folder} is complete and its unit has not changed") from unscaled
        return done

    def _refined(self, steps: FinishSteps) -> bool:
        if not steps.refine:
            return True
        result = read_result(self.folder)
        if self.open_again is None and not result.with_depth(result.cameras):
            self.observer.on_message("not refined: no depth was kept")
            return True
        return self.refine() is not None

    def judge(self) -> Verdict:
        """Judge the result as it is, which is also recorded in its ``run.json``. Raises OutputError."""
        with self._lock():
            verdict = record_verdict(self.folder)
        self.observer.on_verdict(verdict)
        return verdict

    def refine(self) -> "RefinementReport | None":
        """Refine the result; None where Ctrl-C ended it. Raises StreamReconError."""
        from stream_recon.app.stages.refine import STORED_IMAGES, refine_result

        report: RefinementReport | None = None
        with cancel_on_signals() as cancel, memory_errors(), self._lock(), suppress(Cancelled):
            report = refine_result(
                read_result(self.folder),
                self.open_again,
                self.listeners,
                self.page,
                self.observer,
                cancel,
                keep_map=self.keep_map,
            )
            self._bound_map()
        if report is not None and self.open_again is None:
            self.observer.on_message(STORED_IMAGES, warning=True)
        self.observer.on_refined(report)
        return report

    def _bound_map(self) -> None:
        """Remove the map of features where it exceeds the bound of the result's size."""
        if self.max_bytes is not None and (self.folder / MAP_NAME).exists():
            size = (self.folder / MAP_NAME).stat().st_size
            if size + bytes_without(self.folder, MAP_NAME) > self.max_bytes:
                remove_map(self.folder)
                self.observer.on_message("no map of features: it would exceed --max-disk")

    def densify(self, options: DenseOptions) -> bool:
        """Compute dense depth of a refined result, and its cloud; False where Ctrl-C ended it. Raises StreamReconError.

        A result that was not refined, or whose source is gone, gets none, which is no error.
        """
        from stream_recon.app.localization.build import update_map

        report: DenseReport | None = None
        with cancel_on_signals() as cancel, memory_errors(), self._lock():

            def on_progress(done: int, total: int) -> None:
                cancel.check()
                self.observer.on_dense(done, total)

            result = read_result(self.folder)
            reason = why_not_dense(result, self.open_again)
            if reason is not None:
                self.observer.on_message(f"no dense depth: {reason}")
                return True
            try:
                report = densify_result(result, self.open_again, options, on_progress, self.page, self.max_bytes)
                rebuild_cloud(read_result(self.folder), self.observer.on_dense_points)
                update_map(self.folder)
            except Cancelled:
                report = None
            except InputError as error:
                self.observer.on_message(f"no dense depth: {error}", warning=True)
                return True
        self.observer.on_densified(report)
        return report is not None

    def _scaled(self, steps: FinishSteps) -> bool:
        return steps.scale is None or self.scale(steps.scale) is not None

    def onto(self, target: Path) -> bool:
        """Put the result into the world of another one; False where Ctrl-C ended it. Raises StreamReconError.

        InputError means that the two share no view.
        """
        from stream_recon.app.stages.onto import put_onto, record_changes

        with cancel_on_signals() as cancel, memory_errors(), self._lock():
            on_points = partial(self.observer.on_scale, "points")
            pages = [] if self.page is None else [self.page]
            try:
                found = put_onto(read_result(self.folder), target, on_points, cancel, pages)
            except Cancelled:
                return False
            self.observer.on_message(f"in the world of {target}: {found.keyframes} keyframes agree")
            changes = record_changes(self.folder, target)
        counts = f"{len(changes.added)} frames show something new, {len(changes.gone)} earlier ones what is gone"
        self.observer.on_message(f"{CHANGES_NAME}: {counts}")
        return True

    def scale(self, source: tuple[ScaleSource, str]) -> MetricScale | None:
        """Convert the result to metres; returns its unit, or None where Ctrl-C ended it. Raises StreamReconError.

        InputError means that ``source`` gives no scale for this result.
        """
        from stream_recon.app.metric_scale.measure import measure_scale

        unit: MetricScale | None = None
        with cancel_on_signals() as cancel, memory_errors(), self._lock():

            def on_markers(done: int, total: int) -> None:
                cancel.check()
                self.observer.on_scale("markers", done, total)

            on_points = partial(self.observer.on_scale, "points")
            pages = [] if self.page is None else [self.page]
            with suppress(Cancelled):
                result = read_result(self.folder)
                change = measure_scale(result, *source, self.open_again, on_markers)
                apply_metric_scale(result, change, on_points, cancel, pages)
                unit = change.after(T_current_own(result.run))
        self.observer.on_scaled(unit)
        return unit

    def mesh(self) -> bool:
        """Make the result's mesh; False where Ctrl-C ended it. Raises StreamReconError.

        A result in which no surface is visible gets none, which is no error.
        """
        from stream_recon.app.mesh.build import write_result_mesh

        report: MeshReport | None = None
        with cancel_on_signals() as cancel, memory_errors(), self._lock(), suppress(Cancelled):
            result = read_result(self.folder)
            try:
                report = write_result_mesh(result, self.observer.on_mesh, cancel, self.max_bytes)
            except NoSurfaceError as error:
                self.observer.on_message(f"no mesh: {error}")
                return True
        self.observer.on_meshed(report)
        return report is not None

    def _lock(self) -> AbstractContextManager[object]:
        return nullcontext() if self.is_locked else FolderLock(self.folder)
