"""Verdicts on results of known error: rendered and real sequences as they are and with faults put in.

Each case is run with the complete program. The evidence (``run.json``, without times) and the true error of the online
and of the refined result go to a JSON file, so that the verdict is tuned without runs. Cases of one base sequence are
in the same half of the set: thresholds are set on one half, the other half checks them.
"""

import json
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.scenarios.faults import FAULTS
from bench.scenarios.images import Clip, plane, read_sequence, rendered
from bench.table import header, row
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import REFINEMENT
from stream_recon.app.result.verdict import judge
from stream_recon.app.sources.source import open_source
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.refine import RefineStage
from stream_recon.app.stages.stage import StageContext
from training.synthetic.cameras import Path as CameraPath
from training.synthetic.generator import CLUTTERED, OUTDOOR, ROOM, SceneShares

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

    make: Callable[[Path | None], Clip]
    """From the folder of the real sequences."""
    half: int
    """0: thresholds are set on it; 1: it checks them."""
    faults: str = "as it is"
    """Names in `FAULTS`, separated by commas."""
    is_real: bool = False


def _made(
    motion: str | None, kind: int, seed: int, half: int, faults: str = "as it is", *, turning: float = 0.0,
    alter: Callable[[CameraPath], None] | None = None,
) -> Base:  # fmt: skip
    shares = SceneShares(turning=turning, motion=motion)
    return Base(lambda _: rendered(kind, FRAMES, seed, shares, alter), half, faults)


def _real(folder: str, stride: int, frames: int, half: int, faults: str = "as it is") -> Base:
    def read(sequences: Path | None) -> Clip:
        assert sequences is not None
        return replace(read_sequence(sequences / folder, stride, frames), depth=None)

    return Base(read, half, faults, is_real=True)


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


BASES: dict[str, Base] = {
    "room walk 5": _made("walk", ROOM, 5, 0, "as it is,blurred,dark,moving patch,squeezed,zoomed"),
    "room walk 11": _made("walk", ROOM, 11, 1, "as it is,faint,mirrored,blank interval"),
    "outdoor walk 5": _made("walk", OUTDOOR, 5, 1, "as it is,moving patch,shuffled,zoomed"),
    "outdoor walk 9": _made("walk", OUTDOOR, 9, 0, "as it is,blurred,barrel"),
    "heap orbit 7": _made("orbit", CLUTTERED, 7, 0, "as it is,squeezed,textureless,swapped halves"),
    "room orbit 5": _made("orbit", ROOM, 5, 1, "as it is,textureless"),
    "drive 5": _made("drive", OUTDOOR, 5, 0, "as it is,overlay,blurred interval"),
    "survey 5": _made("nadir", OUTDOOR, 5, 1, "as it is,sparse", alter=_lanes),
    "looking down 6": _made("nadir", OUTDOOR, 6, 0),
    "stairs 3": _made("stairs", ROOM, 3, 1, "as it is,joined"),
    "photographs 5": _made(None, ROOM, 5, 0, "as it is,shuffled", turning=1.0),
    "photographs of a heap 5": _made(None, CLUTTERED, 5, 1, turning=1.0),
    "rotation 5": _made("rotation", ROOM, 5, 0),
    "rotation 8": _made("rotation", OUTDOOR, 8, 1),
    "plane": Base(lambda _: plane(FRAMES, False), 1),
    "faint floor": Base(lambda _: plane(FRAMES, True), 0),
    "kitchen/2": _real("7scenes_a", 2, 30, 0, "as it is,repeated"),
    "kitchen/5": _real("7scenes_a", 5, 30, 0, "dark,overlay"),
    "kitchen/10": _real("7scenes_a", 10, 25, 0, "as it is,joined"),
    "room/2": _real("room_phone_sfm", 2, 40, 1),
    "room/4": _real("room_phone_sfm", 4, 30, 1, "as it is,moving patch,mirrored"),
    "room/8": _real("room_phone_sfm", 8, 24, 1, "as it is,blurred"),
    "campus/2": _real("university_sfm", 2, 36, 0, "as it is,squeezed,dark"),
    "campus/4": _real("university_sfm", 4, 20, 0, "as it is,shuffled"),
    "street/1": _real("kitti06_short", 1, 40, 1, "as it is,repeated,zoomed"),
    "street/2": _real("kitti06_short", 2, 25, 1, "as it is,blank interval"),
    "survey photographs/1": _real("drone_caliterra", 1, 40, 1),
    "survey photographs/2": _real("drone_caliterra", 2, 37, 1),
    "survey photographs/3": _real("drone_caliterra", 3, 25, 1),
}


def collect(folder: Path, sequences: Path | None, seconds: float) -> int:
    """Run cases that are not in ``folder`` yet, for about ``seconds``; returns the number of cases left."""
    begun, engine = time.monotonic(), load_engine()
    path = folder / "evidence.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    wanted = [
        (f"{name}, {fault}", base, fault)
        for name, base in BASES.items()
        if sequences is not None or not base.is_real
        for fault in base.faults.split(",")
    ]
    left = [each for each in wanted if each[0] not in found]
    for number, (name, base, fault) in enumerate(left):
        if time.monotonic() - begun > seconds:
            return len(left) - number
        clip = FAULTS[fault](base.make(sequences))
        found[name] = {"half": base.half, **_run(engine, clip, folder / "results" / name.replace("/", "-"))}
        path.write_text(json.dumps(found, indent=0))
        print(f"{name}: {found[name]['ate']}", flush=True)
    return 0


def _run(engine: Engine, clip: Clip, folder: Path) -> dict[str, Any]:
    """Evidence and true errors of the online and the refined result of a clip; the latter stays in ``folder``."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    clip.reconstruct(engine, folder)
    runs, ate = {"online": evidence_of(read_result(folder).run)}, {"online": _error(folder, clip)}
    images = str(folder.with_name(folder.name + "-images") / "rgb")
    run_stages(RunPlan((RefineStage(),)), StageContext(folder, partial(open_source, images)))
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


def print_counts(evidence: Mapping[str, Any]) -> None:
    """Print counts of verdicts by true error, for each half and stage, and each case."""
    levels = ("good", "doubtful", "failed")
    for half in (0, 1):
        for stage in ("online", "refined"):
            counts: Counter[tuple[str, str]] = Counter()
            for case in evidence.values():
                if case["half"] == half:
                    error = case["ate"][stage]
                    truth = "right" if error < GOOD else "wrong" if error > WRECKED else "between"
                    counts[truth, judge(case["run"][stage]).level] += 1
            header(f"half {half}, {stage}", *levels)
            for truth in ("right", "between", "wrong"):
                row(truth, *(counts[truth, level] for level in levels))
    header("case", "half", "ATE / path online, refined", "verdict online, refined", "reason")
    for name, case in evidence.items():
        verdicts = [judge(case["run"][stage]) for stage in ("online", "refined")]
        errors = ", ".join(f"{case['ate'][stage]:.4f}" for stage in ("online", "refined"))
        row(name, case["half"], errors, ", ".join(v.level for v in verdicts), verdicts[1].reason)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="for evidence.json and results; filled step by step")
    parser.add_argument("--sequences", type=Path, help="folder with the real sequences; default: rendered ones alone")
    parser.add_argument("--write", type=Path, metavar="FILE", help="also store the evidence there for the test")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after the case that ends later than this")


def run(options: Namespace) -> None:
    options.folder.mkdir(parents=True, exist_ok=True)
    left = collect(options.folder, options.sequences, options.seconds)
    evidence = json.loads((options.folder / "evidence.json").read_text())
    print_counts(evidence)
    if options.write is not None:
        lines = [f"{json.dumps(name)}:{json.dumps(case, separators=(',', ':'))}" for name, case in evidence.items()]
        options.write.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if left:
        raise SystemExit(f"{left} cases are left: run the same command again")
