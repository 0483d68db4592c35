"""Poses of the views of a rig: brought into one world, made consistent, and held together in an adjustment."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.rig import VIEW_STRIDE, Rig
from stream_recon.app.core.transforms import FloatArray, Similarity, invert_pose, mean_rotation
from stream_recon.app.slam.ba.problem import IntArray, RelativePoses

ROTATION_SIGMA = 3e-5
"""Rad, of the rotation between two views of a frame in an adjustment: less than the matches' errors."""
TRANSLATION_SIGMA, CENTRAL_SIGMA = 0.002, 0.1
"""Of the distance of their centres, as a share of it; with one centre, of the length that counts as no motion."""
ROUNDS = 5
"""Rounds in which views are weighed by their distance from the mean of all."""


@dataclass(frozen=True)
class RigFrames:
    """The views of a rig's frames, in any order."""

    rig: Rig
    view: IntArray  # [N]
    body: IntArray  # [N], numbers from 0; those of one have one pose
    part: IntArray  # [N], numbers from 0; a cut in a view begins another part, in a world of its own
    scales: tuple[float, ...] | None = None
    """[V], metres per length of each view's network; None: not measured, as where views have one centre."""

    @classmethod
    def of(
        cls, rig: Rig, index: Sequence[int], segment: Sequence[int], scales: tuple[float, ...] | None = None
    ) -> "RigFrames":
        """From the frames' indices [N] and segments [N]."""
        view, frame = np.divmod(np.asarray(index, np.int64), VIEW_STRIDE)
        _, body = np.unique(frame, return_inverse=True)
        _, part = np.unique(np.stack([view, segment]), axis=1, return_inverse=True)
        return cls(rig, view.astype(np.intp), body.astype(np.intp), part.reshape(-1).astype(np.intp), scales)

    def take(self, chosen: Sequence[int]) -> "RigFrames":
        """Some of them, with the numbers as they are."""
        return replace(self, view=self.view[chosen], body=self.body[chosen], part=self.part[chosen])

    @property
    def parts(self) -> list[IntArray]:
        """Rows of each part: the longest one of view 0, then always the one that has most frames in common with these.

        The first one of a view is that by which its scale is measured.
        """
        left = [np.flatnonzero(self.part == part) for part in np.unique(self.part)]
        found = [left.pop(int(np.argmax([len(rows) * (self.view[rows[0]] == 0) for rows in left])))]
        while left:
            bodies = self.body[np.concatenate(found)]
            found.append(left.pop(int(np.argmax([np.isin(self.body[rows], bodies).sum() for rows in left]))))
        return found

    @property
    def measuring(self) -> NDArray[np.bool_]:
        """Which frames [N] are of the parts by which the scales of the views are measured."""
        first = {int(self.view[rows[0]]): rows for rows in reversed(self.parts)}
        return np.isin(np.arange(len(self.view)), np.concatenate(list(first.values())))

    def aligned(
        self, T_world_camera: FloatArray, scales: Sequence[float] | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Consistent poses [N, 4, 4] in the world of view 0, and the scale [N] of each view's lengths in it.

        Args:
            T_world_camera: [N, 4, 4], each view's in a world of its own, by a network that saw this view alone.
            scales: [V], of the views' lengths in metres; None: they follow from the paths, in the unit of view 0,
                which needs views with one centre.
        """
        scale = np.ones(len(self.view)) if scales is None else np.asarray(scales, np.float64)[self.view]
        T = np.array(T_world_camera, np.float64)
        T[:, :3, 3] *= scale[:, None]
        T, moves = self._of_bodies(T), dict[int, Similarity]()
        placed, *others = self.parts
        for own in others:
            view = int(self.view[own[0]])
            _, mine, other = np.intersect1d(self.body[own], self.body[placed], return_indices=True)
            if len(mine):
                known = 1.0 if scales is not None and view not in moves and view != self.view[placed[0]] else None
                S = _similarity(T[own[mine]], T[placed[other]], known)
            else:  # the view's network went on from the part before
                S = moves.get(view, Similarity.identity())
            T[own], scale[own] = [S.move_pose(pose) for pose in T[own]], scale[own] * S.scale
            moves[view], placed = S, np.concatenate([placed, own])
        return self._of_views(self._mean(T)), scale

    def consistent(self, T_world_camera: FloatArray) -> FloatArray:
        """Poses [N, 4, 4] in one world with that of each body's mean."""
        return self._of_views(self._mean(self._of_bodies(T_world_camera)))

    def together(self, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """A mask [N] that is the same for all views of a body: that of the majority."""
        count = np.bincount(self.body)
        return np.asarray((np.bincount(self.body, mask) > count / 2)[self.body])

    def ties(self, still: float) -> RelativePoses:
        """Relative poses of the views of each body to its first one. ``still``: as of `RelativePoses`."""
        order = np.lexsort((self.view, self.body))
        is_first = np.r_[True, np.diff(self.body[order]) > 0]
        first = order[np.flatnonzero(is_first)[np.cumsum(is_first) - 1]][~is_first]
        second = order[~is_first]
        S, one = self.rig.T_body_view, np.ones(len(first))
        T = invert_pose(S[self.view[first]]) @ S[self.view[second]]
        away = CENTRAL_SIGMA if self.rig.is_central else TRANSLATION_SIGMA
        sigmas = ROTATION_SIGMA * one, away * one
        return RelativePoses(first, second, T, *sigmas, still, in_scene_unit=one > 0)

    def _of_bodies(self, T_world_camera: FloatArray) -> FloatArray:
        return np.asarray(T_world_camera @ invert_pose(self.rig.T_body_view[self.view]))

    def _of_views(self, T_world_body: FloatArray) -> FloatArray:
        return np.asarray(T_world_body @ self.rig.T_body_view[self.view])

    def _mean(self, T: FloatArray) -> FloatArray:
        """Mean [N, 4, 4] over each body of poses [N, 4, 4] in one world; views that are far from it weigh less."""
        weight, views = np.ones(len(self.rig)), np.unique(self.view)
        mean = T.copy()
        for _ in range(ROUNDS):
            w = weight[self.view]
            total = np.bincount(self.body, w)
            for axis in range(3):
                mean[:, axis, 3] = (np.bincount(self.body, w * T[:, axis, 3]) / total)[self.body]
            sums = [[np.bincount(self.body, w * T[:, i, j]) for j in range(3)] for i in range(3)]
            rotations = np.moveaxis(np.array(sums), 2, 0)
            mean[:, :3, :3] = np.array([mean_rotation(R[None]) for R in rotations])[self.body]
            apart = np.square(T[:, :3, 3] - mean[:, :3, 3]).sum(axis=1)
            variance = np.array([np.median(apart[self.view == view]) for view in views])
            weight[views] = 1 / np.maximum(variance, 0.01 * variance.max() + 1e-18)
            weight /= weight.max()
        return mean


def _similarity(source: FloatArray, target: FloatArray, known: float | None) -> Similarity:
    """Similarity from poses [N, 4, 4] to poses of the same bodies, robust, of ``known`` scale, or 1 where they rest."""
    R = mean_rotation(target[:, :3, :3] @ np.swapaxes(source[:, :3, :3], 1, 2))
    turned, wanted = source[:, :3, 3] @ R.T, target[:, :3, 3]
    scale, offset, weight = known or 1.0, np.zeros(3), np.ones((len(source), 1))
    for _ in range(10):
        a, b = (weight * turned).sum(axis=0) / weight.sum(), (weight * wanted).sum(axis=0) / weight.sum()
        extent = float((weight * np.square(turned - a)).sum())
        if extent > 1e-12 and known is None:
            scale = max(float((weight * (turned - a) * (wanted - b)).sum()) / extent, 1e-3)
        offset = b - scale * a
        error = np.linalg.norm(scale * turned + offset - wanted, axis=1, keepdims=True)
        weight = 1 / np.maximum(error, float(np.median(error)) + 1e-12)
    return Similarity(scale, R, offset)
