"""The coloured cloud as arrays: point_cloud.py OUT"""

import sys

import stream_recon as sr

points, colours = sr.open_result(sys.argv[1]).cloud()
print(points.shape, colours.shape, points.mean(axis=0))
