"""Run of the command ``batch``: choice of scenes and workers."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from stream_recon.app.batch.jobs import ModelLoader
from stream_recon.app.batch.plan import Batch, find_masks, find_scales
from stream_recon.app.batch.remote_store import open_store
from stream_recon.app.batch.runner import run_batch
from stream_recon.app.batch.shared_network import DEFAULT_STREAMS, SharedNetworkPool, check_streams, shares_by_default
from stream_recon.app.batch.store import LocalStore, Store
from stream_recon.app.batch.summary import read_summary
from stream_recon.app.batch.workers import Pool, ProcessPool, SerialPool
from stream_recon.app.cli.batch_report import BatchBar, list_scenes, print_comparison, print_names, print_report
from stream_recon.app.cli.console import DONE, FAILED, INTERRUPTED, PlainConsole, result_consoles, wide_console
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.merge import merge_results
from stream_recon.configs.errors import ConfigError

MERGED_NAME = "merged"
"""Folder of the merged result in the batch's folder."""


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
    """Processes (None: one)."""
    streams: int | None = None
    """Scenes at once on each GPU through one network; None: chosen automatically."""
    dry_run: bool = False
    compare: Path | None = None
    masks: Path | None = None
    scale_from: str | None = None
    """Source of the metric scale of each scene; see `find_scales`."""
    merge: bool = False
    """The scenes show one place: their results are merged at the end."""

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ConfigError(f"--workers must be at least 1, not {self.workers}")
        if self.merge and self.options.mapping != "full":
            raise ConfigError("--merge needs refined results: use --mapping full")


def run(choices: BatchOptions, loader: ModelLoader, recorded: dict[str, Any]) -> int:
    """Run a batch; returns the exit code. ``recorded``: options for the summary. Raises StreamReconError."""
    console = wide_console()
    other = read_summary(choices.compare) if choices.compare is not None else None
    batch = _plan(choices, recorded, console)
    if choices.dry_run:
        list_scenes(batch, console)
        return DONE
    listener = BatchBar(PlainConsole(stderr=True))
    with listener.bar:
        summary = run_batch(batch, loader, _pool(choices, loader, batch.store, len(batch.scenes)), listener)
    print_report(summary, batch.store, console)
    if other is not None:
        print_comparison(summary, other, console)
    if summary["interrupted"]:
        return INTERRUPTED
    if choices.merge:
        _merge(choices, batch.store, [s["name"] for s in summary["scenes"] if s["status"] == "done"])
    return FAILED if summary["totals"]["failed"] else DONE


def _plan(choices: BatchOptions, recorded: dict[str, Any], console: Console) -> Batch:
    """The scenes with their cameras, masks and scale sources. Raises StreamReconError."""
    root = choices.root.expanduser().resolve()
    store = open_store(choices.out or f"{root.stem}-batch")
    if choices.merge and not isinstance(store, LocalStore):
        raise ConfigError("--merge needs a folder of this machine as OUT")
    exclude = [store.folder] if isinstance(store, LocalStore) else []
    # A folder of masks looks like a folder of scenes.
    exclude += [choices.masks] if choices.masks is not None else []
    scenes = find_scenes(root, choices.dataset, exclude=exclude)
    if choices.options.frames.camera is not None:
        scenes = [dataclasses.replace(scene, camera=choices.options.frames.camera) for scene in scenes]
    if choices.masks is not None:
        masks = find_masks(scenes, choices.masks)
        # A folder of masks may look like a scene.
        scenes = [scene for scene in scenes if str(scene.path) not in masks.values()]
        scenes = [dataclasses.replace(scene, masks=masks.get(scene.name)) for scene in scenes]
        without = [scene.name for scene in scenes if scene.masks is None]
        print_names("without masks: all pixels are used", without, console)
    scales: Mapping[str, str] = {}
    if choices.scale_from is not None:
        scene_scales = find_scales(scenes, choices.scale_from)
        scales = scene_scales.sources
        print_names("without a track: not converted to metres", scene_scales.missing, console)
    return Batch(root, store, scenes, choices.options, choices.split, scales, recorded)


def _merge(choices: BatchOptions, store: Store, names: Sequence[str]) -> None:
    """Merge the results of the scenes into a new folder. Raises StreamReconError, Cancelled."""
    assert isinstance(store, LocalStore), "checked at the start"
    target = store.folder / MERGED_NAME
    if target.exists():
        wide_console().print(f"{target} exists: it is not made again", soft_wrap=True)
        return
    folders = [store.folder / name for name in names]
    with TerminalObserver(*result_consoles()) as observer:
        report = merge_results(folders, target, choices.options, observer)
    wide_console().print(f"{target}: {report.frames} frames of {' + '.join(report.merged)}", soft_wrap=True)


def _pool(options: BatchOptions, loader: ModelLoader, store: Store, scenes: int) -> Pool:
    streams = _streams(options, loader, store, scenes)
    if streams is not None:
        return SharedNetworkPool(loader, store, streams)
    if options.workers is None or options.workers == 1:
        return SerialPool(loader, store)
    if store.single_process:
        raise ConfigError(f"{options.out} can be read by one process only: workers need a folder or a shared address")
    return ProcessPool(loader, store, options.workers)


def _streams(options: BatchOptions, loader: ModelLoader, store: Store, scenes: int) -> int | None:
    """Number of streams that share a network; None: each worker has its own."""
    if options.streams is None:
        if options.workers is not None or store.single_process:
            return None
        return DEFAULT_STREAMS if scenes * options.split > 1 and shares_by_default(loader) else None
    if options.streams < 1:
        raise ConfigError(f"--streams must be at least 1, not {options.streams}")
    if options.workers is not None:
        raise ConfigError("--streams cannot be combined with --workers")
    if store.single_process:
        raise ConfigError(f"{options.out} can be read by one process only: streams need a folder or a shared address")
    check_streams(loader)
    return options.streams
