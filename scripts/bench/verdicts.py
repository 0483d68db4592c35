"""Verdicts on results of known error: rendered and real sequences as they are and with faults put in.

Each case is run with the complete program. The evidence (``run.json``, without times) and the true error of the online
and of the refined result go to a JSON file, so that the verdict is tuned without runs. Cases of one base sequence are
in the same half of the set: thresholds are set on one half, the other half checks them.
"""

import json
import shutil
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from bench.cases import (
    Clip,
    blank_interval,
    blurred,
    blurred_interval,
    moving_patch,
    noisy,
    plane,
    read_sequence,
    render,
    swapped_halves,
    written,
)
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import REFINEMENT, RunInfo
from stream_recon.app.result.verdict import judge
from stream_recon.app.run.session import Output, RunOptions, Session
from stream_recon.app.stages.finish import Finisher
from training.synthetic.cameras import Path as CameraPath
from training.synthetic.generator import CLUTTERED, OUTDOOR, ROOM, SceneShares

Image = NDArray[np.uint8]
FRAMES = 30
GOOD, WRECKED = 0.01, 0.03
"""ATE / path below which a result is right, and above which it is wrong."""
LANES = 3
EVIDENCE = ("interrupted", "focal_change", "dense")
"""Entries of ``run.json`` that are kept as they are."""
REFINED = (
    "keyframes", "segments", "loops", "pairs_accepted", "observations", "reprojection_px", "disagreement_before",
    "disagreement", "depth_agreement_before", "depth_agreement", "depth_error", "parallax_deg", "network_difference",
)  # fmt: skip
"""Entries of ``refinement`` that are kept."""


@dataclass(frozen=True)
class Base:
    """A sequence that gets faults."""

    make: Callable[[], Clip]
    half: int
    """0: thresholds are set on it; 1: it checks them."""


def _walk(motion: str | None, kind: int, seed: int, turning: float = 0.0, half: int = 0) -> Base:
    return Base(partial(render, SceneShares(turning=turning, motion=motion), kind, FRAMES, seed), half)


def _lanes(path: CameraPath) -> None:
    """Back and forth over a field, as survey drones fly."""
    count = path.position.shape[1]
    step = float(path.position.diff(dim=1).norm(dim=-1).mean())
    each = -(-count // LANES)
    number = torch.arange(count)
    lane, along = number // each, number % each
    along = torch.where(lane % 2 == 1, each - 1 - along, along)
    path.position[..., 0] = along * step
    path.position[..., 1] = lane * 4 * step
    path.yaw[:] = path.yaw[:, :1]


RENDERED: dict[str, Base] = {
    "room walk 5": _walk("walk", ROOM, 5),
    "room walk 11": _walk("walk", ROOM, 11, half=1),
    "outdoor walk 5": _walk("walk", OUTDOOR, 5, half=1),
    "outdoor walk 9": _walk("walk", OUTDOOR, 9),
    "heap orbit 7": _walk("orbit", CLUTTERED, 7),
    "room orbit 5": _walk("orbit", ROOM, 5, half=1),
    "drive 5": _walk("drive", OUTDOOR, 5),
    "survey 5": Base(partial(render, SceneShares(turning=0.0, motion="nadir"), OUTDOOR, FRAMES, 5, _lanes), 1),
    "looking down 6": _walk("nadir", OUTDOOR, 6),
    "stairs 3": _walk("stairs", ROOM, 3, half=1),
    "photographs 5": _walk(None, ROOM, 5, turning=1.0),
    "photographs of a heap 5": _walk(None, CLUTTERED, 5, turning=1.0, half=1),
    "rotation 5": _walk("rotation", ROOM, 5),
    "rotation 8": _walk("rotation", OUTDOOR, 8, half=1),
    "plane": Base(partial(plane, FRAMES, False), 1),
    "faint floor": Base(partial(plane, FRAMES, True), 0),
}
REAL: dict[str, tuple[str, int, int, int]] = {
    "kitchen/2": ("7scenes_a", 2, 30, 0),
    "kitchen/5": ("7scenes_a", 5, 30, 0),
    "kitchen/10": ("7scenes_a", 10, 25, 0),
    "room/2": ("room_phone_sfm", 2, 40, 1),
    "room/4": ("room_phone_sfm", 4, 30, 1),
    "room/8": ("room_phone_sfm", 8, 24, 1),
    "campus/2": ("university_sfm", 2, 36, 0),
    "campus/4": ("university_sfm", 4, 20, 0),
    "street/1": ("kitti06_short", 1, 40, 1),
    "street/2": ("kitti06_short", 2, 25, 1),
    "survey photographs/1": ("drone_caliterra", 1, 40, 1),
    "survey photographs/2": ("drone_caliterra", 2, 37, 1),
    "survey photographs/3": ("drone_caliterra", 3, 25, 1),
}
"""Folder of the sequence, every n-th frame, number of frames, and half of the set."""


def _dark(clip: Clip) -> Clip:
    noise = np.random.default_rng(4)
    return clip.change(lambda k, image: noisy(image * np.float32(0.05), noise))


def _faint(clip: Clip) -> Clip:
    noise = np.random.default_rng(5)
    return clip.change(lambda k, image: noisy(118 + (image.astype(np.float32) - 118) * 0.06, noise))


def _overlay(clip: Clip) -> Clip:
    """A frame with text that stays in the same place, over two fifths of the image."""
    height, width = clip.images[0].shape[:2]
    noise = np.random.default_rng(6)
    small = noise.integers(0, 255, (height // 10, width // 10, 3), dtype=np.uint8)
    picture = cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)
    fixed = np.ones((height, width), bool)
    fixed[round(0.12 * height) : round(0.88 * height), round(0.1 * width) : round(0.9 * width)] = False
    return clip.change(lambda k, image: np.where(fixed[..., None], picture, image).astype(np.uint8))


def _squeezed(clip: Clip) -> Clip:
    """Pixels that are not square, as after a wrong change of aspect ratio."""
    height, width = clip.images[0].shape[:2]
    return clip.change(lambda k, image: np.asarray(cv2.resize(image, (round(0.7 * width), height)), np.uint8))


def _zoomed(clip: Clip) -> Clip:
    """The camera zooms in by a factor of 1.8 while it moves."""
    height, width = clip.images[0].shape[:2]

    def zoom(k: int, image: Image) -> Image:
        factor = 1.8 ** (k / max(len(clip.images) - 1, 1))
        M = np.array([[factor, 0, (1 - factor) * width / 2], [0, factor, (1 - factor) * height / 2]])
        return np.asarray(cv2.warpAffine(image, M, (width, height)), np.uint8)

    return clip.change(zoom)


def _barrel(clip: Clip) -> Clip:
    """Strong radial distortion."""
    height, width = clip.images[0].shape[:2]
    u, v = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    x, y = (u - width / 2) / (width / 2), (v - height / 2) / (width / 2)
    bend = 0.75 + 0.25 * (x * x + y * y)
    u, v = x * bend * width / 2 + width / 2, y * bend * width / 2 + height / 2
    return clip.change(lambda k, image: np.asarray(cv2.remap(image, u, v, cv2.INTER_LINEAR), np.uint8))


def _mirrored(clip: Clip) -> Clip:
    """The second half is mirrored, as by an editor."""
    middle = len(clip.images) // 2
    return clip.change(lambda k, image: np.ascontiguousarray(image[:, ::-1]) if k >= middle else image)


def _textureless(clip: Clip) -> Clip:
    """Nearly all of the image becomes plain areas of colour."""
    noise = np.random.default_rng(7)

    def plain(k: int, image: Image) -> Image:
        smooth = cv2.medianBlur(np.asarray(cv2.pyrMeanShiftFiltering(image, 12, 45), np.uint8), 15)
        return noisy(smooth, noise)

    return clip.change(plain)


def _shuffled(clip: Clip) -> Clip:
    return clip.take(np.random.default_rng(8).permutation(len(clip.images)).tolist())


def _repeated(clip: Clip) -> Clip:
    """Every frame three times, with noise."""
    noise = np.random.default_rng(9)
    frames = [k for k in range(0, len(clip.images), 2) for _ in range(3)]
    return clip.take(frames).change(lambda k, image: noisy(image, noise))


def _sparse(clip: Clip) -> Clip:
    return clip.take(range(0, len(clip.images), 3))


def _joined(clip: Clip) -> Clip:
    """A third is cut out, with no mark of the cut."""
    count = len(clip.images)
    return clip.take([*range(count // 3), *range(2 * count // 3, count)])


FAULTS: dict[str, Callable[[Clip], Clip]] = {
    "as it is": lambda clip: clip,
    "blurred": lambda clip: clip.change(lambda k, image: blurred(image)),
    "blurred interval": blurred_interval,
    "blank interval": blank_interval,
    "dark": _dark,
    "faint": _faint,
    "moving patch": moving_patch,
    "overlay": _overlay,
    "squeezed": _squeezed,
    "zoomed": _zoomed,
    "barrel": _barrel,
    "mirrored": _mirrored,
    "textureless": _textureless,
    "shuffled": _shuffled,
    "repeated": _repeated,
    "sparse": _sparse,
    "joined": _joined,
    "swapped halves": swapped_halves,
}
CASES: dict[str, tuple[str, ...]] = {
    "room walk 5": ("as it is", "blurred", "dark", "moving patch", "squeezed", "zoomed"),
    "room walk 11": ("as it is", "faint", "mirrored", "blank interval"),
    "outdoor walk 5": ("as it is", "moving patch", "shuffled", "zoomed"),
    "outdoor walk 9": ("as it is", "blurred", "barrel"),
    "heap orbit 7": ("as it is", "squeezed", "textureless", "swapped halves"),
    "room orbit 5": ("as it is", "textureless"),
    "drive 5": ("as it is", "overlay", "blurred interval"),
    "survey 5": ("as it is", "sparse"),
    "looking down 6": ("as it is",),
    "stairs 3": ("as it is", "joined"),
    "photographs 5": ("as it is", "shuffled"),
    "photographs of a heap 5": ("as it is",),
    "rotation 5": ("as it is",),
    "rotation 8": ("as it is",),
    "plane": ("as it is",),
    "faint floor": ("as it is",),
    "kitchen/2": ("as it is", "repeated"),
    "kitchen/5": ("dark", "overlay"),
    "kitchen/10": ("as it is", "joined"),
    "room/2": ("as it is",),
    "room/4": ("as it is", "moving patch", "mirrored"),
    "room/8": ("as it is", "blurred"),
    "campus/2": ("as it is", "squeezed", "dark"),
    "campus/4": ("as it is", "shuffled"),
    "street/1": ("as it is", "repeated", "zoomed"),
    "street/2": ("as it is", "blank interval"),
    "survey photographs/1": ("as it is",),
    "survey photographs/2": ("as it is",),
    "survey photographs/3": ("as it is",),
}
"""Faults of each base sequence."""


def collect(folder: Path, sequences: Path | None, seconds: float) -> int:
    """Run cases that are not in ``folder`` yet, for about ``seconds``; returns the number of cases left."""
    begun, engine = time.monotonic(), None
    path = folder / "evidence.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    wanted = [(base, fault) for base, faults in CASES.items() for fault in faults]
    left = [(base, fault) for base, fault in wanted if f"{base}, {fault}" not in found]
    for number, (base, fault) in enumerate(left):
        if time.monotonic() - begun > seconds:
            return len(left) - number
        if base in REAL and sequences is None:
            continue
        engine = engine or load_engine()
        name = f"{base}, {fault}"
        half = REAL[base][3] if base in REAL else RENDERED[base].half
        clip = FAULTS[fault](_base(base, folder, sequences))
        started = time.monotonic()
        found[name] = {"half": half, **_run(engine, clip, folder / "results" / name.replace("/", "-"))}
        path.write_text(json.dumps(found, indent=0))
        errors = ", ".join(f"{stage} {found[name]['ate'][stage]}" for stage in found[name]["ate"])
        print(f"{name}: {errors}; {time.monotonic() - started:.0f} s", flush=True)
    return 0


def _base(name: str, folder: Path, sequences: Path | None) -> Clip:
    if name in REAL:
        sequence, stride, frames, _ = REAL[name]
        assert sequences is not None
        return replace(read_sequence(sequences / sequence, stride, frames), depth=None)
    stored = folder / "clips" / f"{name}.npz"
    if not stored.exists():
        clip = RENDERED[name].make()
        stored.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(stored, images=np.stack(clip.images), T=clip.T_world_camera, focal=clip.focal)
    with np.load(stored) as file:
        focal = float(file["focal"][0]), float(file["focal"][1])
        return Clip(list(file["images"]), file["T"], focal)


def _run(engine: Engine, clip: Clip, folder: Path) -> dict[str, Any]:
    """Evidence and true errors of the online and the refined result of a clip; the latter stays in ``folder``."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        scene = written(clip, Path(place) / "sequence")
        evaluator = Evaluator(scene.truth())
        engine.reset()
        with scene.open() as source:
            output = Output(folder, RunInfo.from_engine(engine, source.name, {}))
            with Session(engine, source, scene.open, RunOptions("full"), output) as session:
                session.reconstruct([evaluator])
        runs, ate = {"online": evidence_of(read_result(folder).run)}, {"online": _error(folder, clip)}
        Finisher(folder, scene.open, listeners=[evaluator]).refine()
        runs["refined"], ate["refined"] = evidence_of(read_result(folder).run), _error(folder, clip)
    return {"ate": ate, "run": runs}


def evidence_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence in a ``run.json``, without the rest."""
    found = {name: run.get(name) for name in EVIDENCE}
    found["frames"] = {name: run["frames"][name] for name in ("reconstructed", "blank", "damaged", "dropped")}
    found["health"] = {"weak_frames": run["health"]["weak_frames"]}
    found["segments"] = [{"index": segment["index"]} for segment in run["segments"]]
    if (refinement := run.get(REFINEMENT)) is not None:
        found[REFINEMENT] = {name: refinement.get(name) for name in REFINED} | {
            "fallback_segments": [{"first": s["first"], "last": s["last"]} for s in refinement["fallback_segments"]]
        }
    return {name: value for name, value in found.items() if value is not None}


def _error(folder: Path, clip: Clip) -> float:
    """ATE / path; 1 where no path came out."""
    cameras = read_result(folder).cameras
    index = np.array([camera.index for camera in cameras])
    T = np.array([camera.T_world_camera for camera in cameras])
    error = pose_errors(T, clip.T_world_camera[index], np.diff(index) == 1).ate_over_path
    return 1.0 if error is None else round(error, 5)


def write(evidence: Mapping[str, Any], path: Path) -> None:
    """Store the evidence for the test of the verdict, a line for each case."""
    lines = [f"{json.dumps(name)}:{json.dumps(case, separators=(',', ':'))}" for name, case in evidence.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def table(evidence: Mapping[str, Any]) -> None:
    """Print counts of verdicts by true error, for each half and stage, and each case."""
    for half in (0, 1):
        for stage in ("online", "refined"):
            counts: Counter[tuple[str, str]] = Counter()
            for case in evidence.values():
                if case["half"] == half:
                    error = case["ate"][stage]
                    truth = "right" if error < GOOD else "wrong" if error > WRECKED else "between"
                    counts[truth, judge(case["run"][stage]).level] += 1
            print(f"\n| half {half}, {stage} | good | doubtful | failed |\n|---|---|---|---|")
            for truth in ("right", "between", "wrong"):
                print(
                    f"| {truth} | {' | '.join(str(counts[truth, level]) for level in ('good', 'doubtful', 'failed'))} |"
                )
    print("\n| case | half | ATE / path online, refined | verdict online, refined | reason |\n|---|---|---|---|---|")
    for name, case in evidence.items():
        verdicts = [judge(case["run"][stage]) for stage in ("online", "refined")]
        errors = ", ".join(f"{case['ate'][stage]:.4f}" for stage in ("online", "refined"))
        print(f"| {name} | {case['half']} | {errors} | {', '.join(v.level for v in verdicts)} | {verdicts[1].reason} |")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="for evidence.json, rendered clips and results; filled step by step")
    parser.add_argument("--sequences", type=Path, help="folder with the real sequences; default: rendered ones alone")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also store the evidence there for the test")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after the case that ends later than this")


def run(options: Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    left = collect(options.folder, options.sequences, options.seconds)
    evidence = json.loads((options.folder / "evidence.json").read_text())
    table(evidence)
    if options.write is not None:
        write(evidence, options.write)
    if left:
        raise SystemExit(f"{left} cases are left: run the same command again")
