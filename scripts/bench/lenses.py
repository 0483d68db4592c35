"""Field of view by refinement, for lenses from 25 to 130 degrees, straight and bent, on generated videos.

The network's field of view errs towards ordinary lenses. The camera moves sideways, straight ahead, or turns in place.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence

import numpy as np

from bench.scenarios.features import COUNT, SIZE, Case, Video
from bench.table import header, row
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import WarmStart

LENSES: dict[str, tuple[float, float, float, bool]] = {
    "25 straight": (25, 0, 0, False),
    "45 straight": (45, 0, 0, False),
    "70 straight": (70, 0, 0, False),
    "70 barrel": (70, -0.15, 0.02, False),
    "70 pincushion": (70, 0.08, 0, False),
    "90 straight": (90, 0, 0, False),
    "90 barrel": (90, -0.2, 0.04, False),
    "105 fish-eye": (105, 0.0, 0, True),
    "120 fish-eye": (120, 0.03, -0.01, True),
    "130 fish-eye": (130, 0.0, 0, True),
    "110 straight": (110, 0, 0, False),
}
"""Horizontal field of view in degrees, k1, k2, and whether it is a fish-eye lens."""
USUAL_DEG = 65
MOTIONS = ("sideways", "forward", "rotation")


def lens_of(fov_deg: float, k1: float = 0.0, k2: float = 0.0, fisheye: bool = False) -> CameraModel:
    """The camera with this horizontal field of view."""
    unit = CameraModel(1.0, 0.0, 0.0, k1, k2, fisheye)
    edge = float(unit.distorted(np.array([[np.tan(np.radians(fov_deg / 2)), 0.0]]))[0, 0])
    return CameraModel(SIZE[0] / 2 / edge, SIZE[0] / 2, SIZE[1] / 2, k1, k2, fisheye)


def measure(name: str, motion: str, seeds: Sequence[int]) -> None:
    """Print a line for one lens and motion."""
    lens, rows, models, notes = lens_of(*LENSES[name]), [], set(), set()
    began, true = time.process_time(), lens.field_of_view_deg(SIZE[0])
    for seed in seeds:
        wrong = 0.4 * np.log(lens_of(USUAL_DEG).focal / lens.focal) + 0.05 * np.random.default_rng(seed).normal()
        case = Case(motion, turn_deg=0.9, focal=float(np.exp(np.clip(wrong, -0.35, 0.35))), features=400)
        clip = Video(case, seed, 0, lens)
        known = WarmStart([*range(COUNT)], clip.features())
        found = refine(clip.views(), clip, clip.scale, RefineOptions(known=known))
        given = CameraModel(case.focal * lens.focal, SIZE[0] / 2, SIZE[1] / 2)
        before, after = (100 * (each.field_of_view_deg(SIZE[0]) / true - 1) for each in (given, found.lens))
        path = pose_errors(found.T_world_camera, clip.truth, np.ones(COUNT - 1, bool)).ate_over_path or 0.0
        rows.append((before, after, 100 * (found.report.focal_error or 0), path))
        models.add(found.lens.colmap_model)
        notes |= {found.report.start, *(str(s["why"]) for s in found.report.fallback_segments)}
    before, after, stated, path = np.array(rows).T
    row(
        f"{name}, {motion}",
        f"{before.mean():+.1f} %",
        f"{after.mean():+.2f} ({after.min():+.2f} to {after.max():+.2f}) %",
        f"{stated.mean():.1f} %",
        ", ".join(sorted(models)),
        f"{path.mean():.4f}",
        f"{(time.process_time() - began) / len(seeds):.1f} s",
        "; ".join(sorted(notes)),
    )


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", help="part of a lens's name")
    parser.add_argument("--motions", default=",".join(MOTIONS))


def run(options: Namespace) -> None:
    columns = "field of view before", "after", "stated error", "model", "ATE / path", "processor time", "start"
    header("lens, motion", *columns)
    for motion in options.motions.split(","):
        for name in LENSES:
            if not options.only or options.only in name:
                measure(name, motion, range(options.seeds))
