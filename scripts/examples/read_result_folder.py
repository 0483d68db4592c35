"""Content of a result folder: python scripts/examples/read_result_folder.py FOLDER

FOLDER is what `stream-recon VIDEO --output FOLDER` wrote. Units are metres if a metric source was given.
"""

import sys
from pathlib import Path

import numpy as np

from stream_recon import read_result

result = read_result(Path(sys.argv[1]))
cameras = result.cameras  # poses and intrinsics alone; no depth is read
positions = np.stack([camera.T_world_camera[:3, 3] for camera in cameras])
length = np.linalg.norm(np.diff(positions, axis=0), axis=1).sum()
print(f"{result.run['source']}: {len(cameras)} frames, path length {length:.2f}")

for frame in result:  # one depth file is read per frame
    height, width = frame.depth.shape
    points = frame.camera_points[frame.depth > 0]  # [N, 3], x right, y down, z forward
    world = points @ frame.T_world_camera[:3, :3].T + frame.T_world_camera[:3, 3]
    print(f"frame {frame.index}: depth {width}x{height}, median {np.median(points[:, 2]):.2f}, centre {world.mean(0)}")
