"""A result in metres, by a measured distance between the cameras of two frames: metric_scale.py OUT"""

import sys

import stream_recon as sr

result = sr.open_result(sys.argv[1])
first, last = result.cameras[0].index, result.cameras[-1].index
result.scale(f"frames:{first},{last},0.5")
print(result, result.trajectory.length)
