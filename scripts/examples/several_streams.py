"""Several videos at once through one network: several_streams.py VIDEO VIDEO"""

import sys

import cv2

import stream_recon as sr

model = sr.load_model()
streams = [(model.stream(), cv2.VideoCapture(path)) for path in sys.argv[1:]]
for _ in range(12):
    for stream, capture in streams:
        stream.push(cv2.cvtColor(capture.read()[1], cv2.COLOR_BGR2RGB))
for stream in [stream for stream, _ in streams]:
    stream.finish()
    print(stream.trajectory)
