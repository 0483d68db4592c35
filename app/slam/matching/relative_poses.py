"""Relative poses of matched keyframes by PnP, and pairs whose matches geometry shows to be wrong.

The scale of each keyframe's depth map is free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose, rotation_angle_deg
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import FrameData, reproject
from stream_recon.app.slam.matching.config import DEFAULT_MATCHING, RelativePoseConfig
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches


@dataclass(frozen=True)
class Edge:
    """Similarity between two keyframes, in the scales of their depth maps."""

    first: int
    second: int
    S_first_second: FloatArray  # [4, 4], a similarity
    inliers: int


def estimate_relative_poses(
    features: Sequence[Features],
    camera_model: CameraModel,
    matches: Mapping[tuple[int, int], Matches],
    config: RelativePoseConfig = DEFAULT_MATCHING.relative_poses,
) -> dict[tuple[int, int], Edge]:
    """Relative poses of matched pairs whose estimates in both directions agree."""
    edges = {}
    for (i, j), m in matches.items():
        forward = _pnp(features[i], features[j], m, camera_model, config)
        backward = _pnp(features[j], features[i], m[:, ::-1], camera_model, config)
        if forward is None or backward is None:
            continue
        (S_ij, count), (S_ji, other) = forward, backward
        loop = S_ij @ S_ji
        scale = float(np.cbrt(np.linalg.det(loop[:3, :3])))
        angle_deg = rotation_angle_deg(loop[:3, :3] / scale)
        if angle_deg > 10 or not 0.7 < scale < 1.4:
            continue
        edges[i, j] = Edge(
            i, j, S_ij if count >= other else np.asarray(np.linalg.inv(S_ji), np.float64), max(count, other)
        )
    return edges


def implausible_edges(
    T_network: FloatArray,
    edges: Mapping[tuple[int, int], Edge],
    config: RelativePoseConfig = DEFAULT_MATCHING.relative_poses,
) -> set[tuple[int, int]]:
    """Edges farther from the network's poses than it can have drifted: repeated structures look alike, metres apart."""
    centres = T_network[:, :3, 3]
    path = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(centres, axis=0), axis=1))])
    wrong = set()
    for (i, j), edge in edges.items():
        relative = invert_pose(T_network[i]) @ T_network[j]
        distance = np.linalg.norm(edge.S_first_second[:3, 3] - relative[:3, 3])
        if distance > config.max_drift * (path[j] - path[i]) + config.drift_slack * np.linalg.norm(relative[:3, 3]):
            wrong.add((i, j))
    return wrong


def reprojection_errors_px(
    T_world_camera: FloatArray,
    depth_scale: FloatArray,
    camera_model: CameraModel,
    features: Sequence[Features],
    matches: Mapping[tuple[int, int], Matches],
) -> dict[tuple[int, int], float]:
    """Median reprojection error of each pair's matches under poses [N, 4, 4] and scaled depths.

    It is 0 without depth, and inf where most points lie behind the camera.
    """
    errors = {}
    for (i, j), m in matches.items():
        a, b = features[i], features[j]
        z = a.z[m[:, 0]].astype(np.float64) * depth_scale[i]
        T = invert_pose(T_world_camera[j]) @ T_world_camera[i]
        projected, _ = reproject(camera_model, a.uv[m[:, 0]], np.where(z > 0, z, np.nan), T)
        distance = np.nan_to_num(np.linalg.norm(projected - b.uv[m[:, 1]], axis=1), nan=np.inf)
        errors[i, j] = float(np.median(distance[z > 0])) if (z > 0).any() else 0.0
    return errors


def inconsistent_edges(
    views: Sequence[FrameData],
    features: Sequence[Features],
    camera_model: CameraModel,
    matches: Mapping[tuple[int, int], Matches],
    config: RelativePoseConfig = DEFAULT_MATCHING.relative_poses,
) -> set[tuple[int, int]]:
    """Pairs whose matches imply a jump where the network moves at its usual pace.

    With repeated structures all matches may be shifted by one period. Such a pair shows as a jump in an even motion;
    where the network itself jumps, the matches are kept.
    """
    T = np.array([view.T_world_camera for view in views])
    errors = reprojection_errors_px(T, np.ones(len(T)), camera_model, features, matches)
    if not errors:
        return set()
    least = config.contradiction_error * camera_model.longer_side
    limit = max(config.contradiction * float(np.median(list(errors.values()))), least)
    suspects = {pair: matches[pair] for pair, px in errors.items() if px > limit}
    if len(suspects) > config.max_contradicting * len(matches):
        return set()
    index = np.array([view.index for view in views], np.float64)
    pace = float(np.median(np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1) / np.diff(index)))
    wrong = set()
    for (i, j), edge in estimate_relative_poses(features, camera_model, suspects, config).items():
        usual = pace * (index[j] - index[i])
        theirs = np.linalg.norm((invert_pose(T[i]) @ T[j])[:3, 3])
        if abs(np.linalg.norm(edge.S_first_second[:3, 3]) - usual) > config.jump * abs(theirs - usual) + usual:
            wrong.add((i, j))
    return wrong


def _pnp(
    a: Features, b: Features, matches: NDArray[np.integer], camera_model: CameraModel, config: RelativePoseConfig
) -> tuple[FloatArray, int] | None:
    """Similarity from the second's axes and scale to the first's, by the first's depth; and its number of inliers."""
    z, z_second = a.z[matches[:, 0]].astype(np.float64), b.z[matches[:, 1]].astype(np.float64)
    known = (z > 0) & (z_second > 0)
    if known.sum() < config.min_inliers:
        return None
    xyz = camera_model.unproject(a.uv[matches[known, 0]]) * z[known, None]
    plane = camera_model.unproject(b.uv[matches[known, 1]])[:, :2]
    # In normalized coordinates, so that no camera matrix or distortion is needed.
    limit = config.pnp * camera_model.longer_side / camera_model.focal
    ok, rotation, translation, inliers = cv2.solvePnPRansac(
        xyz, plane, np.eye(3), None, iterationsCount=200, reprojectionError=limit, flags=cv2.SOLVEPNP_SQPNP
    )
    if not ok or inliers is None or len(inliers) < config.min_inliers:
        return None
    rows = inliers[:, 0]
    rotation, translation = cv2.solvePnPRefineLM(xyz[rows], plane[rows], np.eye(3), None, rotation, translation)
    R, _ = cv2.Rodrigues(rotation)
    depth = xyz[rows] @ R[2] + translation[2, 0]
    if (depth > 0).mean() < 0.9:
        return None
    scale = float(np.median(depth[depth > 0] / z_second[known][rows][depth > 0]))
    S = np.eye(4)
    S[:3, :3], S[:3, 3] = scale * R.T, -R.T @ translation[:, 0]
    return S, len(rows)
