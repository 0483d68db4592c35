"""SLAM poses while a camera or a video plays: camera_loop.py 0"""

import sys

import cv2

import stream_recon as sr

capture = cv2.VideoCapture(int(sys.argv[1]) if sys.argv[1].isdigit() else sys.argv[1])
with sr.load_model().stream() as stream:
    while (read := capture.read())[0]:
        for item in stream.push(cv2.cvtColor(read[1], cv2.COLOR_BGR2RGB)):
            if isinstance(item, sr.FrameResult):
                print(item.index, item.T_world_camera[:3, 3])
print(stream.trajectory)  # after all revisions
