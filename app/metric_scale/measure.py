"""Measurement of the metric scale of a result from the source of scale that the user gave."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import cv2
import numpy as np

from stream_recon.app.core.ply import positions
from stream_recon.app.core.transforms import FloatArray, Similarity
from stream_recon.app.export.points import sample_cloud
from stream_recon.app.export.source_images import image_files, source_of
from stream_recon.app.export.view import PinholeView, shared_view, world_up
from stream_recon.app.metric_scale.gps_alignment import scale_by_geotags, scale_by_track
from stream_recon.app.metric_scale.ground import camera_height
from stream_recon.app.metric_scale.marker import Detector, MarkerDetection, scale_by_markers
from stream_recon.app.metric_scale.scale_source import Distance, Height, Marker, Photographs, ScaleSource, Track
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.metric_scale import MetricScale
from stream_recon.app.result.tracks import read_tracks
from stream_recon.app.sources.containers import creation_time
from stream_recon.app.sources.exif import read_exif
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

MAX_MARKER_FRAMES = 1000
"""Most frames in which markers are detected, every n-th of the result: more take longer without a better scale."""
LARGEST_SCALE = 1e5
"""Largest number of metres in a unit of a reconstruction, and its inverse the smallest: first surfaces are at 1."""
MAX_CLOUD_POINTS = 300_000
"""Most points in which the ground is searched for: more take longer without a better plane."""

Progress = Callable[[int, int], None]


def measure_scale(
    result: ResultFolder,
    source: ScaleSource,
    text: str,
    open_again: Callable[[], Source] | None = None,
    on_progress: Progress = lambda done, total: None,
) -> MetricScale:
    """Transform from the current world of a result to metres.

    Args:
        text: the user's words for ``source``, for messages and the record.
        open_again: opens the video source again; None: the one that the result names.
        on_progress: called with the number of frames processed and their total; may raise Cancelled.

    Raises InputError: the source of scale does not determine a scale, or is not visible; OutputError: a damaged file.
    """
    cameras = _longest_segment(result.cameras)
    if not cameras:
        raise InputError(f"{result.folder} has no frames")
    return _in_range(_measured(result, cameras, source, text, open_again, on_progress), text)


def _in_range(found: MetricScale, text: str) -> MetricScale:
    scale = found.T_metric_own.scale
    if not 1 / LARGEST_SCALE < scale < LARGEST_SCALE:
        raise InputError(f"--scale-from {text}: one unit of the reconstruction cannot be {scale:.3g} m")
    return found


def _measured(
    result: ResultFolder,
    cameras: list[FrameCamera],
    source: ScaleSource,
    text: str,
    open_again: Callable[[], Source] | None,
    on_progress: Progress,
) -> MetricScale:
    match source:
        case Marker():
            return _by_markers(result, source, text, open_again or source_of(result), on_progress)
        case Distance():
            return _by_distance(result.cameras, source, text)
        case Height():
            return _by_height(result, cameras, source, text)
        case Track():
            recorded = _recorded(result)
            return scale_by_track(cameras, world_up(cameras), source.positions, source.begins, text, recorded)
        case Photographs():
            return _by_photographs(result, cameras, text)


def _recorded(result: ResultFolder) -> float | None:
    """Seconds since 1970 at which the result's video was recorded, where its file says so."""
    options = result.run.get("options")
    spec = options.get("source") if isinstance(options, dict) else None
    return creation_time(Path(spec).expanduser()) if isinstance(spec, str) and "\0" not in spec else None


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


def _by_height(result: ResultFolder, cameras: Sequence[FrameCamera], source: Height, text: str) -> MetricScale:
    vertices = sample_cloud(result.folder, MAX_CLOUD_POINTS)
    eyes = np.array([camera.T_world_camera[:3, 3] for camera in cameras])
    found = camera_height(positions(vertices).astype(np.float64), eyes, world_up(cameras), text)
    how = f"ground plane from {found.points} points; the camera's height above it varies by {100 * found.error:.1f} %"
    return MetricScale(Similarity.of_scale(source.metres / found.height), found.error, text, how)


def _by_photographs(result: ResultFolder, cameras: Sequence[FrameCamera], text: str) -> MetricScale:
    files = image_files(result)
    if files is None:
        raise InputError(f"--scale-from {text}: the source ({result.run['source']}) is not a folder of photographs")
    geotags, eyes = [], []
    for camera in cameras:
        geotag = read_exif(files[camera.index]).position if camera.index < len(files) else None
        if geotag is not None:
            geotags.append(geotag)
            eyes.append(camera.T_world_camera[:3, 3])
    if len(geotags) < 3:
        raise InputError(f"--scale-from {text}: {len(geotags)} photographs have GPS positions; at least 3 are needed")
    return scale_by_geotags(np.array(eyes), np.array(geotags, np.float64), world_up(cameras), text)


def _by_markers(
    result: ResultFolder, marker: Marker, text: str, open_again: Callable[[], Source] | None, on_progress: Progress
) -> MetricScale:
    if open_again is None:
        raise InputError(f"--scale-from {text}: the source ({result.run['source']}) cannot be read again from here")
    detections = list(_detections(result, open_again, on_progress))
    found = scale_by_markers(detections, marker.side, text)
    how = f"{', '.join(found.markers)}: {found.detections} detections, RMS error {found.rms_px:.2f} px"
    return MetricScale(Similarity.of_scale(found.scale), found.error, text, how)


def _detections(
    result: ResultFolder, open_again: Callable[[], Source], on_progress: Progress
) -> Iterator[MarkerDetection]:
    every = -(-len(result.cameras) // MAX_MARKER_FRAMES)
    wanted = {camera.index: camera for camera in result.cameras[::every]}
    last, done = max(wanted), 0
    tracks = read_tracks(result.folder)
    detector = Detector()
    view: PinholeView | None = None
    with open_again() as source:
        for frame in source:
            camera = wanted.get(frame.index)
            if camera is not None:
                height, width = frame.rgb.shape[:2]
                view = view or shared_view([camera], tracks, (width, height))
                for marker, corners in detector.find(np.asarray(cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2GRAY), np.uint8)):
                    undistorted = _undistorted(corners, camera, view if tracks is not None else None)
                    if np.isfinite(undistorted).all():
                        yield MarkerDetection(marker, camera.T_world_camera, camera.intrinsics.fx, undistorted)
                done += 1
                on_progress(done, len(wanted))
            if frame.index >= last:
                return


def _undistorted(pixels: FloatArray, camera: FrameCamera, view: PinholeView | None) -> FloatArray:
    """Normalised image coordinates [N, 2] of source pixels, undistorted where refinement estimated the distortion."""
    if view is None:
        k = camera.intrinsics
        return np.asarray((pixels - (k.cx, k.cy)) / (k.fx, k.fy))
    k = view.intrinsics
    return np.asarray((view.to_export(pixels) - (k.cx, k.cy)) / (k.fx, k.fy))
