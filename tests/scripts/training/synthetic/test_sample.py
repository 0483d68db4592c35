"""The sample that ships: its video and its truth belong together."""

from pathlib import Path

import cv2
import numpy as np

SAMPLE = Path(__file__).parents[4] / "app" / "sample"


def test_the_truth_fits_the_video() -> None:
    video = cv2.VideoCapture(str(SAMPLE / "walkthrough.mp4"))
    frames = []
    while True:
        ok, frame = video.read()
        if not ok:
            break
        frames.append(cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY).astype(np.float32))
    with np.load(SAMPLE / "walkthrough.truth.npz") as truth:
        poses, depth = truth["T_world_camera"], truth["depth"].astype(np.float64)
        fx, fy, cx, cy = truth["intrinsics"]
        stride, index = int(truth["depth_stride"]), truth["depth_frames"]
        assert video.get(cv2.CAP_PROP_FPS) == float(truth["fps"])
    assert len(frames) == len(poses) >= 100
    np.testing.assert_allclose(
        poses[:, :3, :3] @ poses[:, :3, :3].transpose(0, 2, 1), np.eye(3)[None].repeat(len(poses), 0), atol=1e-5
    )
    assert np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1).sum() > 2.0
    # Frame 30 seen from frame 20 by its depth.
    a, b = 20, 30
    z = depth[list(index).index(a)]
    v, u = np.meshgrid(np.arange(z.shape[0]) * stride + 0.5, np.arange(z.shape[1]) * stride + 0.5, indexing="ij")
    points = np.stack([(u - cx) / fx * z, (v - cy) / fy * z, z, np.ones_like(z)], -1)
    moved = points @ (np.linalg.inv(poses[b]) @ poses[a]).T
    x = (moved[..., 0] / moved[..., 2] * fx + cx - 0.5).astype(np.float32)
    y = (moved[..., 1] / moved[..., 2] * fy + cy - 0.5).astype(np.float32)
    seen = (z > 0) & (x > 0) & (y > 0) & (x < frames[b].shape[1] - 1) & (y < frames[b].shape[0] - 1)
    target = frames[a][::stride, ::stride]
    aligned = np.abs(cv2.remap(frames[b], x, y, cv2.INTER_LINEAR) - target)[seen]
    still = np.abs(frames[b][::stride, ::stride] - target)[seen]
    assert seen.mean() > 0.5
    assert np.median(aligned) < 0.5 * np.median(still)
    assert np.median(aligned) < 6
