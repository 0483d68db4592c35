"""Results with the sample's true poses and depth, again and again, each lap at another place."""

from dataclasses import dataclass, field

import cv2
import numpy as np

from bench import SAMPLE
from stream_recon.app.core.types import FrameResult, Intrinsics, PreparedFrame


@dataclass
class SampleTruth:
    """Truth for images that the network sees in this size, in a unit in which scale frames lie at distance 1."""

    size: tuple[int, int]
    lap_m: float
    """Offset between two repetitions of the sample in metres, along z."""
    keyframe_every: int = 1
    count: int = field(init=False)

    def __post_init__(self) -> None:
        with np.load(SAMPLE.with_suffix(".truth.npz")) as truth:
            self._poses = truth["T_world_camera"].astype(np.float64)
            self._focal = float(truth["intrinsics"][0] / (2 * truth["intrinsics"][2]))
            self._every = int(truth["depth_frames"][1])
            depths = [cv2.resize(depth.astype(np.float32), self.size) for depth in truth["depth"]]
        self._unit = float(np.mean(depths[0]))
        self._depths = [depth / self._unit for depth in depths]
        self.count = len(self._poses)

    def result(self, frame: PreparedFrame) -> FrameResult:
        lap, place = divmod(frame.index, self.count)
        depth, pose = self._depths[place // self._every].copy(), self._poses[place].copy()
        pose[:3, 3] = (pose[:3, 3] + [0, 0, self.lap_m * lap]) / self._unit
        width, height = frame.transform.source_size
        focal = self._focal * width
        return FrameResult(
            index=frame.index,
            timestamp=frame.timestamp,
            T_world_camera=pose,
            intrinsics=Intrinsics(focal, focal, width / 2, height / 2),
            depth=depth,
            confidence=1 + 4 / (1 + depth),
            rgb=frame.rgb,
            transform=frame.transform,
            is_keyframe=place % self.keyframe_every == 0,
        )
