"""Results that go on in the world of a known result: from the first recognized frame, through corrections and cuts."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest

from stream_recon.app.core.transforms import Similarity, is_rigid, rotation_angle_deg
from stream_recon.app.core.types import FrameResult, FrameRevision, PreparedFrame, Revision
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.run.live_onto import OntoBackEnd
from tests.app.localization.places import to_truth, write_refined
from tests.app.slam.room import FOCAL, look_down, network_result, picture, pose, walk

pytestmark = pytest.mark.slow

KNOWN = walk(16)
TRUTH = walk(60)[8:44]
OWN = Similarity(1.7, pose((0, 0, 0), 0.8, 0.3)[:3, :3], np.array([3.0, -1.0, 2.0]))
"""From the true world to the new run's."""


class PassingBackEnd:
    """Returns results as they come, and a revision that moves frames at a given number."""

    wants_grey, status_line = True, "passing"
    figures: ClassVar[dict[str, object]] = {}

    def __init__(self, correct_at: int = -1, correction: Similarity | None = None) -> None:
        self.results: list[FrameResult] = []
        self._at, self._correction = correct_at, correction

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        if self._correction is not None and len(self.results) > self._at:
            T = self._correction.move_pose(result.T_world_camera)
            depth = (result.depth * self._correction.scale).astype(np.float32)
            result = dataclasses.replace(result, T_world_camera=T, depth=depth)
        self.results.append(result)
        if self._correction is None or len(self.results) != self._at + 1:
            return [result]
        scale = self._correction.scale
        moved = [FrameRevision(r.index, self._correction.move_pose(r.T_world_camera), scale) for r in self.results]
        return [result, Revision(tuple(moved))]

    def finish(self) -> Sequence[FrameResult | Revision]:
        return []


class Page:
    """Poses and depth as a listener has them."""

    def __init__(self) -> None:
        self.results: dict[int, FrameResult] = {}
        self.poses: dict[int, np.ndarray] = {}
        self.scales: dict[int, float] = {}
        self.when: list[dict[int, np.ndarray]] = []

    def take(self, items: Sequence[FrameResult | Revision]) -> None:
        for item in items:
            if isinstance(item, Revision):
                assert all(is_rigid(frame.T_world_camera) for frame in item.frames)
                self.poses.update({frame.index: frame.T_world_camera for frame in item.frames})
                self.scales.update({frame.index: frame.depth_scale for frame in item.frames})
            else:
                self.results[item.index] = item
                self.poses[item.index], self.scales[item.index] = item.T_world_camera, 1.0
        self.when.append(dict(self.poses))

    def depth_ratio(self, index: int, true_depth: np.ndarray) -> float:
        """Depth on the page over the true one."""
        shown = self.results[index].depth * self.scales[index]
        return float(np.median(shown) / np.median(true_depth))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalizationMap, Similarity]:
    folder = tmp_path_factory.mktemp("place") / "room"
    write_refined(folder, KNOWN)
    return LocalizationMap.open(folder), to_truth(folder, KNOWN)


def run(place: LocalizationMap, truth: np.ndarray, inner: PassingBackEnd, cut: int | None = None) -> Page:
    """The page of a run in another world and unit; ``cut``: frame from which its world is another one once more."""
    page, onto = Page(), OntoBackEnd(inner, place)
    for index, T in enumerate(truth):
        rgb, depth = picture(T, draw=6)
        S = OWN if cut is None or index < cut else Similarity(0.6, np.eye(3), np.array([0.0, 5.0, 0.0])) @ OWN
        result = network_result(index, S.move_pose(T), FOCAL, rgb, depth * S.scale)
        result = dataclasses.replace(result, segment=int(cut is not None and index >= cut))
        frame = PreparedFrame(index, index / 10, result.rgb, result.transform, rgb[..., 0], result.segment)
        page.take(onto.push(result, frame))
    page.take(onto.finish())
    assert len(page.poses) == len(truth)
    return page


def errors(page: dict[int, np.ndarray], S: Similarity, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Errors of positions and rotations of some frames of a page."""
    poses = S.move_pose(np.array(list(page.values())))
    true = truth[list(page)]
    turned = rotation_angle_deg(np.swapaxes(poses[:, :3, :3], 1, 2) @ true[:, :3, :3])
    return np.linalg.norm(poses[:, :3, 3] - true[:, :3, 3], axis=1), np.asarray(turned)


def test_a_run_goes_on_in_the_known_world_and_what_came_before_follows(
    place: tuple[LocalizationMap, Similarity],
) -> None:
    here, S = place
    page = run(here, TRUTH, PassingBackEnd())
    own = OWN.move_pose(TRUTH)
    assert np.allclose(page.when[0][0], own[0]), "before it is recognized it is in its own world"
    for shown in page.when[6:]:
        off, turned = errors(shown, S, TRUTH)
        assert off.max() < 0.08 and turned.max() < 1.5
    off, turned = errors(page.poses, S, TRUTH)
    assert off.max() < 0.05 and turned.max() < 0.7
    depth = [page.depth_ratio(k, picture(TRUTH[k])[1]) * S.scale for k in (0, 20, 35)]
    assert np.allclose(depth, 1, atol=0.04)


def test_the_networks_estimate_keeps_its_world(place: tuple[LocalizationMap, Similarity]) -> None:
    page = run(place[0], TRUTH, PassingBackEnd())
    last = page.results[len(TRUTH) - 1]
    assert last.network is not None
    assert np.allclose(last.network.T_world_camera, OWN.move_pose(TRUTH[-1]))
    mine = np.median(last.depth) * last.network.depth_scale
    assert mine == pytest.approx(OWN.scale * np.median(picture(TRUTH[-1])[1]), rel=0.01)


def test_corrections_of_the_back_end_do_not_leave_the_known_world(place: tuple[LocalizationMap, Similarity]) -> None:
    here, S = place
    correction = Similarity(1.1, pose((0, 0, 0), 0.2)[:3, :3], np.array([0.5, 0.2, 0.0]))
    page = run(here, TRUTH, PassingBackEnd(16, correction))
    off, turned = errors(page.poses, S, TRUTH)
    assert off.max() < 0.05 and turned.max() < 0.7
    depth = [page.depth_ratio(k, picture(TRUTH[k])[1]) * S.scale for k in (0, 16, 35)]
    assert np.allclose(depth, 1, atol=0.04)


def test_a_new_segment_comes_to_the_same_world(place: tuple[LocalizationMap, Similarity]) -> None:
    here, S = place
    page = run(here, TRUTH, PassingBackEnd(), cut=18)
    off, turned = errors(page.poses, S, TRUTH)
    assert off.max() < 0.05 and turned.max() < 0.7


def test_another_place_stays_in_its_own_world(place: tuple[LocalizationMap, Similarity]) -> None:
    truth = look_down(10)
    page = run(place[0], truth, PassingBackEnd())
    assert np.allclose(list(page.poses.values()), OWN.move_pose(truth))


def test_the_same_frames_give_the_same_items(place: tuple[LocalizationMap, Similarity]) -> None:
    first, second = (run(place[0], TRUTH[:20], PassingBackEnd()) for _ in range(2))
    for one, two in zip(first.when, second.when, strict=True):
        assert one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)
