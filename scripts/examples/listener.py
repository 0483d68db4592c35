"""A listener in the pipeline: python scripts/examples/listener.py VIDEO OUT [FRAMES]

A listener gets every result and every revision once and in order, after the result writer and in the same thread. It
must not block for long. This one keeps the camera's path.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon import FrameResult, load_engine, reconstruct
from stream_recon.app.core.types import Revision
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source


class PathLength:
    """Positions of all cameras, and the length of their path."""

    def __init__(self) -> None:
        self._positions: dict[int, NDArray[np.float64]] = {}

    def add(self, result: FrameResult) -> None:
        self._positions[result.index] = result.T_world_camera[:3, 3]
        print(f"frame {result.index}: path length {self.length:.3f}")

    def revise(self, revision: Revision) -> None:
        self._positions.update({frame.index: frame.T_world_camera[:3, 3] for frame in revision.frames})

    @property
    def length(self) -> float:
        path = np.stack(list(self._positions.values()))
        return float(np.linalg.norm(np.diff(path, axis=0), axis=1).sum())


frames = int(sys.argv[3]) if len(sys.argv) > 3 else None
engine, listener = load_engine(), PathLength()
with open_source(sys.argv[1], FrameChoice(max_frames=frames)) as source:
    writer = ResultWriter(Path(sys.argv[2]), RunInfo.from_engine(engine, source.name, {}))
    summary = reconstruct(source, engine, writer, [listener])
print(f"{summary.frames_reconstructed} frames at {summary.fps:.1f} frames/s, path length {listener.length:.3f}")
