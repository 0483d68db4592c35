"""Learned matches of an image with frames of a result, for images that SIFT does not recognize."""

import logging
from collections.abc import Mapping
from functools import cached_property, lru_cache, reduce

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, LocalizationConfig
from stream_recon.app.localization.pose import Correspondences
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.matching.learned import NO_POINTS, LearnedMatcher, LearnedPoints
from stream_recon.configs.errors import OutputError, ResourceError

logger = logging.getLogger(__name__)

_XYZ = np.zeros((0, 3))
NONE = Correspondences(np.zeros(0, np.intp), np.zeros((0, 2)), _XYZ, _XYZ, np.zeros(0, np.intp))


class LearnedFrames:
    """Learned features of a result's frames, from its small images, with points by its depth maps."""

    def __init__(self, result: ResultFolder, config: LocalizationConfig = DEFAULT_LOCALIZATION) -> None:
        self._result, self._sigma = result, config.map.depth_sigma
        self._cameras = {camera.index: camera for camera in result.cameras}
        self._frame = lru_cache(config.image.compared)(self._read)

    @cached_property
    def matcher(self) -> LearnedMatcher | None:
        """The matcher; None where its package is not installed, or does not work."""
        try:
            return LearnedMatcher.installed()
        except ResourceError as error:
            logger.warning("%s", error)
            return None

    def matches(self, grey: NDArray[np.uint8], frames: Mapping[int, int], count: int) -> Correspondences:
        """Matches of a working image with the ``count`` most alike of frames, whose numbers are given by keyframe."""
        assert self.matcher is not None
        image, parts = self.matcher.detect(grey), [NONE]
        if not len(image.uv):
            return NONE
        alike = {row: self.matcher.mutual(image, self._frame(index)[0]) for row, index in frames.items()}
        for row in sorted(alike, key=lambda row: -alike[row])[:count]:
            found, points, spread = self._frame(frames[row])
            pairs = self.matcher.match(image, found).astype(np.intp)
            ours, theirs = pairs[np.isfinite(points[pairs[:, 1], 0])].T
            uv, number = image.uv[ours].astype(np.float64), np.full(len(ours), row, np.intp)
            parts.append(Correspondences(ours, uv, points[theirs], spread[theirs], number))
        return reduce(Correspondences.with_more, parts)

    def _read(self, index: int) -> tuple[LearnedPoints, FloatArray, FloatArray]:
        """Features of a frame, their points [N, 3] in the world, NaN without depth, and the spread of these."""
        assert self.matcher is not None
        try:
            camera = self._cameras[index]
            surface = self._result.surface_of(camera)
        except (KeyError, OutputError):
            return NO_POINTS, _XYZ, _XYZ
        found = self.matcher.detect(np.asarray(cv2.cvtColor(surface.rgb, cv2.COLOR_RGB2GRAY)))
        height, width = surface.depth.shape
        column, line = found.uv.astype(np.intp).clip(0, (width - 1, height - 1)).T
        local = np.where(surface.depth[line, column, None] > 0, surface.camera_points[line, column], np.nan)
        turned = np.asarray(local.astype(np.float64) @ camera.T_world_camera[:3, :3].T)
        return found, turned + camera.T_world_camera[:3, 3], turned * self._sigma
