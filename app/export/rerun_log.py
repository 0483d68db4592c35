"""Export of a recording for the Rerun viewer: cameras with images, points by frame, and the trajectory."""

from pathlib import Path
from types import ModuleType

import numpy as np

from stream_recon.app.core.output_file import write_new
from stream_recon.app.export.glb import PATH_COLOUR
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import ordered_points
from stream_recon.app.result.cameras import of_bodies
from stream_recon.app.result.depth import depth_path, jpeg_of, read_depth
from stream_recon.app.result.run_record import PROGRAM
from stream_recon.configs.errors import OutputError, missing_library

IMAGE_QUALITY = 85
"""Encoder options of the images, which are the network's: 85 is visually lossless at this size."""
POINT_RADIUS = 0.6
"""Radius of a point in point spacings, so that neighbours overlap."""


def write_recording(job: ExportJob, path: Path) -> ExportReport:
    """Write an .rrd file. Raises StreamReconError, or OSError for system errors."""
    rr = _library()
    cloud = ordered_points(job, job.options.points, job.progress)
    recording = rr.RecordingStream(PROGRAM, recording_id=job.result.folder.resolve().name)
    # In memory, bounded by the number of points: Rerun's file writer blocks forever on a full disk.
    stream = recording.binary_stream()
    recording.log("world", rr.ViewCoordinates.RIGHT_HAND_Y_DOWN, static=True)
    line = np.array([camera.T_world_camera[:3, 3] for camera in of_bodies(cloud.cameras)])
    recording.log("world/path", rr.LineStrips3D([line], colors=[PATH_COLOUR]), static=True)
    size, k = job.view.size, job.view.intrinsics
    starts, images = [0, *cloud.point_ends.tolist()], 0
    for number, camera in enumerate(cloud.cameras):
        recording.set_time("frame", sequence=camera.index)
        recording.set_time("time", duration=camera.timestamp)
        T = camera.T_world_camera
        recording.log("world/camera", rr.Transform3D(translation=T[:3, 3], mat3x3=T[:3, :3]))
        centre, axes = [k.cx, k.cy], rr.ViewCoordinates.RDF
        pinhole = rr.Pinhole(focal_length=[k.fx, k.fy], principal_point=centre, resolution=size, camera_xyz=axes)
        recording.log("world/camera/image", pinhole)
        try:
            stored = read_depth(depth_path(job.result.folder, camera.index))
        except OutputError:
            pass
        else:
            shown = job.view.from_network(stored.rgb, stored.transform)
            data = jpeg_of(shown, IMAGE_QUALITY)
            recording.log("world/camera/image", rr.EncodedImage(contents=data, media_type="image/jpeg"))
            images += 1
        new = slice(starts[number], starts[number + 1])
        points = rr.Points3D(cloud.xyz[new], colors=cloud.rgb[new], radii=POINT_RADIUS * cloud.spacing)
        recording.log(f"world/points/{camera.index}", points)
        job.progress(number + 1, len(cloud.cameras))
    write_new(path, stream.read(flush=True) or b"")
    recording.disconnect()
    return ExportReport(
        f"{len(cloud.xyz)} points, {len(cloud.cameras)} cameras, {images} of them with images.",
        [
            "Open it with 'rerun FILE'. Timelines: frame (number in the source) and time (seconds of the source).",
            "Entities: world/path, world/camera (x right, y down, z forward), world/camera/image, world/points/FRAME.",
        ],
    )


def _library() -> ModuleType:
    try:
        import rerun
    except ImportError as error:
        raise missing_library("--format rrd", "rerun-sdk") from error
    return rerun  # type: ignore[no-any-return,unused-ignore]
