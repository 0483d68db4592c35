"""Odometry and its correction: odom is continuous, and the product is the viewer's pose."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import FrameResult, Revision
from stream_recon.app.publishing.frame_tree import NETWORK, R_BODY_OPTICAL, FrameTree, Tracked, camera_on_base
from stream_recon.app.publishing.pose_history import PoseHistory
from stream_recon.app.viewer.timeline import Timeline
from tests.app.fake_engine import fake_result, frames, prepared
from tests.app.publishing.runs import drifting_walk, last_revision

MOUNTS = [(0.0,) * 6, (0.3, -0.1, 0.8, 0.1, 0.4, -0.7)]


def _tracked(result: FrameResult) -> Tracked:
    return Tracked.of(result, round(result.timestamp * 1e9))


@pytest.mark.parametrize("mount", MOUNTS)
def test_odom_takes_the_networks_steps_and_map_to_odom_all_corrections(mount: tuple[float, ...]) -> None:
    items = drifting_walk()
    items.append(last_revision(items))
    B = camera_on_base(mount)
    tree, timeline = FrameTree(B), Timeline()
    previous: Tracked | None = None
    corrections = 0
    for item in items:
        odom, map_odom = tree.T_odom_base.copy(), tree.T_map_odom
        if isinstance(item, Revision):
            timeline.revise(item)
            last = tree.last
            assert last is not None
            for frame in item.frames:
                if frame.index == last.index:
                    tree.correct(frame.T_world_camera)
            # A loop or refinement does not move odom, whatever it moves.
            assert np.array_equal(tree.T_odom_base, odom)
        else:
            timeline.add_frame(item.index, item.T_world_camera, item.intrinsics)
            frame = _tracked(item)
            tree.add(frame)
            if previous is not None:
                step = invert_pose(B) @ invert_pose(odom) @ tree.T_odom_base @ B
                given = invert_pose(previous.T_network) @ frame.T_network
                given[:3, 3] *= frame.scale
                assert np.allclose(step, given, atol=1e-9)
            previous = frame
        # The product of the tree is the viewer's pose.
        product = invert_pose(B) @ tree.T_map_odom @ tree.T_odom_base @ B
        assert np.allclose(product, timeline.poses[-1], atol=1e-6)
        corrections += not np.allclose(tree.T_map_odom, map_odom, atol=0.2)
    assert corrections == 3  # two loops and the refinement


def test_axes_follow_rep_105() -> None:
    tree = FrameTree(camera_on_base())
    for number, position in enumerate(np.eye(3)):
        result = fake_result(prepared(frames(1)[0]))
        T = np.eye(4)
        T[:3, 3] = position
        tree.add(_tracked(replace(result, index=number, T_world_camera=np.eye(4))))
        tree.correct(T)
        # Camera right, down, forward are body -y, -z, x.
        expected = [(0, -1, 0), (0, 0, -1), (1, 0, 0)][number]
        assert np.allclose(tree.T_map_base[:3, 3], expected)
    assert np.linalg.det(R_BODY_OPTICAL) == pytest.approx(1)
    # Roll, pitch and yaw about fixed axes: a camera that looks down by 90 degrees sees along -z of the base.
    down = camera_on_base((0, 0, 0, 0, np.pi / 2, 0))
    assert np.allclose(down[:3, :3] @ (0, 0, 1), (0, 0, -1))
    left = camera_on_base((0, 0, 0, 0, 0, np.pi / 2))
    assert np.allclose(left[:3, :3] @ (0, 0, 1), (0, 1, 0))


def test_covariances_are_valid_from_the_first_frame_on() -> None:
    tree, sizes = FrameTree(camera_on_base(MOUNTS[1])), []
    for item in drifting_walk(loops=()):
        assert isinstance(item, FrameResult)
        tree.add(_tracked(replace(item, covariance=np.diag([1e-6] * 3 + [1e-4] * 3))))
        for matrix in (tree.covariance, tree.map_covariance, tree.velocity_covariance):
            assert np.allclose(matrix, matrix.T) and np.linalg.eigvalsh(matrix).min() > 0
        sizes.append(np.trace(tree.covariance[:3, :3]))
    assert all(a < b for a, b in pairwise(sizes))
    assert np.degrees(np.sqrt(np.diag(tree.covariance)[3:])).max() < 0.5  # errors of frames do not add up
    unsure = replace(item, index=99, timestamp=99.0, health=0.2)
    known = np.trace(tree.covariance)
    tree.add(_tracked(unsure))
    assert np.trace(tree.covariance) > 10 * known


@pytest.mark.parametrize("mount", MOUNTS)
def test_stated_errors_are_those_of_drawn_poses(mount: tuple[float, ...]) -> None:
    """Monte Carlo: poses with the errors of the model, of map and network, against what is stated of ``base_link``."""
    rng = np.random.default_rng(0)
    items = [item for item in drifting_walk(12, ()) if isinstance(item, FrameResult)]
    first, last = _tracked(items[0]), replace(_tracked(items[-1]), health=None)
    path = last.scale * float(np.linalg.norm((invert_pose(first.T_network) @ last.T_network)[:3, 3]))

    def fed(frame: Tracked) -> FrameTree:
        tree = FrameTree(camera_on_base(mount))
        tree.add(first)
        tree.add(frame)
        return tree

    exact = fed(last)
    moved: dict[str, list[np.ndarray]] = {"map": [], "odom": []}
    for _ in range(500):
        drawn = _disturbed(last.T_world_camera, NETWORK.covariance(last.depth, path), rng)
        network = _disturbed(last.T_network, NETWORK.covariance(last.depth, path), rng)
        tree = fed(replace(last, T_world_camera=drawn, T_network=network))
        for name, T, true in (
            ("map", tree.T_map_base, exact.T_map_base),
            ("odom", tree.T_odom_base, exact.T_odom_base),
        ):
            moved[name].append(np.concatenate([T[:3, 3] - true[:3, 3], so3.log(T[:3, :3] @ true[:3, :3].T)]))
    for name, stated in (("map", exact.map_covariance), ("odom", exact.covariance)):
        ratio = np.sqrt(np.diag(stated) / (np.array(moved[name]) ** 2).mean(axis=0))
        assert ratio.max() < 2 and ratio.min() > 0.5, (name, ratio)


def _disturbed(T: np.ndarray, covariance: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    error, out = np.linalg.cholesky(covariance) @ rng.normal(0, 1, 6), T.copy()
    out[:3, :3], out[:3, 3] = T[:3, :3] @ so3.exp(error[:3]), T[:3, 3] + error[3:]
    return out


def test_map_covariance_is_that_of_disturbed_poses() -> None:
    """The formula against poses drawn from the tracker's covariance."""
    rng = np.random.default_rng(0)
    root = rng.normal(0, 0.02, (6, 6))
    items = [item for item in drifting_walk(12) if isinstance(item, FrameResult)]
    result = replace(items[-1], covariance=root @ root.T, health=1.0)
    tree = FrameTree(camera_on_base(MOUNTS[1]))
    tree.add(_tracked(items[-2]))
    tree.add(_tracked(result))
    mean, errors = tree.T_map_base, []
    for _ in range(4000):
        error = root @ rng.normal(0, 1, 6)
        T = result.T_world_camera.copy()
        T[:3, :3], T[:3, 3] = T[:3, :3] @ so3.exp(error[:3]), T[:3, 3] + error[3:]
        drawn = tree.base_pose(T)
        errors.append(np.concatenate([drawn[:3, 3] - mean[:3, 3], so3.log(drawn[:3, :3] @ mean[:3, :3].T)]))
    measured = np.cov(np.array(errors).T)
    expected = tree.map_covariance
    assert np.abs(measured - expected).max() < 0.15 * np.abs(expected).max()


def test_a_discontinuity_makes_odom_uncertain() -> None:
    tree = FrameTree(camera_on_base())
    items = [item for item in drifting_walk(3, ()) if isinstance(item, FrameResult)]
    tree.add(_tracked(items[0]))
    tree.add(_tracked(items[1]))
    before = np.trace(tree.covariance)
    tree.add(_tracked(replace(items[2], segment=1, health=None)))
    assert np.trace(tree.covariance) > before + 1.0


def test_history_is_bounded_and_revised() -> None:
    history = PoseHistory(most=64)
    for number in range(1000):
        T = np.eye(4)
        T[0, 3] = number
        history.add(number, number * 10, T)
    assert 32 <= len(history) <= 64 and history.stamps_ns[0] == 0
    assert np.array_equal(history.poses[:, 0, 3] * 10, history.stamps_ns)
    items = drifting_walk(5)
    history.revise({0: last_revision(items).frames[0]})
    assert not np.array_equal(history.poses[0], np.eye(4))
