"""Errors of single images in the map of a sequence with truth, and images of other places that were accepted.

The map is made of every second frame of the first ones; the frames between them are near queries, the later ones far
queries. A query's true pose in the map's world follows from the nearest frame of the map by the truth: errors of the
map itself are left out.
"""

import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.command import run_program
from bench.table import header, row
from stream_recon.app.core.transforms import align, rotation_angle_deg
from stream_recon.app.datasets.recording import Recording
from stream_recon.app.datasets.sequence import read_sequence
from stream_recon.app.localization.localize import LocalizationMap, NotLocalized
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.sources.image_decoding import read_image

WITHIN, WITHIN_DEG = 0.02, 1.0
"""Errors of a good pose: of the position, as a share of the median depth, and of the rotation."""
OFF, OFF_DEG = 0.1, 5.0
"""Errors of a wrong one."""
NEARBY = 8
"""Frames of the map on either side whose path gives the unit of the truth."""
IMAGES = (".jpg", ".png")


def bench_localization(folder: Path, frames: int, step: int, foreign: Sequence[Path], work: Path) -> None:
    """Print a line for near and far queries, and one for images of other places."""
    sequence = read_sequence(folder)
    options = ("--stride", 2, "--max-frames", (frames + 1) // 2, "--no-viewer", "--no-mesh", "--dense", "off")
    run_program(folder / "rgb", *options, out=work / "map")
    localizer, result = LocalizationMap.open(work / "map"), read_result(work / "map")
    depth = float(np.median([np.median(result.surface_of(camera).depth) for camera in result.cameras[::10]]))
    columns = "within 2 % and 1 degree", "off by 10 % or 5 degrees", "median, 90 %", "CPU time"
    header("images", "found", *columns)
    for name, queries in (("near", range(1, frames, 2)), ("far", range(frames, len(sequence.images)))):
        row(name, *_figures(localizer, result, sequence, queries[::step], depth))
    files = [path for each in foreign for path in sorted(each.iterdir()) if path.suffix.lower() in IMAGES]
    accepted = sum(not isinstance(localizer.localize(_rgb(path)), NotLocalized) for path in files)
    if files:
        row("of other places", f"{accepted} of {len(files)}", "", "", "", "")


def _rgb(path: Path) -> NDArray[np.uint8]:
    image = read_image(path)
    if image is None:
        raise SystemExit(f"{path} cannot be read as an image")
    return image


def _figures(
    localizer: LocalizationMap, result: ResultFolder, sequence: Recording, queries: Sequence[int], depth: float
) -> list[str]:
    errors, begin = [], time.process_time()
    for query in queries:
        pose = localizer.localize(_rgb(sequence.images[query]))
        if not isinstance(pose, NotLocalized):
            T = _true_pose(result, sequence, query)
            error = float(np.linalg.norm(T[:3, 3] - pose.T_world_camera[:3, 3])) / depth
            errors.append((error, float(rotation_angle_deg(T[:3, :3].T @ pose.T_world_camera[:3, :3]))))
    seconds = (time.process_time() - begin) / max(len(queries), 1)
    e = np.array(errors).reshape(-1, 2)
    good, bad = ((e < (WITHIN, WITHIN_DEG)).all(axis=1).sum(), (e > (OFF, OFF_DEG)).any(axis=1).sum())
    spread = ", ".join(f"{100 * p:.1f} % {d:.2f} deg" for p, d in np.quantile(e, (0.5, 0.9), axis=0)) if len(e) else ""
    return [f"{len(e)} of {len(queries)}", str(good), str(bad), spread, f"{seconds:.2f} s"]


def _true_pose(result: ResultFolder, sequence: Recording, query: int) -> NDArray[np.float64]:
    """The pose of a frame in the map's world, from the nearest frame of the map."""
    indices = np.array([camera.index for camera in result.cameras])
    k = int(np.abs(indices - query).argmin())
    near = slice(max(k - NEARBY, 0), k + NEARBY + 1)
    truth = np.array([sequence.poses[index][:3, 3] for index in indices[near]])
    estimated = np.array([camera.T_world_camera[:3, 3] for camera in result.cameras[near]])
    relative = np.linalg.inv(sequence.poses[indices[k]]) @ sequence.poses[query]
    relative[:3, 3] *= align(truth, estimated).scale
    return np.asarray(result.cameras[k].T_world_camera @ relative)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("sequence", type=Path, help="with rgb/, poses.txt and intrinsics.txt")
    parser.add_argument("--frames", type=int, default=120, help="first frames, of which the map has every second one")
    parser.add_argument("--step", type=int, default=4, help="take every n-th query")
    parser.add_argument("--foreign", type=Path, nargs="*", default=[], help="folders of images of other places")


def run(options: Namespace) -> None:
    with tempfile.TemporaryDirectory() as work:
        bench_localization(options.sequence, options.frames, options.step, options.foreign, Path(work))
