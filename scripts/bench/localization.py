"""Errors of single images in the map of a sequence with truth, and images of other places that were accepted.

Or of a video's later images in the map of its first ones, against the refined whole video. Two refinements of one
video differ, so the whole one is aligned with the map on frames of the map that share points with the image. The third
figure is how far the two differ on these frames.

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

from bench.cases import Clip, FloatArray, read_sequence
from bench.places import reconstructed
from stream_recon.app.core.transforms import align, rotation_angle_deg
from stream_recon.app.engine.engine import load_engine
from stream_recon.app.export.source_images import source_of
from stream_recon.app.localization.localize import LocalizationMap, NotLocalized
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.tracks import read_tracks

WITHIN, WITHIN_DEG = 0.02, 1.0
"""Errors of a good pose: of the position, as a share of the median depth, and of the rotation."""
OFF, OFF_DEG = 0.1, 5.0
"""Errors of a wrong one."""
NEARBY = 8
"""Frames of the map on either side whose path gives the unit of the truth."""
MIN_SHARED = 8
"""Least number of points that a frame of the map shares with an image."""


def bench_localization(sequence: Path, frames: int, step: int, foreign: Sequence[Path], work: Path) -> None:
    """Print a line for near and far queries, and one for images of other places."""
    clip = read_sequence(sequence, 1, 10**6)
    chosen = list(range(0, frames, 2))
    folder = work / "map"
    if not folder.exists():
        reconstructed(load_engine(), clip.take(chosen), folder)
    place, result = LocalizationMap.open(folder), read_result(folder)
    depth = float(np.median([np.median(result.surface_of(camera).depth) for camera in result.cameras[::10]]))
    print("| images | found | within 2 % and 1 degree | off by 10 % or 5 degrees | median, 90 % | CPU time |")
    print("|---|---|---|---|---|---|")
    for name, queries in (("near", range(1, frames, 2)), ("far", range(frames, len(clip.images)))):
        print(f"| {name} | {_figures(place, result, clip, chosen, queries[::step], depth)} |", flush=True)
    files = [path for each in foreign for path in sorted(each.iterdir())]
    images = [image for path in files if (image := cv2.imread(str(path))) is not None]
    accepted = sum(
        not isinstance(place.localize(np.asarray(image[..., ::-1].copy(), np.uint8)), NotLocalized) for image in images
    )
    if images:
        print(f"| of other places | {accepted} of {len(images)} | | | | |")


def _figures(
    place: LocalizationMap,
    result: ResultFolder,
    clip: Clip,
    chosen: Sequence[int],
    queries: Sequence[int],
    depth: float,
) -> str:
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
    return f"{len(e)} of {len(queries)} | {good} | {bad} | {spread} | {spent:.2f} s"


def bench_against_whole(map_folder: Path, whole_folder: Path, step: int) -> None:
    """Print lines for later images of a video: of all found, and of those where both refinements agree."""
    place, first, whole = LocalizationMap.open(map_folder), read_result(map_folder), read_result(whole_folder)
    shared = _Shared(first, whole)
    images = source_of(whole)
    assert images is not None
    last = first.cameras[-1].index
    depth = float(np.median([np.median(first.surface_of(camera).depth) for camera in first.cameras[::10]]))
    rows, count, spent = [], 0, 0.0
    with images() as frames:
        for frame in frames:
            if frame.index <= last or (frame.index - last - 1) % step:
                continue
            begun = time.process_time()
            found = place.localize(frame.rgb)
            spent += time.process_time() - begun
            count += 1
            if isinstance(found, NotLocalized):
                continue
            T, differ = shared.pose(frame.index)
            moved = float(np.linalg.norm(T[:3, 3] - found.T_world_camera[:3, 3])) / depth
            turned = float(rotation_angle_deg(T[:3, :3].T @ found.T_world_camera[:3, :3]))
            rows.append((moved, turned, differ / depth))
    e = np.array(rows).reshape(-1, 3)
    print(f"| images found | {len(e)} of {count}, {spent / count:.2f} s of CPU time each |")
    for name, chosen in (("any", np.isfinite(e[:, 0])), ("refinements agree within 2 %", e[:, 2] < WITHIN)):
        part = e[chosen]
        good = (part[:, :2] < (WITHIN, WITHIN_DEG)).all(axis=1).sum()
        bad = (part[:, :2] > (OFF, OFF_DEG)).any(axis=1).sum()
        p, d = np.median(part[:, :2], axis=0) if len(part) else (np.nan, np.nan)
        line = f"{good} of {len(part)} within 2 % and 1 degree, {bad} off; median {100 * p:.1f} % {d:.2f} deg"
        print(f"| {name} | {line} |")


class _Shared:
    """Frames of two refinements of one video that show the same."""

    def __init__(self, first: ResultFolder, whole: ResultFolder) -> None:
        self._first = {camera.index: camera.T_world_camera for camera in first.cameras}
        self._whole = {camera.index: camera.T_world_camera for camera in whole.cameras}
        tracks = read_tracks(whole.folder)
        assert tracks is not None
        self._points = {int(frame): set(tracks.point[tracks.frame == frame].tolist()) for frame in set(tracks.frame)}

    def pose(self, index: int) -> tuple[FloatArray, float]:
        """Pose of a frame of the whole in the first one's world, and the largest difference on the frames it shares
        points with; NaN where these are too few."""
        own = self._points[min(self._points, key=lambda frame: abs(frame - index))]
        counts = [(len(own & self._points[k]), k) for k in self._points if k in self._first]
        best = sorted([each for each in counts if each[0] >= MIN_SHARED], reverse=True)[:NEARBY]
        if len(best) < 3:
            return np.full((4, 4), np.nan), np.nan
        mine, theirs = (_axes(np.array([poses[k] for _, k in best])) for poses in (self._whole, self._first))
        S = align(mine, theirs, np.repeat([float(count) for count, _ in best], 4))
        differ = np.linalg.norm(S.apply(mine) - theirs, axis=1)
        return S.move_pose(self._whole[index]), float(differ.reshape(-1, 4)[:, 0].max())


def _axes(T: FloatArray) -> FloatArray:
    """Centres of cameras and ends of their axes [4 N, 3], as long as half the way between the cameras."""
    length = 0.5 * float(np.linalg.norm(np.ptp(T[:, :3, 3], axis=0)))
    ends = T[:, None, :3, 3] + length * T[:, :3, :3].transpose(0, 2, 1)
    return np.concatenate([T[:, None, :3, 3], ends], axis=1).reshape(-1, 3)


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
    parser.add_argument("sequence", type=Path, help="with rgb/, poses.txt and intrinsics.txt; or a refined result")
    parser.add_argument("--whole", type=Path, help="refined result of all of the video of the result SEQUENCE")
    parser.add_argument("--frames", type=int, default=120, help="first frames, of which the map has every second one")
    parser.add_argument("--step", type=int, default=4, help="take every n-th query")
    parser.add_argument("--foreign", type=Path, nargs="*", default=[], help="folders of images of other places")
    parser.add_argument("--keep", type=Path, help="folder for the map, which is used again")


def run(options: Namespace) -> None:
    if options.whole is not None:
        bench_against_whole(options.sequence, options.whole, options.step)
        return
    chosen = options.sequence, options.frames, options.step, options.foreign
    if options.keep is not None:
        bench_localization(*chosen, options.keep)
        return
    with tempfile.TemporaryDirectory() as work:
        bench_localization(*chosen, Path(work))
