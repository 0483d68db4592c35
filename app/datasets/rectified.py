"""The truth of a scene whose frames come without their lens: its camera and depth are then of the frames as given."""

import dataclasses

import cv2
import numpy as np

from stream_recon.app.core.ground_truth import DepthMap, DepthPoints, DepthTruth, GroundTruth
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.undistort import Undistorter


def rectified(truth: GroundTruth, camera: Calibration) -> GroundTruth:
    """The same for frames that a known camera's lens was taken from. Raises InputError: of images of another shape."""
    rectifier = Undistorter(camera.for_size(truth.source_size), truth.source_size)
    if not rectifier.bends:
        return truth

    def read(index: int) -> DepthTruth | None:
        found = truth.depth(index)
        if isinstance(found, DepthPoints):
            return DepthPoints(np.column_stack([rectifier.from_source(found.uvz[:, :2]), found.uvz[:, 2]]))
        return None if found is None else _bent_back(found, rectifier)

    return dataclasses.replace(truth, intrinsics=rectifier.intrinsics, read_depth=read)


def _bent_back(depth: DepthMap, rectifier: Undistorter) -> DepthMap:
    """Depth along the axis stays what it is; only where a pixel sees it changes."""
    at = rectifier.shown_at * (depth.metres.shape[1] / rectifier.size[0], depth.metres.shape[0] / rectifier.size[1])
    x, y = (at[..., axis].astype(np.float32) - np.float32(0.5) for axis in (0, 1))
    metres = depth.metres.astype(np.float32)
    # Not interpolated: between two surfaces there is none.
    return DepthMap(np.asarray(cv2.remap(metres, x, y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT)))
