"""Refined poses of a video or a folder of images: refined_poses.py SOURCE OUT"""

import sys

import stream_recon as sr

result = sr.reconstruct(sys.argv[1], sys.argv[2])
result.trajectory.save("trajectory.tum")
print(result.verdict, result.trajectory.positions)
