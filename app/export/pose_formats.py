"""Export of the trajectory for evaluation tools, and of ``transforms.json`` for trainers of splats and radiance fields.

transforms.json: https://docs.nerf.studio/quickstart/data_conventions.html. Its poses are camera-to-world with OpenGL's
camera axes: x right, y up, z backward. The world's axes are not changed, because only some readers apply
``applied_transform`` to the points.
"""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.output_file import new_text, write_new
from stream_recon.app.core.ply import subsample
from stream_recon.app.core.transforms import quaternion_xyzw
from stream_recon.app.export import depth as depth_maps
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.points import write_points
from stream_recon.app.export.source_images import frame_images
from stream_recon.app.result.cameras import of_bodies
from stream_recon.configs.errors import OutputError

TRANSFORMS, POINTS = "transforms.json", "points.ply"
DEPTH_SIDE = 640
"""Longer side of a depth map in pixels, at most: larger ones hold no more detail."""
VIEW_NOTE = " It has the view of the image at the same or a lower resolution; edges follow the image's."
OPENGL_CAMERA = np.diag([1.0, -1.0, -1.0, 1.0])
"""From OpenGL's camera axes to ours."""
JPEG = (cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)
"""Encoder options of images for training: high quality, without chroma subsampling."""


def write_transforms(job: ExportJob, folder: Path) -> ExportReport:
    """Write images, depth maps, points and ``transforms.json``.

    Raises StreamReconError: nothing to export, or nothing readable. OSError for system errors.
    """
    cameras = job.cameras("keyframes")
    images = frame_images(job.result, cameras, job.view, job.options.max_side)
    masks = depth_maps.has_masks(job)
    without = sum(not job.has_depth(camera) for camera in cameras)
    for name in ("images", *([] if without else ["depth", "confidence"]), *(["masks"] if masks else [])):
        (folder / name).mkdir()
    frames: list[dict[str, Any]] = []
    for done, (camera, rgb, mask) in enumerate(images, start=1):
        name = depth_maps.frame_name(camera.index)
        depth_entry = {}
        if not without:
            try:
                depth, level = depth_maps.view_depth(job, camera, images.view.scaled(DEPTH_SIDE), rgb)
            except OutputError:
                images.missing.append(camera)  # depth for all frames or for none
                continue
            depth_maps.write_image(folder / "depth" / f"{name}.png", depth_maps.depth_units(depth))
            depth_maps.write_image(folder / "confidence" / f"{name}.png", depth_maps.level_steps(level))
            depth_entry = {"depth_file_path": f"depth/{name}.png"}
        save_rgb(folder / "images" / f"{name}.jpg", rgb)
        entry = {"file_path": f"images/{name}.jpg", **depth_entry}
        if masks:
            excluded = depth_maps.excluded_pixels(job, camera, images.view, mask)
            entry["mask_path"] = "masks/" + depth_maps.write_mask(folder / "masks", camera, excluded)
        T_opengl = (camera.T_world_camera @ OPENGL_CAMERA).tolist()
        frames.append({**entry, "transform_matrix": T_opengl, "timestamp": camera.timestamp})
        job.progress(done, len(cameras))
    if not frames:
        raise OutputError(f"no frame of {job.result.folder} is readable: there is nothing to export")
    vertices = subsample(job.cloud(), job.options.points)
    write_points(folder / POINTS, vertices)
    view, k = images.view, images.view.intrinsics
    content = {
        "camera_model": "OPENCV",
        **{"fl_x": k.fx, "fl_y": k.fy, "cx": k.cx, "cy": k.cy, "w": view.size[0], "h": view.size[1]},
        **dict.fromkeys(("k1", "k2", "p1", "p2"), 0.0),
        "depth_unit_scale_factor": 1 / depth_maps.PER_UNIT,
        "ply_file_path": POINTS,
        "frames": frames,
    }
    write_new(folder / TRANSFORMS, json.dumps(content, indent=1, allow_nan=False) + "\n")
    warnings = [*([images.warning] if images.warning else []), *depth_maps.missing_frames(len(images.missing))]
    if without:
        warnings.append(
            f"no depth maps: the run did not keep those of {without} of {len(cameras)} frames, and trainers need all"
        )
    return ExportReport(
        f"{len(frames)} images of {view.size[0]}x{view.size[1]} pixels {'without' if without else 'with'} depth, "
        f"{len(vertices)} points.",
        [
            f"{TRANSFORMS}: camera to world, with camera axes x right, y up, z backward (OpenGL); the world's axes are "
            "as above. One pinhole camera; images are undistorted.",
            *([depth_maps.MASKS_NOTE] if masks else []),
            *([] if without else [depth_maps.DEPTH_NOTE + VIEW_NOTE, depth_maps.CONFIDENCE_NOTE]),
            f"{POINTS}: coloured points in the same world.",
        ],
        warnings,
    )


def save_rgb(path: Path, rgb: NDArray[np.uint8]) -> None:
    """Write a JPEG file, see `JPEG`. Raises OSError."""
    depth_maps.write_image(path, cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), JPEG)


TUM, KITTI, KITTI_TIMES, EUROC = "trajectory_tum.txt", "trajectory_kitti.txt", "times_kitti.txt", "trajectory_euroc.csv"
EUROC_HEAD = "#timestamp [ns],p_RS_R_x [m],p_RS_R_y [m],p_RS_R_z [m],q_RS_w [],q_RS_x [],q_RS_y [],q_RS_z []\n"


def write_trajectory(job: ExportJob, folder: Path) -> ExportReport:
    """Write poses in the formats of TUM RGB-D, KITTI odometry and EuRoC MAV; of a rig one for each frame.

    Raises StreamReconError or OSError.
    """
    cameras = list(of_bodies(job.cameras("all")))
    with (
        new_text(folder / TUM) as tum,
        new_text(folder / KITTI) as kitti,
        new_text(folder / KITTI_TIMES) as times,
        new_text(folder / EUROC) as euroc,
    ):
        tum.write("# timestamp tx ty tz qx qy qz qw\n")
        euroc.write(EUROC_HEAD)
        for done, camera in enumerate(cameras, start=1):
            T = camera.T_world_camera
            tum.write(camera.to_tum())
            kitti.write(" ".join(f"{value:.9g}" for value in T[:3].ravel()) + "\n")
            times.write(f"{camera.timestamp:.6f}\n")
            qx, qy, qz, qw = quaternion_xyzw(T[:3, :3])
            numbers = ",".join(f"{value:.9g}" for value in (*T[:3, 3], qw, qx, qy, qz))
            euroc.write(f"{round(camera.timestamp * 1e9)},{numbers}\n")
            job.progress(done, len(cameras))
    return ExportReport(
        f"{len(cameras)} poses, camera to world.",
        [
            "Camera: x right, y down, z forward.",
            f"{TUM}: time in seconds of the source, position, quaternion x y z w.",
            f"{KITTI}: the upper three rows of the 4x4 pose, row by row; {KITTI_TIMES}: seconds of the source.",
            f"{EUROC}: nanoseconds of the source, position, quaternion w x y z. The header has [m], as the format "
            "requires; the unit is the one above.",
        ],
    )
