"""Input of a bundle adjustment: initial scene, observations and priors; and the unknowns in the solver's layout.

Cameras look along +z, x right, y down. All share one `CameraModel`. Lengths are in any one unit.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
Mask = NDArray[np.bool_]


INTRINSICS_SIZE = 3
"""Unknowns of the intrinsics: log focal length, k1 and k2."""


@dataclass(frozen=True)
class BAScene:
    """Parameters that an adjustment may change."""

    T_world_camera: FloatArray  # [N, 4, 4]
    points: FloatArray  # [M, 3], in the world
    camera_model: CameraModel
    """Its principal point is fixed."""
    log_depth_scale: FloatArray | None = None  # [N]
    """Measured depths of a camera, times exp of this, are in the scene's scale. None: all 0."""


@dataclass(frozen=True)
class Observations:
    """Observations of points by cameras, in any order."""

    camera: IntArray  # [O]
    point: IntArray  # [O]
    pixel: FloatArray  # [O, 2]
    sigma: FloatArray | None = None  # [O]
    """Standard deviations in pixels. None: all 1."""
    depth: FloatArray | None = None  # [O]
    """Measured along the camera's z axis, in the scene's scale; 0 or NaN without measurement. None: no depths."""
    depth_sigma: FloatArray | None = None  # [O]
    """Standard deviations of the log depths. None: `Priors.depth_sigma`."""

    def __len__(self) -> int:
        return len(self.camera)

    def take(self, chosen: IntArray | Mask) -> "Observations":
        """The observations at ``chosen`` (indices or a mask)."""
        optional = (None if each is None else each[chosen] for each in (self.sigma, self.depth, self.depth_sigma))
        return Observations(self.camera[chosen], self.point[chosen], self.pixel[chosen], *optional)


def rows_by(group: NDArray[np.integer], count: int) -> list[IntArray]:
    """Indices of the elements of each of ``count`` groups, ascending, from the group [N] of each element."""
    order = np.argsort(group, kind="stable")
    return np.split(order, np.searchsorted(group[order], np.arange(1, count + 1)))[:count]


@dataclass(frozen=True)
class RelativePoses:
    """Relative poses of cameras from another source, with a robust loss.

    Translations are in the unit of the measured depths. Free depth scales may scale them as well, by the mean of both
    cameras' log scales: only the ratio of baseline and depth is assumed known.
    """

    first: IntArray  # [E]
    second: IntArray  # [E]
    T_first_second: FloatArray  # [E, 4, 4]
    rotation_sigma: FloatArray  # [E]
    """In rad."""
    translation_sigma: FloatArray  # [E]
    """Relative to the translations' lengths."""
    still: float = 0.01
    """Share of the scene's depth; shorter translations count as this long."""
    in_scene_unit: Mask | None = None  # [E]
    """Those whose translations are in the scene's unit, and give it its scale; None: none."""

    @property
    def is_in_scene_unit(self) -> Mask:
        """Mask [E]."""
        return np.zeros(len(self.first), bool) if self.in_scene_unit is None else self.in_scene_unit

    def take(self, chosen: IntArray | Mask) -> "RelativePoses":
        """The relative poses at ``chosen`` (indices or a mask)."""
        return RelativePoses(
            *(self.first[chosen], self.second[chosen], self.T_first_second[chosen]),
            *(self.rotation_sigma[chosen], self.translation_sigma[chosen], self.still),
            self.is_in_scene_unit[chosen],
        )

    def joined(self, other: "RelativePoses") -> "RelativePoses":
        """These and others, which count as long in motion as these."""
        return RelativePoses(
            np.concatenate([self.first, other.first]),
            np.concatenate([self.second, other.second]),
            np.concatenate([self.T_first_second, other.T_first_second]),
            np.concatenate([self.rotation_sigma, other.rotation_sigma]),
            np.concatenate([self.translation_sigma, other.translation_sigma]),
            self.still,
            np.concatenate([self.is_in_scene_unit, other.is_in_scene_unit]),
        )


@dataclass(frozen=True)
class Priors:
    """Priors, with Cauchy losses (scales in sigmas) on depths and relative poses."""

    depth_sigma: float = 0.5
    """Of the log of a measured depth; larger than single errors, since errors of one depth map are correlated."""
    depth_loss_scale: float = 2.0
    log_depth_scale_sigma: float = 0.1
    """Of a camera's log depth scale, about 0."""
    relative_loss_scale: float = 3.0
    focal: float | None = None
    """In pixels; None: no prior."""
    log_focal_sigma: float = 0.1
    k1_sigma: float = 0.01
    k2_sigma: float | None = None
    """Of k1 and k2, about 0. None: k2 stays fixed."""
    known_intrinsics: bool = False
    """Focal length, k1 and k2 stay fixed."""


@dataclass(frozen=True)
class Problem:
    """Bundle adjustment problem. Without fixed cameras the first one is fixed, since the gauge is free.

    The scale is determined by measured depths, relative poses or two fixed cameras; without these it stays near its
    start, since steps are damped. Raises ValueError if array shapes do not fit.
    """

    scene: BAScene
    observations: Observations
    relative_poses: RelativePoses | None = None
    fixed: Mask | None = None  # [N]
    """Cameras whose pose and depth scale are fixed."""
    free_focal: bool = True
    free_k1: bool = False
    """k1, and k2 if it has a prior."""
    free_depth_scales: bool = True
    """Only used with measured depths."""
    priors: Priors = field(default_factory=Priors)

    def __post_init__(self) -> None:
        observations, cameras, count = self.observations, len(self.scene.T_world_camera), len(self.observations)
        shapes: dict[str, tuple[NDArray[Any] | None, tuple[int, ...]]] = {
            "point": (observations.point, (count,)),
            "pixel": (observations.pixel, (count, 2)),
            "sigma": (observations.sigma, (count,)),
            "depth": (observations.depth, (count,)),
            "depth_sigma": (observations.depth_sigma, (count,)),
            "T_world_camera": (self.scene.T_world_camera, (cameras, 4, 4)),
            "points": (self.scene.points, (len(self.scene.points), 3)),
            "log_depth_scale": (self.scene.log_depth_scale, (cameras,)),
            "fixed": (self.fixed, (cameras,)),
        }
        for name, (array, shape) in shapes.items():
            if array is not None and array.shape != shape:
                raise ValueError(f"{name} is {array.shape}, not {shape}")
        for name, index, limit in (
            ("camera", observations.camera, cameras),
            ("point", observations.point, len(self.scene.points)),
        ):
            if count and not (index.min() >= 0 and index.max() < limit):
                raise ValueError(f"an observation's {name} is not below {limit}")


@dataclass(frozen=True)
class ParameterBlocks:
    """Unknowns by component. A step rotates a camera in its axes, R <- R exp(w), and translates it in the world's."""

    rotation: FloatArray  # [N, 3, 3], camera to world
    centre: FloatArray  # [N, 3]
    log_scale: FloatArray  # [N]
    points: FloatArray  # [3, M]
    log_focal: float
    camera_model: CameraModel
    """Its focal length is that of the start."""

    @classmethod
    def from_scene(cls, scene: BAScene, order: IntArray) -> "ParameterBlocks":
        """Unknowns of a scene, with its cameras in ``order`` [N]."""
        T = np.asarray(scene.T_world_camera, np.float64)[order]
        scale = np.zeros(len(order)) if scene.log_depth_scale is None else scene.log_depth_scale[order]
        points = np.ascontiguousarray(np.asarray(scene.points, np.float64).reshape(-1, 3).T)
        scale, log_focal = np.asarray(scale, np.float64), float(np.log(scene.camera_model.focal))
        return cls(T[:, :3, :3], T[:, :3, 3], scale, points, log_focal, scene.camera_model)

    def stepped(self, cameras: FloatArray, points: FloatArray, intrinsics: FloatArray) -> "ParameterBlocks":
        """Unknowns after a step of the first n cameras [n, 6 or 7], the points [3, M], and (log focal, k1, k2)."""
        rotation, centre, scale = self.rotation.copy(), self.centre.copy(), self.log_scale
        n = len(cameras)
        rotation[:n] = rotation[:n] @ so3.exp(cameras[:, :3])
        centre[:n] += cameras[:, 3:6]
        if cameras.shape[1] == 7:
            scale = scale.copy()
            scale[:n] += cameras[:, 6]
        log_focal, k1, k2 = intrinsics.tolist()
        model = replace(self.camera_model, k1=self.camera_model.k1 + k1, k2=self.camera_model.k2 + k2)
        return ParameterBlocks(rotation, centre, scale, self.points + points, self.log_focal + log_focal, model)

    def to_scene(self, start: BAScene, order: IntArray, free: int) -> BAScene:
        """New scene with cameras in the order of ``start``; only the first ``free`` ones of ``order`` have moved."""
        T = np.tile(np.eye(4), (len(order), 1, 1))
        # Products of many small rotations lose orthonormality.
        T[order, :3, :3] = so3.nearest(self.rotation)
        T[order, :3, 3] = self.centre
        T[order[free:]] = start.T_world_camera[order[free:]]
        scale = np.empty(len(order))
        scale[order] = self.log_scale
        still = self.log_focal == np.log(start.camera_model.focal)
        focal = start.camera_model.focal if still else float(np.exp(self.log_focal))
        return BAScene(T, self.points.T.copy(), replace(self.camera_model, focal=focal), scale)
