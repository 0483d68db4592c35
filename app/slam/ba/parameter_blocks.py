"""An adjustment's unknowns as it keeps them: arrays by component, cameras in an order of its own."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core import so3
from stream_recon.app.slam.ba.problem import BAScene, CameraModel

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]


@dataclass(frozen=True)
class ParameterBlocks:
    """A step turns a camera in its own axes, R <- R exp(w), and moves its centre along the world's."""

    rotation: FloatArray  # [N, 3, 3], camera to world
    centre: FloatArray  # [N, 3]
    log_scale: FloatArray  # [N]
    points: FloatArray  # [3, M]
    log_focal: float
    k1: float

    @classmethod
    def of(cls, scene: BAScene, order: IntArray) -> "ParameterBlocks":
        """Cameras in ``order``: numbers into the scene's."""
        T = np.asarray(scene.T_world_camera, np.float64)[order]
        scale = np.zeros(len(order)) if scene.log_depth_scale is None else scene.log_depth_scale[order]
        points = np.ascontiguousarray(np.asarray(scene.points, np.float64).reshape(-1, 3).T)
        return cls(
            T[:, :3, :3],
            T[:, :3, 3],
            np.asarray(scale, np.float64),
            points,
            float(np.log(scene.lens.focal)),
            float(scene.lens.k1),
        )

    def stepped(self, cameras: FloatArray, points: FloatArray, lens: FloatArray) -> "ParameterBlocks":
        """After a step of the first cameras [n, 6 or 7], the points [3, M], and (log focal, k1)."""
        rotation, centre, scale = self.rotation.copy(), self.centre.copy(), self.log_scale
        n = len(cameras)
        rotation[:n] = rotation[:n] @ so3.exp(cameras[:, :3])
        centre[:n] += cameras[:, 3:6]
        if cameras.shape[1] == 7:
            scale = scale.copy()
            scale[:n] += cameras[:, 6]
        return ParameterBlocks(
            rotation, centre, scale, self.points + points, self.log_focal + float(lens[0]), self.k1 + float(lens[1])
        )

    def scene(self, start: BAScene, order: IntArray, free: int) -> BAScene:
        """As a scene with the cameras where ``start`` had them; its arrays are new. ``free``: so many have moved."""
        T = np.tile(np.eye(4), (len(order), 1, 1))
        # Products of many small turns are no longer quite rotations.
        u, _, vt = np.linalg.svd(self.rotation)
        T[order, :3, :3] = u @ vt
        T[order, :3, 3] = self.centre
        T[order[free:]] = start.T_world_camera[order[free:]]
        scale = np.empty(len(order))
        scale[order] = self.log_scale
        still = self.log_focal == np.log(start.lens.focal)
        focal = start.lens.focal if still else float(np.exp(self.log_focal))
        lens = CameraModel(focal, start.lens.cx, start.lens.cy, self.k1)
        return replace(start, T_world_camera=T, points=self.points.T.copy(), lens=lens, log_depth_scale=scale)
