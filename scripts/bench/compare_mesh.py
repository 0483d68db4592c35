#!/usr/bin/env python3
"""Print the errors of a mesh against known surfaces: scripts/bench/compare_mesh.py OUT [MESH] [--sequence DIR]

OUT is a result folder of the rendered sample, or of the sequence DIR with metric depth (rgb/, depth/, poses.txt,
intrinsics.txt). MESH is a mesh of the result, by default its mesh.glb; a GLB must have the default up direction. The
cameras' orientations and positions give the similarity to the truth. Accuracy: distances of points of the mesh from
the true surface; completeness: distances of points of the true surface, as far as every tenth frame saw it, from the
mesh; both as means, and the shares within distances, whose harmonic mean is F1 (Knapitsch et al., 2017).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import trimesh
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.transforms import Similarity, align_poses, mean_rotation
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.export.view import gltf_axes
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.configs.errors import InputError, StreamReconError

FloatArray = NDArray[np.float64]
TRUTH = Path(__file__).resolve().parents[2] / "app" / "sample" / "walkthrough.truth.npz"
SAMPLES = 400_000
"""Points on the mesh."""
EVERY = 10
"""Frames of a sequence between those whose depth is the truth."""
PIXEL_STEP = 4
"""Pixels between points of the truth."""
SPACING = 0.01
"""Metres between points of the truth: what was seen often counts once."""
DEPTH_RANGE = (0.3, 4.0)
"""Metres in which a Kinect's depth is taken as truth."""


def sample_truth() -> tuple[FloatArray, dict[int, FloatArray]]:
    """Points [N, 3] in metres, and the poses of all frames."""
    with np.load(TRUTH) as truth:
        poses, (fx, fy, cx, cy), stride = truth["T_world_camera"], truth["intrinsics"], int(truth["depth_stride"])
        points = []
        for z, index in zip(truth["depth"].astype(np.float64), truth["depth_frames"], strict=True):
            rows, columns = np.nonzero(z > 0)
            z = z[rows, columns]
            rays = np.stack([(columns * stride + 0.5 - cx) / fx, (rows * stride + 0.5 - cy) / fy, np.ones_like(z)], 1)
            points.append(rays * z[:, None] @ poses[index, :3, :3].T + poses[index, :3, 3])
    return np.concatenate(points), dict(enumerate(poses))


def sequence_truth(folder: Path, used: Sequence[int]) -> tuple[FloatArray, dict[int, FloatArray]]:
    """The same of a sequence with metric depth, of the frames from the first to the last of ``used``."""
    table = np.loadtxt(folder / "poses.txt")
    poses = {int(row[0]): row[1:].reshape(4, 4) for row in table}
    k = Intrinsics(*np.loadtxt(folder / "intrinsics.txt")[:4].tolist())
    points = []
    for index in range(min(used), max(used) + 1, EVERY):
        image = cv2.imread(str(folder / "depth" / f"{index:06d}.png"), cv2.IMREAD_UNCHANGED)
        if image is None or index not in poses:
            continue
        depth = image[::PIXEL_STEP, ::PIXEL_STEP].astype(np.float64) / 1000
        rows, columns = np.nonzero((depth > DEPTH_RANGE[0]) & (depth < DEPTH_RANGE[1]))
        z = depth[rows, columns]
        x, y = (columns * PIXEL_STEP + 0.5 - k.cx) / k.fx, (rows * PIXEL_STEP + 0.5 - k.cy) / k.fy
        rays = np.stack([x, y, np.ones_like(z)], 1)
        points.append(rays * z[:, None] @ poses[index][:3, :3].T + poses[index][:3, 3])
    if not points:
        raise InputError(f"{folder} has no depth of the result's frames")
    return np.concatenate(points), poses


def alignment(ours: FloatArray, truth: FloatArray) -> Similarity:
    """Similarity of poses [N, 4, 4] to true ones: rotation by orientations, then scale and translation by positions."""
    rotation = mean_rotation(truth[:, :3, :3] @ np.swapaxes(ours[:, :3, :3], 1, 2))
    source = (ours[:, :3, 3] - ours[:, :3, 3].mean(axis=0)) @ rotation.T
    target = truth[:, :3, 3] - truth[:, :3, 3].mean(axis=0)
    scale = float((source * target).sum() / np.square(source).sum())
    return align_poses(ours, truth, scale)


def spread(points: FloatArray, spacing: float) -> FloatArray:
    """One of the points [N, 3] in each cube."""
    _, first = np.unique(np.floor(points / spacing).astype(np.int64), axis=0, return_index=True)
    return points[first]


def read_mesh(result: ResultFolder, path: Path) -> trimesh.Trimesh:
    """A mesh in the result's coordinates."""
    mesh = trimesh.load(path, force="mesh", process=False)
    xyz = np.asarray(mesh.vertices, np.float64)
    if path.suffix == ".glb":
        xyz = xyz @ gltf_axes(result, "auto")
    return trimesh.Trimesh(xyz, mesh.faces, process=False)


def compare(folder: Path, path: Path, sequence: Path | None, within: Sequence[float]) -> None:
    """Raises StreamReconError if the folder holds no result of the sample or sequence."""
    result = read_result(folder)
    used = [camera.index for camera in result.cameras]
    surface, poses = sample_truth() if sequence is None else sequence_truth(sequence, used)
    known = [camera for camera in result.cameras if camera.index in poses]
    if len(known) < 2 or (sequence is None and max(used) >= len(poses)):
        raise InputError(f"{folder} is no result of {sequence or 'the sample'}")
    ours = np.array([camera.T_world_camera for camera in known])
    to_truth = alignment(ours, np.array([poses[camera.index] for camera in known]))
    mesh = read_mesh(result, path)
    faces = len(mesh.faces)
    mesh = trimesh.Trimesh(to_truth.apply(np.asarray(mesh.vertices, np.float64)), mesh.faces, process=False)
    samples = spread(np.asarray(trimesh.sample.sample_surface(mesh, SAMPLES, seed=0)[0]), SPACING)
    if sequence is not None:
        surface = spread(surface, SPACING)
    accuracy, completeness = cKDTree(surface).query(samples)[0], cKDTree(samples).query(surface)[0]
    print(f"{faces} triangles against the known surfaces:")
    print(f"  accuracy      {100 * accuracy.mean():.1f} cm (median {100 * np.median(accuracy):.1f})")
    print(f"  completeness  {100 * completeness.mean():.1f} cm (median {100 * np.median(completeness):.1f})")
    for distance in within:
        precision, recall = float((accuracy < distance).mean()), float((completeness < distance).mean())
        f1 = 2 * precision * recall / max(precision + recall, 1e-9)
        shares = f"{precision:.1%} of the mesh, {recall:.1%} of the surfaces, F1 {f1:.3f}"
        print(f"  within {100 * distance:g} cm   {shares}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="OUT")
    parser.add_argument("mesh", type=Path, metavar="MESH", nargs="?")
    parser.add_argument("--sequence", type=Path, metavar="DIR", help="truth; default: the packaged sample")
    parser.add_argument("--within", type=float, nargs="+", default=[0.05, 0.02], help="metres (default 0.05 0.02)")
    options = parser.parse_args()
    try:
        compare(options.folder, options.mesh or options.folder / "mesh.glb", options.sequence, options.within)
    except (StreamReconError, OSError, ValueError) as error:
        print(f"compare_mesh: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
