"""Several segments of one video, with a new network stream each."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.transforms import Similarity, align
from stream_recon.app.slam.matching.relative_poses import Edge
from stream_recon.app.slam.offline import segments
from stream_recon.app.slam.offline.refine import refine
from tests.app.slam.offline.test_refine import KNOWN_LENS
from tests.app.slam.room import FOCAL, Video, drifting, pose, walk

FloatArray = NDArray[np.float64]

COUNT = 14
ELSEWHERE = Similarity(1.5, np.asarray(cv2.Rodrigues(np.array([0.1, 0.7, 0.2]))[0]), np.array([2.0, -1.0, 0.5]))


def away(places: FloatArray, truth: FloatArray) -> float:
    return float(np.sqrt(np.square(align(places, truth).apply(places) - truth).sum(axis=1).mean()))


def other_side(count: int) -> FloatArray:
    """Poses [count, 4, 4] that see nothing of what `walk` sees in its first half."""
    t = np.linspace(0, 1, count)
    return np.array([pose((0.8 * s - 1, 0.1 * np.sin(6 * s), 0.4 * s), 3.6 + 0.4 * s) for s in t])


@pytest.mark.slow
def test_segments_with_matches_are_merged() -> None:
    truth = walk(2 * COUNT)
    video = Video(truth, drifting(truth, turn_deg=0.5, move=0.1), focal=FOCAL, scale_noise=0.02)
    video.cut(COUNT, ELSEWHERE)
    network = np.array([view.T_world_camera for view in video.views()])
    found = refine(video.views(), video, video.scale, KNOWN_LENS)
    assert found.report.segments == 1 and found.loops
    before, after = (away(T[:, :3, 3], truth[:, :3, 3]) for T in (network, found.T_world_camera))
    assert after < 0.1 * before
    units = found.depth_scale[:COUNT].mean() / found.depth_scale[COUNT:].mean()
    assert abs(units / ELSEWHERE.scale - 1) < 0.05


@pytest.mark.slow
def test_segments_without_matches_keep_the_networks_relative_pose() -> None:
    truth = np.concatenate([walk(2 * COUNT)[:COUNT], other_side(COUNT)])
    parts = slice(0, COUNT), slice(COUNT, 2 * COUNT)
    guess = np.concatenate([drifting(truth[part], turn_deg=0.8, move=0.15) for part in parts])
    video = Video(truth, guess, focal=FOCAL, scale_noise=0.02)
    video.cut(COUNT, ELSEWHERE)
    network = np.array([view.T_world_camera for view in video.views()])
    found = refine(video.views(), video, video.scale, KNOWN_LENS)
    assert found.report.segments == 2
    places, theirs, true = found.T_world_camera[:, :3, 3], network[:, :3, 3], truth[:, :3, 3]
    for part in parts:
        assert away(places[part], true[part]) < 0.5 * away(theirs[part], true[part])
    # The network's motion over the gap stays.
    gap, theirs_of_gap = (np.linalg.inv(T[COUNT - 1]) @ T[COUNT] for T in (found.T_world_camera, network))
    assert np.allclose(gap, theirs_of_gap, atol=0.02 * np.linalg.norm(theirs_of_gap[:3, 3]))
    # Depth maps of both keep one scale.
    units = found.depth_scale[:COUNT].mean() / found.depth_scale[COUNT:].mean()
    assert abs(units - 1) < 0.05
    # Against ground truth aligned per segment.
    joined = np.concatenate([align(true[part], theirs[part]).apply(true[part]) for part in parts])
    assert away(places, joined) < away(theirs, joined)


def test_a_single_relative_pose_is_not_sufficient() -> None:
    T = walk(8)
    segment = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    seen = np.concatenate([T[:4], ELSEWHERE.move_pose(T[4:])])
    back = ELSEWHERE.inverse()

    def edge(i: int, j: int, off: float = 0.0) -> Edge:
        S = np.linalg.inv(seen[i]) @ back.matrix @ seen[j]
        S[0, 3] += off
        return Edge(i, j, S, 50)

    one = {(1, 5): edge(1, 5)}
    assert segments.align(seen, segment, np.ones(8), one)[1][0] == 1
    assert segments.align(seen, segment, np.ones(8), {}, {(3, 4)})[1][0] == 1
    guessed = segments.align(seen, segment, np.ones(8), {}, {(3, 4), (3, 5)})
    assert guessed[1][0] == 0 and np.array_equal(guessed[1][1].matrix, np.eye(4))
    ties = segments.align(seen, segment, np.ones(8), {**one, (3, 4): edge(3, 4), (0, 7): edge(0, 7, 2.0)})
    assert ties[0][0] == ties[1][0] == 0
    assert np.allclose(ties[1][1].matrix, back.matrix)


def test_joined_windows_may_count_alike() -> None:
    truth = walk(6)
    views = [replace(v, segment=s) for v, s in zip(Video(truth, truth).views(), (0, 0, 1, 1, 0, 0), strict=True)]
    assert [view.segment for view in segments.numbered(views)] == [0, 0, 1, 1, 2, 2]
