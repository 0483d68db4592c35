"""What splats are trained on: images and their cameras, depth with certainty, and points to begin with."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.splat.config import ShellConfig

HELD_OUT_EVERY = 8
"""Of the images in order, the first, the ninth, ... are not trained on: they measure."""


@dataclass(frozen=True)
class TrainingScene:
    """n images of one pinhole camera, in one world; camera axes x right, y down, z forward."""

    frames: NDArray[np.int64]
    """[n] numbers of the frames in their source, ascending."""
    T_world_camera: NDArray[np.float64]  # [n, 4, 4]
    K: NDArray[np.float64]  # [3, 3], pixels; pixel (0, 0) covers [0, 1) x [0, 1)
    images: NDArray[np.uint8]  # [n, h, w, 3]
    depths: NDArray[np.float16]
    """[n, h', w'] along the optical axis, of the same views; 0 where there is none."""
    certainties: NDArray[np.uint8]
    """[n, h', w'], see `Certainty`."""
    points: NDArray[np.float32]  # [m, 3]
    colours: NDArray[np.uint8]  # [m, 3]
    excluded: NDArray[np.bool_] | None = None
    """[n, h, w] pixels that say nothing of the scene, such as those of the user's masks; None: none."""
    every: int = HELD_OUT_EVERY

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the images."""
        return self.images.shape[2], self.images.shape[1]

    @property
    def held_out(self) -> NDArray[np.bool_]:
        """[n], which images are measured and not trained on."""
        return np.asarray(np.arange(len(self.frames)) % self.every == 0) & (len(self.frames) > self.every)

    @property
    def centre(self) -> NDArray[np.float64]:
        """Origin [3] of the trainer's world: the mean of the cameras."""
        return np.asarray(self.T_world_camera[:, :3, 3].mean(axis=0))

    @property
    def unit(self) -> float:
        """Length of the trainer's world: the median distance of the cameras from its origin.

        Rates and thresholds mean lengths in such a world.
        """
        away = np.linalg.norm(self.T_world_camera[:, :3, 3] - self.centre, axis=1)
        return max(float(np.median(away)), 1e-9)

    @property
    def radius(self) -> float:
        """Distance from the centre that has 95 % of the points, or else twice the unit."""
        if not len(self.points):
            return 2 * self.unit
        return max(float(np.quantile(np.linalg.norm(self.points - self.centre, axis=1), 0.95)), self.unit)


def shell_points(scene: TrainingScene, config: ShellConfig) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Points [m, 3] far behind all others with their colours [m, 3], where images show something without depth.

    Held-out images give none.
    """
    rows = np.flatnonzero(~scene.held_out)
    without = scene.depths[rows] <= 0
    if scene.excluded is not None:
        without &= ~_at_size(scene.excluded[rows], without.shape[1:])
    if not config.is_enabled or not len(rows) or without.mean() < config.min_share:
        return np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8)
    view, row, column = np.nonzero(without)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(view))[: 4 * config.max_points]
    view, row, column = view[chosen], row[chosen], column[chosen]
    height, width = without.shape[1:]
    x = (column + 0.5) * scene.size[0] / width
    y = (row + 0.5) * scene.size[1] / height
    rays = np.stack([(x - scene.K[0, 2]) / scene.K[0, 0], (y - scene.K[1, 2]) / scene.K[1, 1], np.ones(len(x))], 1)
    rays = np.einsum("nij,nj->ni", scene.T_world_camera[rows[view], :3, :3], rays)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    # One point a direction: many images see the same sky.
    cells = np.unique(np.floor(rays * 64).astype(np.int64), axis=0, return_index=True)[1][: config.max_points]
    colours = scene.images[rows[view], y.astype(np.intp), x.astype(np.intp)]
    return (scene.centre + config.distance * scene.radius * rays[cells]).astype(np.float32), colours[cells]


def _at_size(masks: NDArray[np.bool_], size: tuple[int, ...]) -> NDArray[np.bool_]:
    """Masks [n, H, W] at the pixels of a size (h, w)."""
    rows = ((np.arange(size[0]) + 0.5) * masks.shape[1] / size[0]).astype(np.intp)
    columns = ((np.arange(size[1]) + 0.5) * masks.shape[2] / size[1]).astype(np.intp)
    return masks[:, rows[:, None], columns]


@dataclass(frozen=True)
class SceneOptions:
    """Choice of what is trained on."""

    frames: str | None = None
    """``keyframes``, ``all`` or a number N for every N-th; None: the keyframes."""
    max_side: int = 640
    """Longer side of the images in pixels."""
    max_images: int = 300
    """Of more images, evenly chosen ones are taken."""
    points: int = 200_000
    """Points to begin with, at most."""


DEPTH_SIDE = 384
"""Longer side of the depth maps in pixels."""


def scene_of(
    result: Any, options: SceneOptions, progress: Callable[[int, int], None] = lambda done, total: None
) -> TrainingScene:
    """The scene of a `ResultFolder`.

    Args:
        progress: called with the number of images read and their total; an exception from it ends the work.

    Raises StreamReconError: there are too few images or no points.
    """
    import cv2

    from stream_recon.app.core.depth_points import confidence_levels
    from stream_recon.app.core.ply import colours, positions, uniform_indices
    from stream_recon.app.core.types import Certainty
    from stream_recon.app.export.depth import excluded_pixels, has_masks
    from stream_recon.app.export.job import ExportJob, ExportOptions
    from stream_recon.app.export.points import sample_cloud
    from stream_recon.app.export.source_images import frame_images
    from stream_recon.configs.errors import InputError, OutputError
    from stream_recon.configs.schema import CONFIDENCE_LEVELS

    job = ExportJob(result, ExportOptions(frames=options.frames))
    chosen = job.cameras("keyframes")
    chosen = [chosen[k] for k in uniform_indices(len(chosen), options.max_images)]
    images = frame_images(result, chosen, job.view, options.max_side)
    small = images.view.scaled(DEPTH_SIDE)
    cameras, pictures, depths, certainties, excluded = [], [], [], [], []
    for camera, rgb, mask in images:
        cameras.append(camera)
        pictures.append(rgb)
        depth = np.zeros((small.size[1], small.size[0]), np.float32)
        certainty = np.zeros(depth.shape, np.uint8)
        with suppress(OutputError):
            frame = result.surface_of(camera)
            depth = np.asarray(small.from_map(frame.depth, frame, cv2.INTER_NEAREST), np.float32)
            levels = frame.certainty
            if levels is None:
                known = confidence_levels(frame) >= CONFIDENCE_LEVELS["low"]
                levels = np.where(known & (frame.depth > 0), Certainty.NETWORK, Certainty.NONE).astype(np.uint8)
            certainty = np.asarray(small.from_map(levels, frame, cv2.INTER_NEAREST), np.uint8)
        depths.append(np.where(certainty > 0, depth, 0).astype(np.float16))
        certainties.append(np.where(depth > 0, certainty, 0).astype(np.uint8))
        if has_masks(job):
            excluded.append(excluded_pixels(job, camera, images.view, mask))
        progress(len(cameras), len(chosen))
    if len(cameras) < 2:
        raise InputError(f"{result.folder} has images of {len(cameras)} frames: splats need more")
    cloud = sample_cloud(result.folder, options.points)
    if not len(cloud):
        raise OutputError(f"{result.folder} has no points: 'stream-recon refine' makes them again")
    return TrainingScene(
        np.array([camera.index for camera in cameras], np.int64),
        np.stack([camera.T_world_camera for camera in cameras]),
        images.view.intrinsics.matrix,
        np.stack(pictures),
        np.stack(depths),
        np.stack(certainties),
        positions(cloud),
        colours(cloud),
        np.stack(excluded) if excluded else None,
    )
