"""Depth, confidence and points of each frame: depth_of_frames.py OUT"""

import sys

import stream_recon as sr

for frame in sr.open_result(sys.argv[1]).frames():
    points, colours = frame.points(confidence=0.5)
    print(frame.index, frame.depth.shape, frame.confidence.mean(), len(points), len(colours))
