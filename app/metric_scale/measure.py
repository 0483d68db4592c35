"""How many metres a unit of a result is, by whatever the user gave."""

from collections.abc import Callable, Iterator, Sequence

import cv2
import numpy as np

from stream_recon.app.core.ply import positions
from stream_recon.app.core.transforms import FloatArray, Similarity
from stream_recon.app.export.points import subsample
from stream_recon.app.export.source_images import image_files, source_of
from stream_recon.app.export.view import PinholeView, shared_view, world_up
from stream_recon.app.metric_scale.gps_alignment import fitted_to, scale_by_track
from stream_recon.app.metric_scale.gps_tracks import of_degrees
from stream_recon.app.metric_scale.ground import camera_height
from stream_recon.app.metric_scale.marker import Detector, Sighting, scale_by_markers
from stream_recon.app.metric_scale.scale_source import Distance, Given, Height, Marker, Photographs, Track
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.files import stored_points
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.metric_scale import MetricScale
from stream_recon.app.result.tracks import read_tracks
from stream_recon.app.sources.exif import read_exif
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

MOST_LOOKED_AT = 1000
"""Frames in which markers are looked for, spread over the result."""
CLOUD_POINTS = 300_000

Progress = Callable[[int, int], None]


def measured(
    result: ResultFolder,
    given: Given,
    text: str,
    open_again: Callable[[], Source] | None = None,
    on_progress: Progress = lambda done, total: None,
) -> MetricScale:
    """What takes the result's world, as it is now, to metres.

    Args:
        text: what the user gave, for messages and the record.
        open_again: the source once more; None: as the result says.
        on_progress: told how many frames were looked at, of how many; may raise KeyboardInterrupt.

    Raises:
        InputError: what was given tells no scale, or is not seen.
        OutputError: a damaged file.
    """
    cameras = _longest_segment(result.cameras)
    if not cameras:
        raise InputError(f"{result.folder} has no frames")
    match given:
        case Marker():
            return _by_markers(result, given, text, open_again or source_of(result), on_progress)
        case Distance():
            return _by_distance(result.cameras, given, text)
        case Height():
            return _by_height(result, cameras, given, text)
        case Track():
            return scale_by_track(cameras, world_up(cameras), given.positions, given.begins, text)
        case Photographs():
            return _by_photographs(result, cameras, text)


def _longest_segment(cameras: Sequence[Camera]) -> list[Camera]:
    """Of the frames that hang together the most: where others lie beside them is a guess."""
    segments = [camera.segment for camera in cameras]
    longest = max(set(segments), key=segments.count, default=0)
    return [camera for camera in cameras if camera.segment == longest]


def _by_distance(cameras: Sequence[Camera], given: Distance, text: str) -> MetricScale:
    by_index = {camera.index: camera for camera in cameras}
    for index in (given.first, given.second):
        if index not in by_index:
            first, last = min(by_index), max(by_index)
            raise InputError(f"--scale-from {text}: of the frames {first} to {last} none has the number {index}")
    one, other = by_index[given.first], by_index[given.second]
    if one.segment != other.segment:
        raise InputError(f"--scale-from {text}: nothing connects the two frames, which are of different stretches")
    distance = float(np.linalg.norm(other.T_world_camera[:3, 3] - one.T_world_camera[:3, 3]))
    extent = max(float(np.linalg.norm(c.T_world_camera[:3, 3] - one.T_world_camera[:3, 3])) for c in cameras)
    if not distance > 1e-3 * extent:
        raise InputError(f"--scale-from {text}: in the result the two frames are taken from the same place")
    return MetricScale(Similarity.of_scale(given.metres / distance), None, text, "one distance, which tells no error")


def _by_height(result: ResultFolder, cameras: Sequence[Camera], given: Height, text: str) -> MetricScale:
    vertices = subsample(stored_points(result.folder / POINTS_NAME), CLOUD_POINTS)
    eyes = np.array([camera.T_world_camera[:3, 3] for camera in cameras])
    found = camera_height(positions(vertices).astype(np.float64), eyes, world_up(cameras), text)
    how = f"the ground by {found.points} points; the camera's height over it varies by {100 * found.error:.1f} %"
    return MetricScale(Similarity.of_scale(given.metres / found.height), found.error, text, how)


def _by_photographs(result: ResultFolder, cameras: Sequence[Camera], text: str) -> MetricScale:
    files = image_files(result)
    if files is None:
        raise InputError(f"--scale-from {text}: the source ({result.run['source']}) is no folder of photographs")
    places, eyes = [], []
    for camera in cameras:
        place = read_exif(files[camera.index]).place if camera.index < len(files) else None
        if place is not None:
            places.append(place)
            eyes.append(camera.T_world_camera[:3, 3])
    if len(places) < 3:
        raise InputError(f"--scale-from {text}: {len(places)} of the photographs say where they were taken")
    values = np.array(places, np.float64)
    found = of_degrees(values[:, :2], values[:, 2])
    return fitted_to(np.array(eyes), found.metres, world_up(cameras), found, text)


def _by_markers(
    result: ResultFolder, given: Marker, text: str, open_again: Callable[[], Source] | None, on_progress: Progress
) -> MetricScale:
    if open_again is None:
        raise InputError(f"--scale-from {text}: the source ({result.run['source']}) cannot be read again from here")
    sightings = list(_sightings(result, open_again, on_progress))
    found = scale_by_markers(sightings, given.side, text)
    how = f"{', '.join(found.markers)}: {found.sightings} sightings, off by {found.off_px:.2f} px (RMS)"
    return MetricScale(Similarity.of_scale(found.scale), found.error, text, how)


def _sightings(result: ResultFolder, open_again: Callable[[], Source], on_progress: Progress) -> Iterator[Sighting]:
    every = -(-len(result.cameras) // MOST_LOOKED_AT)
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
                    straight = _straight(corners, camera, view if tracks is not None else None)
                    if np.isfinite(straight).all():
                        yield Sighting(marker, camera.T_world_camera, camera.intrinsics.fx, straight)
                done += 1
                on_progress(done, len(wanted))
            if frame.index >= last:
                return


def _straight(pixels: FloatArray, camera: Camera, view: PinholeView | None) -> FloatArray:
    """Pixels [N, 2] of the source's image at distance 1, by the refinement's lens or else the frame's own camera."""
    if view is None:
        k = camera.intrinsics
        return np.asarray((pixels - (k.cx, k.cy)) / (k.fx, k.fy))
    k = view.intrinsics
    return np.asarray((view.to_export(pixels) - (k.cx, k.cy)) / (k.fx, k.fy))
