"""Several videos at once through one network: several_streams.py VIDEO VIDEO"""

import sys

import cv2

import stream_recon as sr

model = sr.load_model()
streams = [(model.stream(), cv2.VideoCapture(path)) for path in sys.argv[1:]]
for stream, capture in 12 * streams:  # an image of each in turn
    stream.push(cv2.cvtColor(capture.read()[1], cv2.COLOR_BGR2RGB))
for stream, _ in streams:
    stream.finish()
    print(stream.trajectory)
