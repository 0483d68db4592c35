#!/usr/bin/env python3
"""Print how near a mesh of the rendered sample comes to its exact surfaces: scripts/bench/compare_mesh.py OUT MESH

OUT is a result folder of the sample, whose path lays the mesh (a PLY or OBJ of 'stream-recon export') onto the
truth. Accuracy: how far points of the mesh are from the true surface; completeness: how far points of the true surface,
as far as every tenth frame saw them, are from the mesh; both as means, and the shares within a distance, whose
harmonic mean is F1 (Knapitsch et al., 2017).
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import trimesh
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core.transforms import align
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import StreamReconError

TRUTH = Path(__file__).resolve().parents[2] / "app" / "sample" / "walkthrough.truth.npz"
SAMPLES = 200_000


def true_surface() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points [N, 3] in metres, and the poses of all frames."""
    with np.load(TRUTH) as truth:
        poses, (fx, fy, cx, cy), stride = truth["T_world_camera"], truth["intrinsics"], int(truth["depth_stride"])
        points = []
        for z, index in zip(truth["depth"].astype(np.float64), truth["depth_frames"], strict=True):
            rows, columns = np.nonzero(z > 0)
            z = z[rows, columns]
            rays = np.stack([(columns * stride + 0.5 - cx) / fx, (rows * stride + 0.5 - cy) / fy, np.ones_like(z)], 1)
            points.append(rays * z[:, None] @ poses[index, :3, :3].T + poses[index, :3, 3])
    return np.concatenate(points), poses


def compare(folder: Path, path: Path, within: float) -> None:
    """Raises StreamReconError if the folder holds no result of the sample."""
    surface, poses = true_surface()
    cameras = read_result(folder).cameras
    if not cameras or cameras[-1].index >= len(poses):
        raise StreamReconError(f"{folder} is no result of the sample")
    ours = np.array([camera.T_world_camera[:3, 3] for camera in cameras])
    to_truth = align(ours, poses[[camera.index for camera in cameras], :3, 3])
    mesh = trimesh.load(path, force="mesh", process=False)
    mesh = trimesh.Trimesh(to_truth.apply(np.asarray(mesh.vertices, np.float64)), mesh.faces, process=False)
    found = np.asarray(trimesh.sample.sample_surface(mesh, SAMPLES, seed=0)[0])
    accuracy, completeness = cKDTree(surface).query(found)[0], cKDTree(found).query(surface)[0]
    precision, recall = float((accuracy < within).mean()), float((completeness < within).mean())
    print(f"{len(mesh.faces)} triangles against the exact surfaces:")
    print(f"  accuracy      {100 * accuracy.mean():.1f} cm (median {100 * np.median(accuracy):.1f})")
    print(f"  completeness  {100 * completeness.mean():.1f} cm (median {100 * np.median(completeness):.1f})")
    f1 = 2 * precision * recall / max(precision + recall, 1e-9)
    print(f"  within {100 * within:g} cm   {precision:.1%} of the mesh, {recall:.1%} of the surfaces, F1 {f1:.3f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="OUT")
    parser.add_argument("mesh", type=Path, metavar="MESH")
    parser.add_argument("--within", type=float, default=0.05, help="metres (default 0.05)")
    options = parser.parse_args()
    try:
        compare(options.folder, options.mesh, options.within)
    except StreamReconError as error:
        print(f"compare_mesh: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
