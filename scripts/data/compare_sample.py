#!/usr/bin/env python3
"""Print the error of a result of the rendered sample against ground truth: scripts/data/compare_sample.py OUT"""

import argparse
import sys
from pathlib import Path

import numpy as np

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.evaluation.metrics import depth_errors, field_of_view_error_deg, pose_errors
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import StreamReconError

TRUTH = Path(__file__).resolve().parents[2] / "app" / "sample" / "walkthrough.truth.npz"


def compare(folder: Path) -> None:
    """Raises StreamReconError if the folder holds no result of the sample."""
    with np.load(TRUTH) as file:
        truth = {name: file[name] for name in file.files}
    results = list(read_result(folder))
    indices = [r.index for r in results]
    if not results or max(indices) >= len(truth["T_world_camera"]):
        raise StreamReconError(f"{folder} is no result of the sample")
    predicted = np.stack([r.T_world_camera for r in results])
    true_poses = truth["T_world_camera"][indices]
    pose = pose_errors(predicted, true_poses, np.diff(indices) > 0)
    stride, with_depth = int(truth["depth_stride"]), truth["depth_frames"].tolist()
    pairs = [sampled_depths(r.depth, truth["depth"][with_depth.index(r.index)], stride, r.transform.source_size)
             for r in results if r.index in with_depth]  # fmt: skip
    depth = depth_errors(*(np.concatenate(side) for side in zip(*pairs, strict=True)))
    camera = Intrinsics(*truth["intrinsics"])
    fov = np.mean([field_of_view_error_deg(r.intrinsics, camera, r.transform.source_size) for r in results])
    print(f"against ground truth, {len(results)} frames over {pose.path_m:.2f} m:")
    print(f"  trajectory   {100 * (pose.ate_m or 0):.1f} cm RMSE after Sim(3), {pose.ate_over_path:.2%} of the path")
    print(f"  rotation     {pose.rpe_rot_deg:.2f} degrees a step (it turned {pose.gt_rot_deg:.2f})")
    print(f"  depth        AbsRel {depth.absrel:.3f}, {depth.delta1:.1%} within 25 %")
    print(f"  field of view error {fov:.1f} degrees")


def sampled_depths(
    predicted: np.ndarray, truth: np.ndarray, stride: int, size: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Predicted and true depth at the truth's pixels, where there is truth; 1-D arrays of one length."""
    rows, columns = np.indices(truth.shape) * stride
    height, width = predicted.shape
    y = np.minimum((rows + 0.5) / size[1] * height, height - 1).astype(int)
    x = np.minimum((columns + 0.5) / size[0] * width, width - 1).astype(int)
    valid = truth > 0
    return predicted[y, x][valid].astype(np.float64), truth[valid].astype(np.float64)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        compare(parser.parse_args().folder)
    except StreamReconError as error:
        print(f"compare_sample: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
