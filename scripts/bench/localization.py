"""Errors of single images in the map of a sequence with truth, and images of other places that were accepted.

The map is made of every second frame of the first ones; the frames between them are near queries, the later ones far
queries. An image's true pose is that of the nearest frame of the map, moved as by the truth: errors of the map itself
are left out.
"""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from bench.places import reconstructed
from bench.scenarios.images import Clip, FloatArray, read_sequence
from bench.table import header, row
from stream_recon.app.core.transforms import align, rotation_angle_deg
from stream_recon.app.engine.engine import load_engine
from stream_recon.app.localization.localize import LocalizationMap, NotLocalized
from stream_recon.app.result.folder import ResultFolder, read_result

WITHIN, WITHIN_DEG = 0.02, 1.0
"""Errors of a good pose: of the position, as a share of the median depth, and of the rotation."""
OFF, OFF_DEG = 0.1, 5.0
"""Errors of a wrong one."""
NEARBY = 8
"""Frames of the map on either side whose path gives the unit of the truth."""


def bench_localization(sequence: Path, frames: int, step: int, foreign: Sequence[Path], work: Path) -> None:
    """Print a line for near and far queries, and one for images of other places."""
    clip = read_sequence(sequence, 1, 10**6)
    chosen = list(range(0, frames, 2))
    folder = work / "map"
    reconstructed(load_engine(), clip.take(chosen), folder)
    place, result = LocalizationMap.open(folder), read_result(folder)
    depth = float(np.median([np.median(result.surface_of(camera).depth) for camera in result.cameras[::10]]))
    columns = "within 2 % and 1 degree", "off by 10 % or 5 degrees", "median, 90 %", "CPU time"
    header("images", "found", *columns)
    for name, queries in (("near", range(1, frames, 2)), ("far", range(frames, len(clip.images)))):
        row(name, *_figures(place, result, clip, chosen, queries[::step], depth))
    files = [path for each in foreign for path in sorted(each.iterdir())]
    images = [image for path in files if (image := cv2.imread(str(path))) is not None]
    accepted = sum(
        not isinstance(place.localize(np.asarray(image[..., ::-1].copy(), np.uint8)), NotLocalized) for image in images
    )
    if images:
        row("of other places", f"{accepted} of {len(images)}", "", "", "", "")


def _figures(
    place: LocalizationMap,
    result: ResultFolder,
    clip: Clip,
    chosen: Sequence[int],
    queries: Sequence[int],
    depth: float,
) -> list[str]:
    errors, begun = [], time.process_time()
    for query in queries:
        found = place.localize(clip.images[query])
        if not isinstance(found, NotLocalized):
            T = _true_pose(result, clip.T_world_camera, chosen, query)
            moved = float(np.linalg.norm(T[:3, 3] - found.T_world_camera[:3, 3])) / depth
            errors.append((moved, float(rotation_angle_deg(T[:3, :3].T @ found.T_world_camera[:3, :3]))))
    spent = (time.process_time() - begun) / max(len(queries), 1)
    e = np.array(errors).reshape(-1, 2)
    good, bad = ((e < (WITHIN, WITHIN_DEG)).all(axis=1).sum(), (e > (OFF, OFF_DEG)).any(axis=1).sum())
    spread = ", ".join(f"{100 * p:.1f} % {d:.2f} deg" for p, d in np.quantile(e, (0.5, 0.9), axis=0)) if len(e) else ""
    return [f"{len(e)} of {len(queries)}", str(good), str(bad), spread, f"{spent:.2f} s"]


def _true_pose(result: ResultFolder, truth: FloatArray, chosen: Sequence[int], query: int) -> FloatArray:
    """The pose of a frame in the map's world, from the nearest frame of the map."""
    known = np.array(chosen)
    k = int(np.abs(known - query).argmin())
    near = slice(max(k - NEARBY, 0), k + NEARBY + 1)
    mine = np.array([camera.T_world_camera for camera in result.cameras])
    scale = align(truth[known][near, :3, 3], mine[near, :3, 3]).scale
    relative = np.linalg.inv(truth[known[k]]) @ truth[query]
    relative[:3, 3] *= scale
    return np.asarray(mine[k] @ relative)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("sequence", type=Path, help="with rgb/, poses.txt and intrinsics.txt")
    parser.add_argument("--frames", type=int, default=120, help="first frames, of which the map has every second one")
    parser.add_argument("--step", type=int, default=4, help="take every n-th query")
    parser.add_argument("--foreign", type=Path, nargs="*", default=[], help="folders of images of other places")


def run(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as work:
        bench_localization(options.sequence, options.frames, options.step, options.foreign, Path(work))
