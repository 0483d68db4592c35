"""A start from matches alone: relative poses of matched keyframes by PnP, joined by a graph of similarities.

For videos whose matches contradict the network's motion, and for loops that close over more drift than an adjustment
can take. Each keyframe's depth map has a unit of its own here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.slam.ba.pose_graph import Edges, solve_pose_graph
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.frame_data import FrameData, reproject, unproject
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import Matches

FloatArray = NDArray[np.float64]

MIN_INLIERS = 20
PNP_PX = 6.0
"""Depth maps are off by some percent, so a point may land some pixels from where it belongs."""
MOST_DRIFT = 0.3
SLACK = 0.1
"""Of the way between two keyframes and of their distance: so far may a loop be from where the network has it."""
CONTRADICTION, CONTRADICTION_PX = 5.0, 15.0
"""Times what pairs usually miss by when the network carries their matches over, and at least so much."""
MINORITY = 0.25
"""Share of the pairs; if more contradict the network, it is not they that are odd."""
JUMP = 3.0
NETWORK_SIGMAS = (0.2, 1.0, 0.3)
"""Of the network's own steps beside matches: rotation in rad, translation as a share of the depth, log scale."""


@dataclass(frozen=True)
class Edge:
    """One keyframe in another's axes and unit of depth."""

    first: int
    second: int
    S_first_second: FloatArray  # [4, 4], a similarity
    inliers: int


def estimate_relative_poses(
    features: Sequence[Features], lens: CameraModel, matches: Mapping[tuple[int, int], Matches]
) -> dict[tuple[int, int], Edge]:
    """Relative poses of matched pairs; left out where depth and matches do not agree on one in both directions."""
    edges = {}
    for (i, j), m in matches.items():
        forward = _pnp(features[i], features[j], m, lens)
        backward = _pnp(features[j], features[i], m[:, ::-1], lens)
        if forward is None or backward is None:
            continue
        (S_ij, count), (S_ji, other) = forward, backward
        loop = S_ij @ S_ji
        scale = float(np.cbrt(np.linalg.det(loop[:3, :3])))
        turn = np.arccos(np.clip((np.trace(loop[:3, :3] / scale) - 1) / 2, -1, 1))
        if turn > np.radians(10) or not 0.7 < scale < 1.4:
            continue
        edges[i, j] = Edge(
            i, j, S_ij if count >= other else np.asarray(np.linalg.inv(S_ji), np.float64), max(count, other)
        )
    return edges


def implausible_edges(T_network: FloatArray, edges: Mapping[tuple[int, int], Edge]) -> set[tuple[int, int]]:
    """The edges that the network cannot have drifted to: equal doors of a corridor look like one, metres apart."""
    centres = T_network[:, :3, 3]
    way = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(centres, axis=0), axis=1))])
    wrong = set()
    for (i, j), edge in edges.items():
        relative = invert_pose(T_network[i]) @ T_network[j]
        shift = np.linalg.norm(edge.S_first_second[:3, 3] - relative[:3, 3])
        if shift > MOST_DRIFT * (way[j] - way[i]) + SLACK * np.linalg.norm(relative[:3, 3]):
            wrong.add((i, j))
    return wrong


def missed_px(
    T_world_camera: FloatArray,
    depth_scale: FloatArray,
    lens: CameraModel,
    features: Sequence[Features],
    matches: Mapping[tuple[int, int], Matches],
) -> dict[tuple[int, int], float]:
    """By how much poses [N, 4, 4] and scaled depths miss each pair's matches, in the median; 0 without depth; infinite
    where most come to lie behind the camera."""
    missed = {}
    for (i, j), m in matches.items():
        a, b = features[i], features[j]
        z = a.z[m[:, 0]].astype(np.float64) * depth_scale[i]
        T = invert_pose(T_world_camera[j]) @ T_world_camera[i]
        there, _ = reproject(lens, a.uv[m[:, 0]], np.where(z > 0, z, np.nan), T)
        off = np.nan_to_num(np.linalg.norm(there - b.uv[m[:, 1]], axis=1), nan=np.inf)
        missed[i, j] = float(np.median(off[z > 0])) if (z > 0).any() else 0.0
    return missed


def inconsistent_edges(
    views: Sequence[FrameData],
    features: Sequence[Features],
    lens: CameraModel,
    matches: Mapping[tuple[int, int], Matches],
) -> set[tuple[int, int]]:
    """Pairs whose matches put a jump where the network goes on at its pace.

    Where things repeat, all that is seen may match what is one further on. Such a pair is known by a jump in an
    otherwise even motion; where it is the network that jumps, matches are believed.
    """
    T = np.array([view.T_world_camera for view in views])
    missed = missed_px(T, np.ones(len(T)), lens, features, matches)
    if not missed:
        return set()
    limit = max(CONTRADICTION * float(np.median(list(missed.values()))), CONTRADICTION_PX)
    far_off = {pair: matches[pair] for pair, px in missed.items() if px > limit}
    if len(far_off) > MINORITY * len(matches):
        return set()
    index = np.array([view.index for view in views], np.float64)
    pace = float(np.median(np.linalg.norm(np.diff(T[:, :3, 3], axis=0), axis=1) / np.diff(index)))
    wrong = set()
    for (i, j), edge in estimate_relative_poses(features, lens, far_off).items():
        usual = pace * (index[j] - index[i])
        theirs = np.linalg.norm((invert_pose(T[i]) @ T[j])[:3, 3])
        if abs(np.linalg.norm(edge.S_first_second[:3, 3]) - usual) > JUMP * abs(theirs - usual) + usual:
            wrong.add((i, j))
    return wrong


def _pnp(a: Features, b: Features, matches: NDArray[np.integer], lens: CameraModel) -> tuple[FloatArray, int] | None:
    """Similarity from the second's axes and unit to the first's, by the first's depth; and how many matches agree."""
    z, z_there = a.z[matches[:, 0]].astype(np.float64), b.z[matches[:, 1]].astype(np.float64)
    known = (z > 0) & (z_there > 0)
    if known.sum() < MIN_INLIERS:
        return None
    xyz = unproject(lens, a.uv[matches[known, 0]]) * z[known, None]
    plane = unproject(lens, b.uv[matches[known, 1]])[:, :2]
    # In units of the focal length: no camera matrix, no distortion.
    limit = PNP_PX / lens.focal
    found, turn, shift, inliers = cv2.solvePnPRansac(
        xyz,
        plane,
        np.eye(3),
        None,
        iterationsCount=200,
        reprojectionError=limit,
        flags=cv2.SOLVEPNP_SQPNP,
    )
    if not found or inliers is None or len(inliers) < MIN_INLIERS:
        return None
    rows = inliers[:, 0]
    turn, shift = cv2.solvePnPRefineLM(xyz[rows], plane[rows], np.eye(3), None, turn, shift)
    R, _ = cv2.Rodrigues(turn)
    seen = xyz[rows] @ R[2] + shift[2, 0]
    if (seen > 0).mean() < 0.9:
        return None
    unit = float(np.median(seen[seen > 0] / z_there[known][rows][seen > 0]))
    S = np.eye(4)
    S[:3, :3], S[:3, 3] = unit * R.T, -R.T @ shift[:, 0]
    return S, len(rows)


def graph_start(
    T_network: FloatArray, edges: Mapping[tuple[int, int], Edge], depths: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Poses [N, 4, 4] and log depth scales [N] that agree best with the edges, in the first keyframe's unit.

    Args:
        T_network: [N, 4, 4], followed where no matches are.
        depths: [N] usual depth of each keyframe.
    """
    count = len(T_network)
    nodes = _chained(T_network, edges)
    matched = list(edges.values())
    steps = np.arange(count - 1)
    relative = invert_pose(T_network[:-1]) @ T_network[1:]
    S = np.concatenate([np.array([e.S_first_second for e in matched]).reshape(-1, 4, 4), relative])
    first = np.concatenate([np.array([e.first for e in matched], np.intp), steps])
    second = np.concatenate([np.array([e.second for e in matched], np.intp), steps + 1])
    inliers = np.array([e.inliers for e in matched], np.float64)
    firm = np.sqrt(100.0 / np.maximum(inliers, 1))
    turn, move, unit = NETWORK_SIGMAS
    rotation = np.concatenate([np.radians(1.0) * firm, np.full(count - 1, turn)])
    log_scale = np.concatenate([0.05 * firm, np.full(count - 1, unit)])
    translation = np.concatenate([0.05 * firm * depths[first[: len(matched)]], move * depths[steps]])
    robust = np.ones(len(first), bool)
    solved = solve_pose_graph(nodes, Edges(first, second, S, rotation, translation, log_scale, robust)).S_world_node
    scale = np.cbrt(np.linalg.det(solved[:, :3, :3]))
    T = solved.copy()
    T[:, :3, :3] /= scale[:, None, None]
    return T, np.log(scale)


def _chained(T_network: FloatArray, edges: Mapping[tuple[int, int], Edge]) -> FloatArray:
    """Similarities [N, 4, 4] along the edges with most inliers (a maximum spanning tree from the first keyframe)."""
    count = len(T_network)
    links: list[list[tuple[int, int, FloatArray]]] = [[] for _ in range(count)]
    for edge in edges.values():
        links[edge.first].append((edge.inliers, edge.second, edge.S_first_second))
        links[edge.second].append(
            (edge.inliers, edge.first, np.asarray(np.linalg.inv(edge.S_first_second), np.float64))
        )
    steps = invert_pose(T_network[:-1]) @ T_network[1:]
    for k in range(count - 1):
        # Of less weight than any match, so that it is taken where nothing else leads on.
        links[k].append((0, k + 1, steps[k]))
        links[k + 1].append((0, k, invert_pose(steps[k])))
    nodes = np.tile(np.eye(4), (count, 1, 1))
    nodes[0] = T_network[0]
    reached = np.zeros(count, bool)
    reached[0] = True
    heap: list[tuple[int, int, int, int]] = []

    def leave(node: int) -> None:
        for number, (inliers, other, _) in enumerate(links[node]):
            if not reached[other]:
                heappush(heap, (-inliers, other, node, number))

    leave(0)
    while heap:
        _, node, parent, number = heappop(heap)
        if not reached[node]:
            nodes[node], reached[node] = nodes[parent] @ links[parent][number][2], True
            leave(node)
    return nodes
