"""Run of the command ``batch``: choice of scenes and workers, progress, and the report at the end."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from stream_recon.app.batch.jobs import ModelLoader
from stream_recon.app.batch.page import PAGE_NAME
from stream_recon.app.batch.plan import Batch, find_masks, find_scales
from stream_recon.app.batch.ray_workers import RayPool
from stream_recon.app.batch.remote_store import open_store
from stream_recon.app.batch.runner import run_batch
from stream_recon.app.batch.shared_network import DEFAULT_STREAMS, SharedNetworkPool, check_streams, shares_by_default
from stream_recon.app.batch.store import LocalStore, Store
from stream_recon.app.batch.summary import SHOWN, Row, compared_means, comparison, differences, read_summary
from stream_recon.app.batch.workers import Pool, ProcessPool, SerialPool
from stream_recon.app.cli.console import (
    DONE,
    FAILED,
    INTERRUPTED,
    PlainConsole,
    result_consoles,
    verdict_text,
    wide_console,
)
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.result.verdict import recorded_verdict
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.merge import merge_results
from stream_recon.configs.errors import ConfigError

MERGED_NAME = "merged"
"""Folder of the merged result in the batch's folder."""
MAX_NAMES = 10
"""Scenes that one line names."""


@dataclass(frozen=True)
class BatchOptions:
    """A batch as given on the command line."""

    root: Path
    out: str | None
    """Folder, or an address of fsspec; see `open_store`."""
    dataset: str | None = None
    options: RunOptions = dataclasses.field(default_factory=RunOptions)
    """Of each scene's run; without a source of scale."""
    split: int = 1
    workers: int | None = None
    """Processes (None: one); with Ray, actors (None: one for each GPU)."""
    streams: int | None = None
    """Scenes at once on each GPU through one network; None: chosen automatically."""
    ray: str | None = None
    """``local``, ``auto`` (the cluster of this machine), or the address of a cluster."""
    dry_run: bool = False
    compare: Path | None = None
    masks: Path | None = None
    scale_from: str | None = None
    """Source of the metric scale of each scene; see `find_scales`."""
    merge: bool = False
    """The scenes show one place: their results are merged at the end."""


def run(given: BatchOptions, loader: ModelLoader, recorded: dict[str, Any]) -> int:
    """Run a batch; returns the exit code. ``recorded``: options for the summary. Raises StreamReconError."""
    console = wide_console()
    if given.workers is not None and given.workers < 1:
        raise ConfigError(f"--workers must be at least 1, not {given.workers}")
    other = read_summary(given.compare) if given.compare is not None else None
    root = given.root.expanduser().resolve()
    store = open_store(given.out or f"{root.stem}-batch")
    if given.merge and not isinstance(store, LocalStore):
        raise ConfigError("--merge needs a folder of this machine as OUT")
    if given.merge and given.options.mapping != "full":
        raise ConfigError("--merge needs refined results: use --mapping full")
    results = [store.folder] if isinstance(store, LocalStore) else []
    # A folder of masks looks like a folder of scenes.
    results += [given.masks] if given.masks is not None else []
    scenes = find_scenes(root, given.dataset, exclude=results)
    if given.options.frames.camera is not None:
        scenes = [dataclasses.replace(scene, camera=given.options.frames.camera) for scene in scenes]
    scales: Mapping[str, str] = {}
    if given.masks is not None:
        masks = find_masks(scenes, given.masks)
        # A folder of masks may look like a scene.
        scenes = [scene for scene in scenes if str(scene.path) not in masks.values()]
        scenes = [dataclasses.replace(scene, masks=masks.get(scene.name)) for scene in scenes]
        without = [scene.name for scene in scenes if scene.masks is None]
        _print_names("without masks: all pixels are used", without, console)
    if given.scale_from is not None:
        found = find_scales(scenes, given.scale_from)
        scales = found.sources
        _print_names("without a track: not converted to metres", found.missing, console)
    batch = Batch(
        root,
        store,
        scenes,
        given.options,
        given.split,
        scales,
        recorded,
    )
    if given.dry_run:
        _list_scenes(batch, console)
        return DONE
    listener = _Bar(PlainConsole(stderr=True))
    with listener.bar:
        summary = run_batch(batch, loader, _pool(given, loader, store, len(scenes)), listener)
    _report(summary, store, console)
    if other is not None:
        console.print(comparison(summary, other))
        console.print(compared_means(summary, other))
        for line in differences(summary, other):
            console.print(f"note: {line}", soft_wrap=True)
    if summary["interrupted"]:
        return INTERRUPTED
    if given.merge:
        _merge(given, store, [s["name"] for s in summary["scenes"] if s["status"] == "done"])
    return FAILED if summary["totals"]["failed"] else DONE


def _merge(given: BatchOptions, store: Store, names: Sequence[str]) -> None:
    """Merge the results of the scenes into a new folder. Raises StreamReconError, Cancelled."""
    assert isinstance(store, LocalStore), "checked at the start"
    target = store.folder / MERGED_NAME
    if target.exists():
        wide_console().print(f"{target} exists: it is not made again", soft_wrap=True)
        return
    folders = [store.folder / name for name in names]
    with TerminalObserver(*result_consoles()) as observer:
        report = merge_results(folders, target, given.options, observer)
    wide_console().print(f"{target}: {report.frames} frames of {' + '.join(report.merged)}", soft_wrap=True)


def _print_names(what: str, names: Sequence[str], console: Console) -> None:
    if names:
        more = ", ..." if len(names) > MAX_NAMES else ""
        listed = ", ".join(names[:MAX_NAMES])
        console.print(f"note: {what}: {listed}{more}", markup=False, soft_wrap=True)


def _pool(options: BatchOptions, loader: ModelLoader, store: Store, scenes: int) -> Pool:
    streams = _streams(options, loader, store, scenes)
    if streams is not None:
        return SharedNetworkPool(loader, store, streams)
    if options.ray is None and (options.workers is None or options.workers == 1):
        return SerialPool(loader, store)
    if store.single_process:
        raise ConfigError(f"{options.out} can be read by one process only: workers need a folder or a shared address")
    if options.ray is not None:
        return RayPool(loader, store, options.ray, options.workers)
    assert options.workers is not None
    return ProcessPool(loader, store, options.workers)


def _streams(options: BatchOptions, loader: ModelLoader, store: Store, scenes: int) -> int | None:
    """Number of streams that share a network; None: each worker has its own."""
    if options.streams is None:
        if options.workers is not None or options.ray is not None or store.single_process:
            return None
        return DEFAULT_STREAMS if scenes * options.split > 1 and shares_by_default(loader) else None
    if options.streams < 1:
        raise ConfigError(f"--streams must be at least 1, not {options.streams}")
    if options.workers is not None or options.ray is not None:
        raise ConfigError("--streams cannot be combined with --workers or --ray")
    if store.single_process:
        raise ConfigError(f"{options.out} can be read by one process only: streams need a folder or a shared address")
    check_streams(loader)
    return options.streams


def _list_scenes(batch: Batch, console: Console) -> None:
    table = Table("scene", "dataset", "frames", "path")
    counts = [batch.options.frames.count(scene.frames) for scene in batch.scenes]
    for scene, count in zip(batch.scenes, counts, strict=True):
        path = scene.path.relative_to(batch.root) if batch.root in scene.path.parents else scene.path.name
        table.add_row(scene.name, scene.dataset, "?" if count is None else str(count), str(path))
    console.print(table)
    unknown = counts.count(None)
    more = f", and {unknown} scenes of unknown length" if unknown else ""
    console.print(f"{len(counts)} scenes, {sum(count or 0 for count in counts)} frames{more}; nothing was run")


def _report(summary: dict[str, Any], store: Store, console: Console) -> None:
    for scene in summary["scenes"]:
        if scene["status"] == "failed":
            console.print(f"failed: {scene['name']}: {scene['reason']}", soft_wrap=True)
            continue
        verdict = recorded_verdict(scene)
        if verdict is not None and verdict.level != "good":
            console.print(verdict_text(verdict, f"{scene['name']}: "), soft_wrap=True)
        if reason := (scene.get("metric_scale") or {}).get("reason"):
            console.print(f"not in metres: {scene['name']}: {reason}", markup=False, soft_wrap=True)
    totals = summary["totals"]
    words = {"resumed": "of them earlier", "failed": "failed", "not_run": "left"}
    counts = [f"{totals['done']} done", *(f"{totals[key]} {word}" for key, word in words.items() if totals[key])]
    rate = f", {totals['scenes_per_hour']:g} scenes an hour" if totals["scenes_per_hour"] else ""
    console.print(
        f"{totals['scenes']} scenes: {', '.join(counts)}; {totals['frames']} frames in {totals['seconds']:.1f} s{rate}"
    )
    if judged := [f"{count} {level}" for level, count in totals["verdicts"].items() if count]:
        console.print(f"verdicts: {', '.join(judged)}")
    known = {SHOWN[name]: entry["mean"] for name, entry in summary["means"].items() if name in SHOWN}
    means = [f"{heading} {mean:.{decimals}f}" for (heading, decimals), mean in known.items()]
    if means:
        console.print(f"means: {', '.join(means)}", soft_wrap=True)
    console.print(f"page: {store.location(PAGE_NAME)}", soft_wrap=True)


class _Bar:
    """Bar over the frames of all scenes, with a line for each scene that failed."""

    def __init__(self, console: Console) -> None:
        self.bar = Progress(
            TextColumn("{task.fields[scenes]}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("frames"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )

    def begin(self, rows: Sequence[Row], frames: int) -> None:
        self._scenes, self._ended = len(rows), sum(row.status != "not run" for row in rows)
        self._task = self.bar.add_task("frames", total=frames, scenes=self._counted())

    def progress(self, frames: int) -> None:
        self.bar.update(self._task, completed=frames)

    def finished(self, row: Row) -> None:
        self._ended += 1
        self.bar.update(self._task, scenes=self._counted())
        if row.status == "failed":
            self.bar.console.print(f"failed: {row.name}: {row.reason}", soft_wrap=True)

    def _counted(self) -> str:
        return f"{self._ended}/{self._scenes} scenes"
