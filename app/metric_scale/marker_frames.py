"""Metric scale by printed markers in the frames of a result's source."""

from collections.abc import Callable, Iterator

import cv2
import numpy as np

from stream_recon.app.core.transforms import FloatArray, Similarity
from stream_recon.app.export.view import PinholeView, shared_view
from stream_recon.app.metric_scale.config import MarkerConfig
from stream_recon.app.metric_scale.marker import Detector, MarkerDetection, scale_by_markers
from stream_recon.app.metric_scale.scale_source import Marker
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.metric_scale import MetricScale
from stream_recon.app.result.tracks import read_tracks
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

Progress = Callable[[int, int], None]


def scale_by_marker_frames(
    result: ResultFolder,
    marker: Marker,
    text: str,
    open_again: Callable[[], Source] | None,
    on_progress: Progress,
    config: MarkerConfig,
) -> MetricScale:
    """Metric scale by markers in the source's frames; arguments and errors as of `measure_scale`."""
    if open_again is None:
        raise InputError(f"--scale-from {text}: the source ({result.run['source']}) cannot be read again from here")
    detections = list(_detections(result, open_again, on_progress, config))
    scale = scale_by_markers(detections, marker.side, text, config)
    how = f"{', '.join(scale.markers)}: {scale.detections} detections, RMS error {scale.rms_px:.2f} px"
    return MetricScale(Similarity.of_scale(scale.scale), scale.error, text, how)


def _detections(
    result: ResultFolder, open_again: Callable[[], Source], on_progress: Progress, config: MarkerConfig
) -> Iterator[MarkerDetection]:
    step = -(-len(result.cameras) // config.max_frames)
    searched = {camera.index: camera for camera in result.cameras[::step]}
    tracks = read_tracks(result.folder)
    detector = Detector(config)
    view: PinholeView | None = None
    with open_again() as source:
        for done, frame in enumerate(source.frames_at(searched), start=1):
            camera = searched[frame.index]
            view = view or shared_view([camera], tracks)
            for marker, corners in detector.find(np.asarray(cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2GRAY), np.uint8)):
                undistorted = _undistorted(corners, camera, view if tracks is not None else None)
                if np.isfinite(undistorted).all():
                    yield MarkerDetection(marker, camera.T_world_camera, camera.intrinsics.fx, undistorted)
            on_progress(done, len(searched))


def _undistorted(pixels: FloatArray, camera: FrameCamera, view: PinholeView | None) -> FloatArray:
    """Normalised image coordinates [N, 2] of source pixels, undistorted where refinement estimated the distortion."""
    if view is None:
        k = camera.intrinsics
        return np.asarray((pixels - (k.cx, k.cy)) / (k.fx, k.fy))
    k = view.intrinsics
    return np.asarray((view.to_export(pixels) - (k.cx, k.cy)) / (k.fx, k.fy))
