"""Measurement of the metric scale of a result from the source of scale that the user gave."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from stream_recon.app.core.ply import positions
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.export.points import sample_cloud
from stream_recon.app.export.source_images import source_of
from stream_recon.app.export.view import world_up
from stream_recon.app.metric_scale.config import DEFAULT_SCALE, GroundConfig, MetricScaleConfig
from stream_recon.app.metric_scale.gps_alignment import scale_by_photographs, scale_by_track
from stream_recon.app.metric_scale.ground import camera_height
from stream_recon.app.metric_scale.marker_frames import Progress, scale_by_marker_frames
from stream_recon.app.metric_scale.scale_source import Distance, GpsTrack, Height, Marker, Photographs, ScaleSource
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.metric_scale import MetricScale
from stream_recon.app.sources.containers import film
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError


def measure_scale(
    result: ResultFolder,
    source: ScaleSource,
    text: str,
    open_again: Callable[[], Source] | None = None,
    on_progress: Progress = lambda done, total: None,
    config: MetricScaleConfig = DEFAULT_SCALE,
) -> MetricScale:
    """Transform from the current world of a result to metres.

    Args:
        text: the user's words for ``source``, for messages and the record.
        open_again: opens the video source again; None: the one that the result names.
        on_progress: called with the number of frames processed and their total; may raise Cancelled.

    Raises InputError: the source of scale does not determine a scale, or is not visible; OutputError: a damaged file.
    """
    result.check_frames("measure")
    cameras = _longest_segment(result.cameras)
    match source:
        case Marker():
            again = open_again or source_of(result)
            metres = scale_by_marker_frames(result, source, text, again, on_progress, config.marker)
        case Distance():
            metres = _by_distance(result.cameras, source, text)
        case Height():
            metres = _by_height(result, cameras, source, text, config.ground)
        case GpsTrack():
            up, recorded = world_up(cameras), _recorded(result)
            metres = scale_by_track(cameras, up, source, text, recorded, config.track)
        case Photographs():
            metres = scale_by_photographs(result, cameras, text, config.track.fit)
    scale = metres.T_metric_own.scale
    if not 1 / config.max_scale < scale < config.max_scale:
        raise InputError(f"--scale-from {text}: one unit of the reconstruction cannot be {scale:.3g} m")
    return metres


def _recorded(result: ResultFolder) -> float | None:
    """Seconds since 1970 at which the result's video was recorded, where its file says so."""
    options = result.run.get("options")
    spec = options.get("source") if isinstance(options, dict) else None
    return film(Path(spec).expanduser()).recorded if isinstance(spec, str) and "\0" not in spec else None


def _longest_segment(cameras: Sequence[FrameCamera]) -> list[FrameCamera]:
    """Frames of the segment with the most: poses of other segments relative to it are not known."""
    segments = [camera.segment for camera in cameras]
    longest = max(set(segments), key=segments.count, default=0)
    return [camera for camera in cameras if camera.segment == longest]


def _by_distance(cameras: Sequence[FrameCamera], source: Distance, text: str) -> MetricScale:
    by_index = {camera.index: camera for camera in cameras}
    for index in (source.first, source.second):
        if index not in by_index:
            first, last = min(by_index), max(by_index)
            raise InputError(f"--scale-from {text}: the result has no frame {index}; it has frames {first} to {last}")
    one, other = by_index[source.first], by_index[source.second]
    if one.segment != other.segment:
        raise InputError(
            f"--scale-from {text}: the frames are of different segments, whose relative pose is not known; choose two "
            "of one segment"
        )
    distance = float(np.linalg.norm(other.T_world_camera[:3, 3] - one.T_world_camera[:3, 3]))
    extent = max(float(np.linalg.norm(c.T_world_camera[:3, 3] - one.T_world_camera[:3, 3])) for c in cameras)
    if not distance > 1e-3 * extent:
        raise InputError(f"--scale-from {text}: the frames have the same position; choose two at a distance")
    return MetricScale(Similarity.of_scale(source.metres / distance), None, text, "one distance, of unknown error")


def _by_height(
    result: ResultFolder, cameras: Sequence[FrameCamera], source: Height, text: str, config: GroundConfig
) -> MetricScale:
    vertices = sample_cloud(result.folder, config.max_cloud_points)
    eyes = np.array([camera.T_world_camera[:3, 3] for camera in cameras])
    ground = camera_height(positions(vertices).astype(np.float64), eyes, world_up(cameras), text, config)
    how = f"ground plane from {ground.points} points; the camera's height above it varies by {100 * ground.error:.1f} %"
    return MetricScale(Similarity.of_scale(source.metres / ground.height), ground.error, text, how)
