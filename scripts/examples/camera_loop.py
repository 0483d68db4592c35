"""Poses of a camera while it films: python scripts/examples/camera_loop.py 0, or with a video that stands in for it.

A live source keeps only its newest frame. Frames that arrive during a step of the network are dropped and counted.
A video file is played at its own rate, and frames are dropped by the same rule.
"""

import argparse
import time
from collections.abc import Iterator

from stream_recon import Frame, load_engine
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source


def as_if_live(frames: Iterator[Frame]) -> Iterator[Frame]:
    """The newest of the frames whose time has come; older ones are dropped."""
    begin, newest = time.monotonic(), next(frames)
    for frame in frames:
        wait = frame.timestamp - (time.monotonic() - begin)
        if wait > 0:  # `frame` lies in the future, so `newest` is the one that a camera would give
            yield newest
            time.sleep(max(0.0, frame.timestamp - (time.monotonic() - begin)))
        newest = frame
    yield newest


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("source", help="number of a camera, address of a stream, or a video file")
parser.add_argument("--max-frames", type=int, help="stop after this many frames")
options = parser.parse_args()

engine = load_engine()
with open_source(options.source, FrameChoice(max_frames=options.max_frames)) as source:
    begin, results = time.monotonic(), []
    for frame in source if source.live else as_if_live(source):
        for result in engine.push(frame):
            results.append(result.index)
            x, y, z = result.T_world_camera[:3, 3]
            print(f"frame {result.index}: x {x:.2f} y {y:.2f} z {z:.2f}")
    # Results of a source with fewer frames than the scale frames.
    results += [result.index for result in engine.finish()]
    seconds = time.monotonic() - begin
    print(f"{len(results)} results in {seconds:.1f} s; {source.dropped} frames dropped by the camera")
