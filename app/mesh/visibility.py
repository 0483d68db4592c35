"""What depth maps say of points: on a surface, or in free space."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.mesh.config import VisibilityConfig
from stream_recon.app.mesh.surface import Mesh, parts_of, subset
from stream_recon.app.mesh.tsdf import FusionView


def in_free_space(
    points: NDArray[np.floating], views: Sequence[FusionView], config: VisibilityConfig
) -> NDArray[np.bool_]:
    """Which points [N, 3] several depth maps show something behind."""
    looked, through = np.zeros(len(points), np.intp), np.zeros(len(points), np.intp)
    for _, shown, z, depth in looks(points, views):
        looked[shown] += 1
        through[shown[depth > config.behind * z]] += 1
    return (through >= 2) & (through > config.free_share * looked)


def visible_part(mesh: Mesh, views: Sequence[FusionView], margin: float, config: VisibilityConfig) -> Mesh:
    """The mesh without triangles that no depth map shows from their front, at any of their vertices.

    Fusion makes such ones behind thin objects: backs of surfaces whose front is measured. ``margin``: distance from the
    surface within which a vertex is visible.
    """
    normals = vertex_normals(mesh).astype(np.float32)
    visible = np.zeros(len(mesh.xyz), bool)
    for centre, shown, z, depth in looks(mesh.xyz, views):
        near = np.abs(depth - z) < margin + config.near * z
        shown = shown[near]
        shown = shown[~visible[shown]]
        visible[shown] = np.einsum("ij,ij->i", centre - mesh.xyz[shown], normals[shown]) > 0
    faces = mesh.faces
    return subset(mesh, visible[faces[:, 0]] | visible[faces[:, 1]] | visible[faces[:, 2]])


def confirmed_part(mesh: Mesh, views: Sequence[FusionView], margin: float, config: VisibilityConfig) -> Mesh:
    """The mesh without small loose parts that stereo confirmed hardly anywhere: shreds of wrong depth in the air.

    What only frames without dense depth show stays. ``margin``: as of `visible_part`.
    """
    part = parts_of(mesh.faces, len(mesh.xyz))
    small = np.bincount(part[mesh.faces[:, 0]], minlength=part.max(initial=0) + 1) < config.max_shred * len(mesh.faces)
    loose = np.flatnonzero(small[part])
    shown, confirmed = np.zeros((2, len(mesh.xyz)), bool)
    for view in views:
        if view.confirmed is None:
            continue
        for marks, depth, near in (
            (shown, view.depth, config.near),
            (confirmed, np.where(view.confirmed, view.depth, 0), config.confirmed_near),
        ):
            for _, rows, z, measured in looks(mesh.xyz[loose], [replace(view, depth=depth)]):
                marks[loose[rows[np.abs(measured - z) < margin + near * z]]] = True
    dropped = small & (np.bincount(part, confirmed) < config.min_confirmed * np.bincount(part, shown))
    return subset(mesh, ~dropped[part[mesh.faces[:, 0]]])


def looks(
    points: NDArray[np.floating], views: Sequence[FusionView]
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.intp], NDArray[np.float32], NDArray[np.float32]]]:
    """For each view: its centre [3], the points [K] where it has depth, their depths, and its depth there."""
    xyz = np.asarray(points, np.float32)
    for view in views:
        T, k = invert_pose(view.T_world_camera).astype(np.float32), view.camera
        local = xyz @ T[:3, :3].T + T[:3, 3]
        z = local[:, 2]
        height, width = view.depth.shape
        with np.errstate(divide="ignore", invalid="ignore"):
            column, row = local[:, 0] / z * np.float32(k.fx), local[:, 1] / z * np.float32(k.fy)
            column, row = column + np.float32(k.cx), row + np.float32(k.cy)
            shown = np.flatnonzero((z > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height))
        depth = view.depth[row[shown].astype(np.intp), column[shown].astype(np.intp)].astype(np.float32)
        known = depth > 0
        shown = shown[known]
        yield view.T_world_camera[:3, 3].astype(np.float32), shown, z[shown], depth[known]


def vertex_normals(mesh: Mesh) -> NDArray[np.float64]:
    """Unit normals [N, 3]: means of the triangles', by area."""
    a, b, c = (mesh.xyz[mesh.faces[:, k]].astype(np.float64) for k in range(3))
    face = np.cross(b - a, c - a)
    normals = np.zeros((len(mesh.xyz), 3))
    for k in range(3):
        for axis in range(3):
            normals[:, axis] += np.bincount(mesh.faces[:, k], face[:, axis], len(mesh.xyz))
    return np.asarray(normals / np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-30))
