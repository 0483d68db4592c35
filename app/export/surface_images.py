"""Keyframes of a result with their best depth maps and images, as textured surfaces need them."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.types import FrameResult
from stream_recon.app.export.job import ExportJob
from stream_recon.app.export.source_images import frame_images
from stream_recon.app.export.view import undistorted_view
from stream_recon.configs.errors import OutputError


def surface_images(job: ExportJob, max_side: int) -> Iterator[tuple[FrameResult, NDArray[np.uint8]]]:
    """Results of the keyframes and images [H, W, 3] that show the same as their depth maps.

    Images have sides of at most ``max_side``, or 960 with dense depth maps. They are from the source where it can be
    read again. Frames that cannot be read are left out. Raises StreamReconError: there are no frames.
    """
    result = job.result
    cameras = job.cameras("keyframes")
    if result.dense:
        for camera in result.surface_cameras:
            if camera.index in result.dense:
                try:
                    dense = result.dense_map(camera.index)
                    yield dense.result(camera), dense.image
                except (OutputError, ValueError):
                    continue
        return
    view = undistorted_view(job.view.source_size, job.view.source)
    for camera, image, _ in frame_images(result, cameras, view, max_side):
        try:
            shown = result.surface_of(camera)
        except OutputError:
            continue
        yield shown, image
