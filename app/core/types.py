"""Data types that pass through the program (frames, results, revisions of results), and the interface of an engine."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.configs.schema import Preset


@dataclass(frozen=True)
class Frame:
    """One image of a source."""

    index: int
    """Number of the frame in its source, counted from 0 before any stride."""
    timestamp: float
    """Seconds from the start of the source."""
    rgb: NDArray[np.uint8]  # [H, W, 3]
    segment: int = 0
    """Number of the part of the video between two discontinuities, such as gaps of a live source."""
    mask: NDArray[np.bool_] | None = None
    """[H, W], pixels excluded from depth and points; None: none."""
    turn: NDArray[np.float64] | None = None
    """[3, 3], rotation from the axes of a segment's first frame to those of the run's first one, which both were taken
    from the same place; None: unknown."""


def reduced_size(size: tuple[int, int], side: int, least: int = 1) -> tuple[int, int]:
    """Width and height of an image of ``size`` reduced to a longer side of at most ``side``; each ``least`` or more."""
    factor = min(1.0, side / max(size))
    return max(round(size[0] * factor), least), max(round(size[1] * factor), least)


@dataclass(frozen=True)
class ImageTransform:
    """Mapping from a source image to the network's: a crop, then a resize. Sizes are (width, height)."""

    source_size: tuple[int, int]
    crop: tuple[float, float, float, float]
    """Left, top, width and height of the used part in source pixels; the program always uses the complete image."""
    network_size: tuple[int, int]

    @property
    def scale(self) -> tuple[float, float]:
        """Network pixels per source pixel, along x and y."""
        return self.network_size[0] / self.crop[2], self.network_size[1] / self.crop[3]


@dataclass(frozen=True)
class PreparedFrame:
    """A frame at the network's size. Queues hold it in place of the frame, whose image is far larger."""

    index: int
    timestamp: float
    rgb: NDArray[np.uint8]  # [h, w, 3], the network's image
    transform: ImageTransform
    grey: NDArray[np.uint8] | None = None
    """[H', W'], grey image for tracking, see `grey_image`; None without a back end."""
    segment: int = 0
    """Segment number, see `Frame`."""
    turn: NDArray[np.float64] | None = None
    """See `Frame`."""


@dataclass(frozen=True)
class Intrinsics:
    """Camera in pixels; pixel (0, 0) covers [0, 1) x [0, 1). A pinhole camera unless it has distortion."""

    fx: float
    fy: float
    cx: float
    cy: float
    _: KW_ONLY
    k1: float = 0.0
    k2: float = 0.0
    fisheye: bool = False
    """Distortion of a source image, see `CameraModel`."""

    @property
    def camera_model(self) -> CameraModel:
        """The camera with one focal length."""
        return CameraModel(float(np.sqrt(self.fx * self.fy)), self.cx, self.cy, self.k1, self.k2, self.fisheye)

    @property
    def matrix(self) -> NDArray[np.float64]:
        """Camera matrix K [3, 3], without distortion."""
        return np.array([[self.fx, 0, self.cx], [0, self.fy, self.cy], [0, 0, 1]], np.float64)

    @property
    def pinhole(self) -> "Intrinsics":
        """The camera of undistorted images with the same focal length."""
        return Intrinsics(self.fx, self.fy, self.cx, self.cy)

    @classmethod
    def from_camera_model(cls, model: CameraModel) -> "Intrinsics":
        """The same camera, in its other form."""
        return cls(model.focal, model.focal, model.cx, model.cy, k1=model.k1, k2=model.k2, fisheye=model.fisheye)


@dataclass(frozen=True)
class NetworkEstimate:
    """The network's own estimate of a frame whose result the back end has changed."""

    T_world_camera: NDArray[np.float64]  # [4, 4]
    intrinsics: Intrinsics
    depth_scale: float = 1.0
    """Factor from the result's depth to the network's depth."""

    @property
    def map_scale(self) -> float:
        """Length in the result per length in the network's world."""
        return 1 / self.depth_scale


class FallbackCause(StrEnum):
    """Why a segment is not refined, in a word of ``run.json``."""

    UNTIED = "untied"
    """No matches tie its keyframes to the others."""
    MOVING = "moving"
    """The map may follow an object that moves."""


class KeptPoses(StrEnum):
    """Whose poses and depth a segment keeps that is not refined, in a word of ``run.json``."""

    NETWORK = "network"
    STREAM = "stream"
    """Those of the online back end."""
    GIVEN = "given"
    """Those that the user knows."""


class Certainty(IntEnum):
    """How a pixel's depth in a dense depth map was found."""

    NONE = 0
    """No depth."""
    NETWORK = 1
    """The network's depth, which no other view confirms."""
    NEAR = 2
    """Between confirmed pixels, or measured by stereo in one view only."""
    CONFIRMED = 3
    """Measured by stereo, and two other views agree."""


@dataclass(frozen=True)
class FrameResult:
    """Pose, camera and depth of one frame. Lengths are in the scale of the reconstruction, which is arbitrary."""

    index: int
    """Number of the frame in its source."""
    timestamp: float  # seconds from the start of the source
    T_world_camera: NDArray[np.float64]  # [4, 4], camera axes x right, y down, z forward
    intrinsics: Intrinsics
    """Camera in pixels of the source image, or of the undistorted source image where that is distorted."""
    depth: NDArray[np.float32]  # [h, w] along the optical axis, at network resolution
    confidence: NDArray[np.float32]  # [h, w], above 0, higher is better; from the published weights above 1
    # Depth and confidence are 0 at masked pixels.
    rgb: NDArray[np.uint8]  # [h, w, 3], the network's image
    transform: ImageTransform
    is_keyframe: bool
    flow: float | None = None
    """Mean optical flow in network pixels since the last keyframe; None if it was not measured."""
    segment: int = 0
    """Segment number, see `Frame`. The relative pose of a new segment is a guess: that the camera did not move."""
    health: float | None = None
    """Tracking quality from 0 to 1, see `stream_recon.app.run.health`; None if it was not measured."""
    network: NetworkEstimate | None = None
    """The network's estimate if the back end has changed the result, else None."""
    certainty: NDArray[np.uint8] | None = None
    """[h, w], see `Certainty`: ``depth`` is a dense depth map, and ``rgb`` and ``transform`` have its size; None: the
    network's depth."""
    covariance: NDArray[np.float64] | None = None
    """[6, 6], of the pose given the map's points: of a rotation in the camera's axes (rad) and a translation of its
    centre along the world's; None if the frame was not tracked."""

    @property
    def masked(self) -> NDArray[np.bool_]:
        """Masked pixels [h, w]."""
        return np.asarray((self.depth == 0) & (self.confidence == 0))

    @property
    def network_intrinsics(self) -> Intrinsics:
        """Camera in pixels of ``depth`` and ``rgb``."""
        sx, sy = self.transform.scale
        left, top = self.transform.crop[:2]
        k = self.intrinsics
        return Intrinsics(k.fx * sx, k.fy * sy, (k.cx - left) * sx, (k.cy - top) * sy)

    @cached_property
    def camera_points(self) -> NDArray[np.float32]:
        """Point of each pixel in camera axes [h, w, 3], meaningless at pixels without depth. Computed on first use."""
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
"""A frame and its result."""


@dataclass(frozen=True)
class OverlapError:
    """Disagreement of two results of the same frames: medians over the frames."""

    index: int
    """Number of the last of these frames."""
    rotation_deg: float
    position: float
    """Distance of the positions as a multiple of the median depth."""
    depth: float
    """Relative difference of depth."""


@dataclass(frozen=True)
class FrameRevision:
    """New pose, depth and camera of a frame whose result was published before, in its unit."""

    index: int
    """Number of the frame in its source."""
    T_world_camera: NDArray[np.float64]  # [4, 4], rigid
    depth_scale: float = 1.0
    """Factor for the depth of the first result, not for that of the last revision."""
    intrinsics: Intrinsics | None = None
    """Camera in pixels of the source image; None: unchanged."""
    depth_field: NDArray[np.float16] | None = None
    """[G, G], log scales of the depth of the first result, see `stream_recon.app.core.depth_correction`; None: none."""


@dataclass(frozen=True)
class Revision:
    """A consistent change of published results.

    It lists every frame whose pose, depth or intrinsics change, once. All other frames stay as they are.
    """

    frames: tuple[FrameRevision, ...]


class FrameEngine(Protocol):
    """Turns the frames of one stream into results; implemented by `Engine`."""

    threads: int
    """CPU threads of the network; 0 on a GPU. May be set between two frames."""

    weights_sha256: str
    """Hash of the weights; a worker gets it from the process that computed it."""

    @property
    def preset(self) -> Preset: ...

    @property
    def device(self) -> str: ...

    @property
    def precision(self) -> str: ...

    @property
    def cache(self) -> str:
        """Data type of cached keys and values, see `RunInfo`."""

    @property
    def attention(self) -> str: ...

    @property
    def submaps(self) -> int:
        """Number of submaps of the run so far."""

    @property
    def reference_frames(self) -> tuple[int, ...]:
        """Frame numbers of the current submap's scale frames; () before the first submap."""

    @property
    def cache_use(self) -> dict[str, Any]:
        """Counts of frames in the KV cache, and of those that it has lost."""

    def reset(self) -> None:
        """Forget all frames; the next one begins a new run."""

    def expect(self, frames: int | None) -> str | None:
        """Prepare for a run of so many frames, if they are known. Returns what was chosen for it, in a line."""

    def prepare(self, frame: Frame) -> PreparedFrame:
        """Resize a frame. Called from another thread than the other methods, some frames ahead of ``push``."""

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]: ...

    def resume(self, first: Sequence[Pair], later: Sequence[Pair] = ()) -> OverlapError:
        """Continue an earlier run in its coordinate frame; called before the first frame.

        ``first``: scale frames of the submap with their results; ``later``: keyframes that the cache remembers.
        """

    def finish(self) -> Sequence[FrameResult]: ...
