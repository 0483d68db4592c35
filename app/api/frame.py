"""One frame of a result."""

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import confidence_levels
from stream_recon.app.core.transforms import transform_points
from stream_recon.app.core.types import FrameResult, Intrinsics


class ResultFrame:
    """One frame of a result: its final pose and its best depth, which is dense where stereo has measured it.

    All images have the size of ``depth``. Lengths are in the result's unit.
    """

    def __init__(self, result: FrameResult) -> None:
        self._result = result

    @property
    def index(self) -> int:
        """Number of the frame in its source."""
        return self._result.index

    @property
    def timestamp(self) -> float:
        """Seconds from the start of the source."""
        return self._result.timestamp

    @property
    def pose(self) -> NDArray[np.float64]:
        """Camera to world, [4, 4]; camera axes x right, y down, z forward."""
        return self._result.T_world_camera

    @property
    def intrinsics(self) -> Intrinsics:
        """Pinhole camera in pixels of ``depth`` and ``rgb``; pixel (0, 0) covers [0, 1) x [0, 1)."""
        return self._result.network_intrinsics

    @property
    def depth(self) -> NDArray[np.float32]:
        """Depth along the optical axis, [h, w]; 0 where it is unknown."""
        return self._result.depth

    @property
    def confidence(self) -> NDArray[np.float32]:
        """Confidence of each pixel's depth from 0 to 1, [h, w]: 0.05 is a guess, 0.5 an error of about 25 %."""
        return confidence_levels(self._result)

    @property
    def rgb(self) -> NDArray[np.uint8]:
        """The image, [h, w, 3]."""
        return self._result.rgb

    @property
    def is_dense(self) -> bool:
        """Whether the depth was measured by stereo."""
        return self._result.certainty is not None

    def points(self, confidence: float = 0.0) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        """World points [N, 3] and colours [N, 3] of the pixels with depth and at least this confidence."""
        mask = (self.depth > 0) & (self.confidence >= confidence)
        return transform_points(self.pose, self._result.camera_points[mask]), self.rgb[mask]

    def __repr__(self) -> str:
        height, width = self.depth.shape
        return f"<ResultFrame {self.index} at {self.timestamp:.3f} s, depth {width}x{height}>"
