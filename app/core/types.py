"""What travels through the program: frames in, results and revisions of them out. Nothing here knows a network."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Frame:
    """One image of a source."""

    index: int
    """Number of the frame in its source, counted from 0 before any stride."""
    timestamp: float
    """Seconds from the start of the source."""
    rgb: NDArray[np.uint8]  # [H, W, 3]
    segment: int = 0
    """Counts up where nothing connects a frame with those before it, as after a gap of a live source."""
    mask: NDArray[np.bool_] | None = None
    """[H, W], what is to be left out of all that comes of the frame; None: nothing."""


@dataclass(frozen=True)
class ImageTransform:
    """How a source image became the network's: a crop in source pixels, then a resize. Sizes are (width, height)."""

    source_size: tuple[int, int]
    crop: tuple[float, float, float, float]
    """Left, top, width and height of the used part, in source pixels; the whole image unless stated otherwise."""
    network_size: tuple[int, int]

    @property
    def scale(self) -> tuple[float, float]:
        """Network pixels for each source pixel, along x and y."""
        return self.network_size[0] / self.crop[2], self.network_size[1] / self.crop[3]


@dataclass(frozen=True)
class PreparedFrame:
    """A frame as the network takes it: what waits for the network, since it is far smaller than the source's image."""

    index: int
    timestamp: float
    rgb: NDArray[np.uint8]  # [h, w, 3], the network's image
    transform: ImageTransform
    grey: NDArray[np.uint8] | None = None
    """[H', W'], the source's image in grey for tracking, see `grey_image`; None where nobody asked for it."""
    segment: int = 0
    """See `Frame`."""


@dataclass(frozen=True)
class Intrinsics:
    """A pinhole camera in pixels; pixel (0, 0) covers [0, 1) x [0, 1)."""

    fx: float
    fy: float
    cx: float
    cy: float


@dataclass(frozen=True)
class NetworkEstimate:
    """What the network said of a frame that geometry has placed otherwise."""

    T_world_camera: NDArray[np.float64]  # [4, 4]
    intrinsics: Intrinsics
    depth_scale: float = 1.0
    """What the depth that was given out has to be multiplied with to be the network's."""


@dataclass(frozen=True)
class FrameResult:
    """What is known of one frame. Lengths are in the unit of the reconstruction (metric only if the weights are)."""

    index: int
    """The frame's number in its source."""
    timestamp: float
    T_world_camera: NDArray[np.float64]  # [4, 4], camera axes x right, y down, z forward
    intrinsics: Intrinsics
    """The camera in pixels of the source image."""
    depth: NDArray[np.float32]  # [h, w] along the optical axis, at network resolution
    confidence: NDArray[np.float32]  # [h, w], above 0, higher is surer; the published networks' is more by 1
    # Both are 0 where a mask leaves pixels out.
    rgb: NDArray[np.uint8]  # [h, w, 3], the network's image
    transform: ImageTransform
    is_keyframe: bool
    flow: float | None = None
    """Mean displacement in network pixels since the last keyframe; None where it was not measured."""
    segment: int = 0
    """See `Frame`. Each has a world of its own: where it lies beside those before is a guess, that the camera did not
    move meanwhile."""
    health: float | None = None
    """How well it fits the frame before, 0 to 1; see `stream_recon.app.pipeline.health`. None where nobody looked."""
    network: NetworkEstimate | None = None
    """Where a stage has placed the frame; None where all is as the network gave it."""

    @property
    def masked(self) -> NDArray[np.bool_]:
        """[h, w], the pixels that a mask left out."""
        return np.asarray((self.depth == 0) & (self.confidence == 0))

    @property
    def network_intrinsics(self) -> Intrinsics:
        """The same camera in pixels of ``depth`` and ``rgb``."""
        sx, sy = self.transform.scale
        left, top = self.transform.crop[:2]
        k = self.intrinsics
        return Intrinsics(k.fx * sx, k.fy * sy, (k.cx - left) * sx, (k.cy - top) * sy)

    @cached_property
    def camera_points(self) -> NDArray[np.float32]:
        """Where each pixel's surface lies in the camera's axes [h, w, 3]; of no meaning where there is no depth.

        Worked out once, for whoever asks first.
        """
        height, width = self.depth.shape
        k = self.network_intrinsics
        # Rays pass through the pixels' centres.
        x = (np.arange(width) + 0.5 - np.float32(k.cx)) * np.float32(1 / k.fx)
        y = (np.arange(height) + 0.5 - np.float32(k.cy)) * np.float32(1 / k.fy)
        xyz = np.empty((height, width, 3), np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            np.multiply(x, self.depth, out=xyz[..., 0], casting="same_kind")
            np.multiply(y[:, None], self.depth, out=xyz[..., 1], casting="same_kind")
        xyz[..., 2] = self.depth
        return xyz


Pair = tuple[PreparedFrame, FrameResult]
"""What the network saw, and what came of it."""


@dataclass(frozen=True)
class OverlapError:
    """How well frames that were run twice agree: medians over them."""

    index: int
    """The last one's number."""
    rotation_deg: float
    position: float
    """In units of the median depth."""
    depth: float
    """Relative difference of depth."""


@dataclass(frozen=True)
class FrameRevision:
    """What is now known of a frame whose result was given out before."""

    index: int
    """The frame's number in its source."""
    T_world_camera: NDArray[np.float64]  # [4, 4], rigid
    depth_scale: float = 1.0
    """What the depth first given out has to be multiplied with: against that one, not against the last revision."""
    intrinsics: Intrinsics | None = None
    """A camera in pixels of the source image; None: as before."""
    depth_field: NDArray[np.float16] | None = None
    """Log-scale grid that corrects that depth, see `stream_recon.app.core.depth_correction`; None: no correction."""


@dataclass(frozen=True)
class Revision:
    """One complete change of what was given out before.

    Every frame whose pose, depth or intrinsics change is named, at most once. Frames without a name do not move,
    anywhere: not in the files, not on the page, not in the figures.
    """

    frames: tuple[FrameRevision, ...]
