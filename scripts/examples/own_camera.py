"""A calibrated camera, by OpenCV's matrix and distortion: own_camera.py VIDEO OUT FX FY CX CY"""

import sys

import numpy as np

import stream_recon as sr

fx, fy, cx, cy = map(float, sys.argv[3:7])
camera = sr.Camera.from_matrix(np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]]), distortion=[0.01, 0, 0, 0])
result = sr.reconstruct(sys.argv[1], sys.argv[2], intrinsics=camera, mapping="stream", mesh=False, max_frames=12)
print(result.cameras[0].intrinsics)
