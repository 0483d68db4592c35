"""What each mechanism of mapping and stereo is worth: errors and CPU time without it, against all on.

Every switch of the configurations of the online back end, of refinement and of stereo is turned off alone, and the
changes of `CHANGES` and of --change are made alone. The network runs once for each sequence and jitter, a noise of one
grey level in the images. A run without a mechanism repeats only what depends on it. Each finished run is a line of
WORK/runs.jsonl, so that an interrupted benchmark goes on. Ratios are means over all runs, with their standard error.
"""

import dataclasses
import json
import os
import pickle
import shutil
import tempfile
import time
from argparse import ArgumentParser, Namespace
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from bench.table import header, row
from stream_recon.app.core.cores import limit_cores, usable_cores
from stream_recon.app.core.types import Frame, FrameResult, PreparedFrame
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.datasets.sequence import read_sequence
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.evaluation.dense_depth import dense_depth_errors
from stream_recon.app.result.folder import read_result, result_of
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.run.options import RunOptions
from stream_recon.app.run.session import Output, Session
from stream_recon.app.slam.dense.config import DEFAULT_STEREO, StereoConfig
from stream_recon.app.slam.offline.config import REFINE, RefineConfig
from stream_recon.app.slam.online.back_end import OnlineBackEnd
from stream_recon.app.slam.online.config import DEFAULT_ONLINE, OnlineConfig
from stream_recon.app.sources.preprocess import prepare
from stream_recon.app.stages.dense import DenseStage, why_not_dense, write_dense_depth
from stream_recon.app.stages.evaluate import evaluate_result
from stream_recon.app.stages.refinement import write_refinement
from stream_recon.app.stages.stage import StageContext

NOISE = 1.0
"""Grey levels of a jitter."""
SHOWN_EVERY_S = 60.0
"""From one partial table to the next."""
AT_END = -1
"""Number under which the results after the last frame are kept."""
ALL_ON = ""
"""Changes of the runs that the others are compared with."""
CHANGES = {
    "judgement: always the map": "offline.judge.max_lost=1e9, offline.judge.better=-1e9, offline.judge.sure=1e9, "
    "offline.judge.majority=0.0, offline.judge.broken=1e9, offline.judge.broken_depth=0.0, offline.judge.loose=0.0",
    "judgement: no runs of keyframes": "offline.judge.sure=1e9",
    "judgement: no broken maps": "offline.judge.broken=1e9, offline.judge.broken_depth=0.0, offline.judge.loose=0.0",
    "offline.fields": "offline.fields.min_gain=1e9",
    "offline.motions": "offline.motions.relevant=1e9",
    "offline.between": "offline.between.min_points=1000000",
}
"""Mechanisms without a switch, by name."""
STAGES = {"online": 0, "offline": 1, "stereo": 2}
"""First stage that a configuration changes: stream, refinement, stereo."""
MEASURES = {
    "stream": "ATE of the stream", "final": "ATE", "depth": "AbsRel", "dense": "AbsRel of stereo",
    "confirmed": "confirmed pixels",
}  # fmt: skip


@dataclass(frozen=True)
class Tuning:
    """All configurations of one run."""

    online: OnlineConfig = DEFAULT_ONLINE
    offline: RefineConfig = REFINE
    stereo: StereoConfig = DEFAULT_STEREO

    def changed(self, changes: str) -> "Tuning":
        """With changes such as ``online.loops.is_enabled=false, online.map.active=20``. Raises SystemExit."""
        tuning = self
        for change in filter(None, map(str.strip, changes.split(","))):
            path, _, value = change.partition("=")
            try:
                tuning = _replaced(tuning, path.strip().split("."), literal_eval(value.strip().capitalize()))
            except (AttributeError, ValueError, SyntaxError):
                raise SystemExit(f"bench: {change!r} is no change of a configuration") from None
        return tuning


def _replaced(config: Any, path: Sequence[str], value: Any) -> Any:
    old = getattr(config, path[0])
    new = value if len(path) == 1 else _replaced(old, path[1:], value)
    if type(new) is not type(old):
        raise ValueError
    return dataclasses.replace(config, **{path[0]: new})


def switches(config: Any, path: str = "") -> Iterator[str]:
    """Paths of all switches that are on."""
    for entry in dataclasses.fields(config):
        value, switch = getattr(config, entry.name), f"{path}{entry.name}"
        if value is True:
            yield switch
        elif dataclasses.is_dataclass(value):
            yield from switches(value, f"{switch}.")


def mechanisms(chosen: Sequence[str], changes: Sequence[str]) -> dict[str, str]:
    """Changes by name of the mechanism; ``chosen``: beginnings of names, none: all."""
    by_name = {path.removesuffix(".is_enabled"): f"{path}=false" for path in switches(Tuning())}
    by_name |= CHANGES
    by_name = {name: text for name, text in by_name.items() if not chosen or name.startswith(tuple(chosen))}
    return by_name | {text: text for text in changes}


@dataclass(frozen=True)
class Clip:
    """One jitter of a sequence, in a folder of the work."""

    name: str
    seed: int
    source: Path
    frames: int
    stride: int
    work: Path

    @property
    def folder(self) -> Path:
        """Folder for its images, the network's results and the runs with all on."""
        return self.work / f"{self.name}-{self.seed}-{self.frames}x{self.stride}"

    @property
    def scene(self) -> Scene:
        return Scene(self.name, "sequence", self.folder / "sequence", None)

    def write(self) -> None:
        """Write the images with noise, beside the ground truth; seed 0: without."""
        target = self.folder / "sequence"
        shutil.rmtree(target, ignore_errors=True)
        (target / "rgb").mkdir(parents=True)
        images = read_sequence(self.source).images[:: self.stride][: self.frames]
        for index, path in enumerate(images):
            image = np.asarray(cv2.imread(str(path)), np.float64)
            noise = np.random.default_rng([self.seed, index]).normal(0, NOISE, image.shape) if self.seed else 0.0
            noisy = np.clip(np.rint(image + noise), 0, 255).astype(np.uint8)
            cv2.imwrite(str(target / "rgb" / f"{path.stem}.png"), noisy)
        for path in self.source.iterdir():
            if path.name != "rgb":
                (target / path.name).symlink_to(path.resolve())


@dataclass(frozen=True)
class Run:
    """A clip with a changed configuration; its key in the file of runs."""

    clip: Clip
    changes: str = ALL_ON

    @property
    def key(self) -> str:
        return f"{self.clip.folder.name} {self.changes}"

    @property
    def first_stage(self) -> int:
        """Number of the first stage that differs from that with all on."""
        names = [change.strip().split(".")[0] for change in self.changes.split(",") if change.strip()]
        return min((STAGES[name] for name in names), default=0)


class Recorded:
    """An engine that returns the results that the network gave before."""

    device, attention, threads, submaps, reference_frames = "cpu", "recorded", 0, 1, ()

    def __init__(self, engine_preset: Any, results: Mapping[int, list[FrameResult]]) -> None:
        self.preset, self._results = engine_preset, results
        self.weights_sha256, self.precision, self.cache = "0" * 64, "fp32", "full"
        self.cache_use: dict[str, Any] = {}
        self._transform = next(result.transform for group in results.values() for result in group)

    def expect(self, frames: int | None) -> None:
        pass

    def prepare(self, frame: Frame) -> PreparedFrame:
        return prepare(frame, self._transform)

    def push(self, frame: PreparedFrame) -> list[FrameResult]:
        return self._results.get(frame.index, [])

    def finish(self) -> list[FrameResult]:
        return self._results[AT_END]


@lru_cache(1)
def _engine() -> Engine:
    return load_engine(device="cpu", precision="fp32")


def record(clip: Clip) -> Clip:
    """Write a clip and the network's results of it."""
    clip.write()
    engine, results = _engine(), {}
    engine.reset()
    with clip.scene.open() as source:
        for frame in source:
            results[frame.index] = [*engine.push(engine.prepare(frame))]
    results[AT_END] = [*engine.finish()]
    (clip.folder / "network.pickle").write_bytes(pickle.dumps((engine.preset, results)))
    return clip


def measured(run: Run) -> dict[str, Any]:
    """Errors and CPU seconds of a run, by stage."""
    clip, tuning = run.clip, Tuning().changed(run.changes)
    has_depth = bool((truth := clip.scene.truth()) and truth.has_depth)
    errors: dict[str, float | None] = {}
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=clip.work) as temporary:
        folder = Path(temporary) / "result"
        for stage, name in enumerate(("stream", "refine", "stereo")):
            known = clip.folder / name
            if stage < run.first_stage:
                if stage == run.first_stage - 1:
                    shutil.copytree(known, folder)
                continue
            if name == "stereo" and not (has_depth and why_not_dense(read_result(folder), clip.scene.open) is None):
                continue
            if name == "stereo" and run.changes and run.first_stage < STAGES["stereo"]:
                continue  # stereo is measured where it alone differs
            begin = time.process_time()
            if name == "stream":
                _stream(clip, folder, tuning.online)
            elif name == "refine":
                write_refinement(StageContext(folder, clip.scene.open), config=tuning.offline)
            else:
                write_dense_depth(StageContext(folder, clip.scene.open), DenseStage(device="cpu", stereo=tuning.stereo))
            seconds[name] = time.process_time() - begin
            if name == "stereo":
                result = read_result(folder)
                cameras = [camera for camera in result.cameras if camera.index in result.dense]
                pairs = ((result.surface_of(camera), result_of(folder, camera)) for camera in cameras)
                assert truth is not None
                dense_errors = dense_depth_errors(pairs, truth)
                if dense_errors is not None:
                    errors |= {"dense": dense_errors.dense.absrel, "confirmed": dense_errors.shares["confirmed"]}
            else:
                metrics = evaluate_result(read_result(folder), truth).metrics()
                errors["stream" if name == "stream" else "final"] = metrics.ate_over_path
                errors["depth"] = metrics.absrel
            if run.changes == ALL_ON:
                shutil.rmtree(known, ignore_errors=True)
                shutil.copytree(folder, known)
    return {"key": run.key, "clip": clip.folder.name, "changes": run.changes, "errors": errors, "seconds": seconds}


def _stream(clip: Clip, folder: Path, config: OnlineConfig) -> None:
    preset, results = pickle.loads((clip.folder / "network.pickle").read_bytes())
    engine: Any = Recorded(preset, results)
    back_end = OnlineBackEnd(prefill=preset.stream.scale_frames, config=config)
    with clip.scene.open() as source:
        output = Output(folder, RunInfo.from_engine(engine, source.name, {}))
        with Session(engine, source, clip.scene.open, RunOptions(mapping="off"), output) as session:
            session.reconstruct(back_end=back_end)


def _one_core() -> None:
    import torch

    torch.set_num_threads(1)
    limit_cores(1)


@dataclass
class Ablation:
    """All runs, those that are finished, and their table."""

    clips: Sequence[Clip]
    changes: Mapping[str, str]
    """By name of the mechanism."""
    file: Path
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            finished = json.loads(line)
            self.done[finished["key"]] = finished

    def run(self, processes: int) -> None:
        """Do what is left, and print partial tables."""
        with ProcessPoolExecutor(processes, get_context("spawn"), _one_core) as pool:
            waiting: dict[Future[Any], Run | Clip] = {}
            for clip in self.clips:
                if (clip.folder / "network.pickle").exists():
                    self._submit(pool, waiting, clip)
                else:
                    waiting[pool.submit(record, clip)] = clip
            shown = time.monotonic()
            while waiting:
                for future in wait(waiting, SHOWN_EVERY_S, FIRST_COMPLETED).done:
                    task = waiting.pop(future)
                    if future.exception() is not None:
                        self.failed.append(f"{task}: {future.exception()!r}")
                        continue
                    if isinstance(task, Run):
                        self._store(future.result())
                    if isinstance(task, Clip) or task.changes == ALL_ON:
                        self._submit(pool, waiting, task if isinstance(task, Clip) else task.clip)
                if time.monotonic() > shown + SHOWN_EVERY_S:
                    shown = time.monotonic()
                    print(f"{len(self.done)} runs, {len(waiting)} begun or waiting", flush=True)
                    self.show()

    def _submit(self, pool: ProcessPoolExecutor, waiting: dict[Future[Any], Run | Clip], clip: Clip) -> None:
        """Submit the run of a clip with all on, or the others where that is done."""
        first = Run(clip)
        others = [Run(clip, changes) for changes in self.changes.values()] if first.key in self.done else [first]
        for run in others:
            if run.key not in self.done:
                waiting[pool.submit(measured, run)] = run

    def _store(self, finished: dict[str, Any]) -> None:
        self.done[finished["key"]] = finished
        with self.file.open("a") as file:
            file.write(json.dumps(finished) + "\n")

    def show(self) -> None:
        """Print the table of the finished runs."""
        header("without", "runs", *MEASURES.values(), "CPU time")
        for name, changes in self.changes.items():
            keys = [(Run(clip, changes).key, Run(clip).key) for clip in self.clips]
            pairs = [(self.done[a], self.done[b]) for a, b in keys if a in self.done and b in self.done]
            cells = [_ratio([_pair(a["errors"], b["errors"], measure) for a, b in pairs]) for measure in MEASURES]
            # A stage that was not repeated costs what it did with all on.
            seconds = [({**b["seconds"], **a["seconds"]}, b["seconds"]) for a, b in pairs]
            cpu = [(sum(a.values()), sum(b.values())) for a, b in seconds]
            row(name, len(pairs), *cells, _ratio(cpu))
        for line in self.failed:
            print(f"failed: {line}")


def _pair(errors: Mapping[str, Any], others: Mapping[str, Any], measure: str) -> tuple[float, float] | None:
    a, b = errors.get(measure), others.get(measure)
    return (float(a), float(b)) if a and b else None


def _ratio(pairs: Sequence[tuple[float, float] | None]) -> str:
    """Geometric mean of the ratios of pairs, with its standard error."""
    logs = np.log([pair[0] / pair[1] for pair in pairs if pair is not None])
    if not len(logs):
        return "-"
    mean, error = np.exp(logs.mean()), logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else np.nan
    return f"{mean:.3f} ± {mean * error:.3f}"


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("sequences", type=Path, nargs="+", metavar="SEQUENCE", help="sequences with ground truth")
    parser.add_argument("--work", type=Path, required=True, help="folder for images, network's results and runs")
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3, help="jitters; the first one is without noise")
    parser.add_argument("--processes", type=int, help="default: the machine's cores")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="beginnings of mechanisms' names")
    parser.add_argument(
        "--change", action="append", default=[], metavar="CHANGES", help="further mechanism: its changes"
    )
    parser.add_argument("--list", action="store_true", help="print the mechanisms")


def run(options: Namespace) -> None:
    changes = mechanisms(options.only, options.change)
    for text in changes.values():
        Tuning().changed(text)
    if options.list:
        print("\n".join(f"{name}: {text}" for name, text in changes.items()))
        return
    work = options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    sources = [(seed, path.resolve()) for seed in range(options.seeds) for path in options.sequences]
    known = [Clip(path.name, seed, path, options.frames, options.stride, work) for seed, path in sources]
    ablation = Ablation(known, changes, work / "runs.jsonl")
    ablation.run(options.processes or usable_cores())
    ablation.show()
    if ablation.failed:
        raise SystemExit(1)
