"""Camera poses of a folder of images: python scripts/examples/images_to_poses.py FOLDER"""

import sys
from pathlib import Path

import cv2

from stream_recon import Frame, load_engine

engine = load_engine()  # embedded weights; on a GPU if there is one
for index, path in enumerate(sorted(Path(sys.argv[1]).iterdir())):
    rgb = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)  # uint8 [H, W, 3]
    for result in engine.push(Frame(index, index / 30, rgb)):  # none at first: 8 scale frames are processed together
        print(result.index, result.T_world_camera[:3, 3])
for result in engine.finish():  # results of a source with fewer frames than scale frames
    print(result.index, result.T_world_camera[:3, 3])
