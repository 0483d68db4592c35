"""One frame of a result, and the arrays of several."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.depth_points import confidence_levels
from stream_recon.app.core.transforms import invert_pose, transform_points
from stream_recon.app.core.types import FrameResult, Intrinsics
from stream_recon.configs.errors import InputError


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


def as_arrays(frames: Iterable[FrameResult | ResultFrame]) -> dict[str, NDArray[np.generic]]:
    """Arrays of S frames of one size, by the names of VGGT and LingBot-Map, in float32.

    ``depth`` [S, H, W, 1], 0 where it is unknown, and ``depth_conf`` [S, H, W], from 0 to 1 as
    `ResultFrame.confidence`; ``extrinsic`` [S, 3, 4], world to camera in OpenCV's axes, and ``pose`` [S, 3, 4], its
    inverse; ``intrinsic`` [S, 3, 3] in pixels of the depth, whose first one covers [0, 1) x [0, 1); ``images``
    [S, H, W, 3] from 0 to 1; ``frame`` int64 [S], the frames' numbers.

    Raises InputError: there is no frame, or their sizes differ, as those of dense and other depth do.
    """
    views = [frame if isinstance(frame, ResultFrame) else ResultFrame(frame) for frame in frames]
    sizes = sorted({view.depth.shape for view in views})
    if len(sizes) != 1:
        found = " and ".join(f"{width}x{height}" for height, width in sizes) or "none"
        raise InputError(f"as_arrays needs frames of one size, not {found}: give for example those with is_dense")
    poses = np.stack([view.pose for view in views])
    return {
        "depth": np.stack([view.depth for view in views], dtype=np.float32)[..., None],
        "depth_conf": np.stack([view.confidence for view in views], dtype=np.float32),
        "extrinsic": invert_pose(poses)[:, :3].astype(np.float32),
        "pose": poses[:, :3].astype(np.float32),
        "intrinsic": np.stack([view.intrinsics.matrix for view in views], dtype=np.float32),
        "images": np.stack([view.rgb for view in views]) / np.float32(255),
        "frame": np.array([view.index for view in views], np.int64),
    }
