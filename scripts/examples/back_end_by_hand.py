"""Engine and SLAM back end without the pipeline: python scripts/examples/back_end_by_hand.py VIDEO [FRAMES]

The engine gives the network's pose for each frame. The back end tracks and adjusts them, and later revises poses that
it gave before, after bundle adjustment and at loop closures.
"""

import sys
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon import FrameResult, load_engine
from stream_recon.app.core.types import PreparedFrame, Revision
from stream_recon.app.slam.mode import make_back_end
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.preprocess import grey_image
from stream_recon.app.sources.source import open_source

engine = load_engine()
back_end = make_back_end("stream", engine.preset.stream.scale_frames)
assert back_end is not None  # None only for "off"
poses: dict[int, NDArray[np.float64]] = {}  # [4, 4] T_world_camera by frame number
waiting: dict[int, PreparedFrame] = {}  # frames whose results have not come yet


def take(items: Iterable[FrameResult | Revision]) -> None:
    """Store poses of results, and replace those that a revision changes."""
    for item in items:
        if isinstance(item, Revision):
            shift = max(np.linalg.norm(f.T_world_camera[:3, 3] - poses[f.index][:3, 3]) for f in item.frames)
            print(f"revision of {len(item.frames)} frames, by up to {shift:.4f}")
            poses.update({frame.index: frame.T_world_camera for frame in item.frames})
        else:
            poses[item.index] = item.T_world_camera


frames = int(sys.argv[2]) if len(sys.argv) > 2 else None
with open_source(sys.argv[1], FrameChoice(max_frames=frames)) as source:
    for frame in source:
        prepared = engine.prepare(frame)  # image at the network's size
        waiting[frame.index] = replace(prepared, grey=grey_image(frame.rgb))  # the back end tracks features in grey
        for result in engine.push(prepared):
            take(back_end.push(result, waiting.pop(result.index)))
take(back_end.finish())
print(f"{len(poses)} poses; {back_end.status_line}")
