"""Export of ``transforms.json`` for nerfstudio, Brush and others, with images, depth maps and points.

Format: https://docs.nerf.studio/quickstart/data_conventions.html. Poses are camera-to-world with OpenGL's camera axes:
x right, y up, z backward. The world's axes are not changed, because only some readers apply ``applied_transform`` to
the points.
"""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.export.depth import (
    DEPTH_NOTE,
    PER_UNIT,
    depth_units,
    frame_name,
    missing_frames,
    view_depth,
    write_image,
)
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.export.masks import NOTE as MASKS_NOTE
from stream_recon.app.export.masks import excluded_pixels, has_masks, write_mask
from stream_recon.app.export.points import sample_cloud, write_points
from stream_recon.app.export.source_images import frame_images
from stream_recon.configs.errors import OutputError

TRANSFORMS, POINTS = "transforms.json", "points.ply"
DEPTH_SIDE = 640
"""Longer side of a depth map in pixels, at most: larger ones hold no more detail."""
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
    masks = has_masks(job)
    for name in ("images", "depth", *(["masks"] if masks else [])):
        (folder / name).mkdir()
    frames: list[dict[str, Any]] = []
    for done, (camera, rgb, mask) in enumerate(images, start=1):
        name = frame_name(camera.index)
        try:
            depth = view_depth(job, camera, images.view.scaled(DEPTH_SIDE), rgb)
        except OutputError:
            images.missing.append(camera)  # depth for all frames or for none
            continue
        save_rgb(folder / "images" / f"{name}.jpg", rgb)
        write_image(folder / "depth" / f"{name}.png", depth_units(depth))
        mask_entry = {}
        if masks:
            mask_entry["mask_path"] = "masks/" + write_mask(
                folder / "masks", camera, excluded_pixels(job, camera, images.view, mask)
            )
        frames.append(
            {
                "file_path": f"images/{name}.jpg",
                "depth_file_path": f"depth/{name}.png",
                **mask_entry,
                "transform_matrix": (camera.T_world_camera @ OPENGL_CAMERA).tolist(),
                "timestamp": camera.timestamp,
            }
        )
        job.progress(done, len(cameras))
    if not frames:
        raise OutputError(f"no frame of {job.result.folder} is readable: there is nothing to export")
    vertices = sample_cloud(job.result.folder, job.options.points)
    write_points(folder / POINTS, vertices)
    view, k = images.view, images.view.intrinsics
    content = {
        "camera_model": "OPENCV",
        **{"fl_x": k.fx, "fl_y": k.fy, "cx": k.cx, "cy": k.cy, "w": view.size[0], "h": view.size[1]},
        **dict.fromkeys(("k1", "k2", "p1", "p2"), 0.0),
        "depth_unit_scale_factor": 1 / PER_UNIT,
        "ply_file_path": POINTS,
        "frames": frames,
    }
    (folder / TRANSFORMS).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    warnings = [*([images.warning] if images.warning else []), *missing_frames(len(images.missing))]
    return ExportReport(
        f"{len(frames)} images of {view.size[0]}x{view.size[1]} pixels with depth, {len(vertices)} points.",
        [
            f"{TRANSFORMS}: camera to world, with camera axes x right, y up, z backward (OpenGL); the world's axes are "
            "as above. One pinhole camera; images are undistorted.",
            *([MASKS_NOTE] if masks else []),
            DEPTH_NOTE + " It has the view of the image at the same or a lower resolution; edges follow the image's.",
            f"{POINTS}: coloured points in the same world.",
        ],
        warnings,
    )


def save_rgb(path: Path, rgb: NDArray[np.uint8]) -> None:
    """Write a JPEG file, see `JPEG`. Raises OSError."""
    write_image(path, cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), JPEG)
