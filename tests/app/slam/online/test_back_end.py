"""Online back end on a synthetic room: causal poses, revisions and fallbacks to the network."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.transforms import is_rigid
from stream_recon.app.core.types import FrameResult, FrameRevision, PreparedFrame, Revision
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.online.back_end import OnlineBackEnd
from stream_recon.app.slam.online.config import (
    DescriptorConfig,
    FinalBAConfig,
    GlobalBAConfig,
    LocalBAConfig,
    MapConfig,
    OnlineConfig,
)
from stream_recon.app.slam.online.keyframe import common_rows
from stream_recon.app.slam.online.map import MapState
from stream_recon.app.slam.online.process import ProcessBackEnd
from stream_recon.app.sources.preprocess import grey_image
from tests.app.slam.room import FOCAL, Video, drifting, look_down, walk

FloatArray = NDArray[np.float64]


class Heard:
    """Output of a back end for a video, checked item by item."""

    def __init__(
        self, video: Video, back_end: OnlineBackEnd | ProcessBackEnd, segments: list[int] | None = None
    ) -> None:
        self.first: dict[int, FrameResult] = {}
        self.last: dict[int, FrameResult | FrameRevision] = {}
        for k, (rgb, result) in enumerate(zip(video.pictures, video.results, strict=True)):
            if segments:
                result = replace(result, segment=segments[k])
            grey = grey_image(rgb)
            self._hear(back_end.push(result, PreparedFrame(k, k / 10, result.rgb, result.transform, grey)))
        self._hear(back_end.finish())
        assert list(self.first) == [result.index for result in video.results]

    def _hear(self, items: object) -> None:
        for item in items:  # type: ignore[attr-defined]
            if isinstance(item, FrameResult):
                assert item.index not in self.first
                self.first[item.index] = self.last[item.index] = item
                continue
            assert isinstance(item, Revision)
            assert len({frame.index for frame in item.frames}) == len(item.frames)
            for frame in item.frames:
                assert frame.index in self.first and is_rigid(frame.T_world_camera) and frame.depth_scale > 0
                self.last[frame.index] = frame

    def poses(self, *, first: bool = False) -> FloatArray:
        kept = self.first if first else self.last
        return np.array([kept[k].T_world_camera for k in sorted(kept)])


def ate(poses: FloatArray, truth: FloatArray) -> float:
    found = pose_errors(poses, truth, np.ones(len(truth) - 1, bool)).ate_m
    assert found is not None
    return found


@pytest.fixture(scope="module")
def wandering() -> tuple[Video, Heard]:
    truth = walk(60)[:40]
    video = Video(truth, drifting(truth, turn_deg=0.8, move=0.25))
    return video, Heard(video, OnlineBackEnd(prefill=4))


def test_a_drifting_walk_is_better_at_once_and_better_still_later(wandering: tuple[Video, Heard]) -> None:
    video, heard = wandering
    network = ate(np.array([result.T_world_camera for result in video.results]), video.truth)
    assert ate(heard.poses(first=True), video.truth) < 0.9 * network
    assert ate(heard.poses(), video.truth) < 0.6 * network
    last = heard.last[39]
    assert last.intrinsics is not None and abs(last.intrinsics.fx / FOCAL - 1) < 0.04


def test_the_networks_estimate_stays_known(wandering: tuple[Video, Heard]) -> None:
    video, heard = wandering
    for result in video.results:
        network, given = heard.first[result.index].network, heard.first[result.index]
        assert network is not None and (network.T_world_camera == result.T_world_camera).all()
        assert network.intrinsics == result.intrinsics
        assert np.allclose(given.depth * network.depth_scale, result.depth, rtol=1e-5)


def test_it_depends_on_no_later_frame_and_on_no_clock(wandering: tuple[Video, Heard]) -> None:
    video, heard = wandering
    shorter = Video(video.truth[:25], np.array([r.T_world_camera for r in video.results[:25]]))
    shorter.pictures, shorter.results = video.pictures[:25], video.results[:25]
    again = Heard(shorter, OnlineBackEnd(prefill=4)).poses(first=True)
    assert np.array_equal(again, heard.poses(first=True)[:25])


@pytest.mark.slow
def test_a_map_goes_on_where_another_run_ended(wandering: tuple[Video, Heard]) -> None:
    """In the world, scale and intrinsics of the earlier map; the network's world continues, too."""
    video, heard = wandering
    halves = []
    for part in (slice(0, 20), slice(20, 40)):
        half = Video(video.truth[part], np.array([r.T_world_camera for r in video.results[part]]))
        half.pictures, half.results = video.pictures[part], video.results[part]
        halves.append(half)
    first = Heard(halves[0], OnlineBackEnd(prefill=4))
    last, before = first.last[19], first.first[19]
    scale = last.depth_scale if isinstance(last, FrameRevision) else 1.0
    assert before.network is not None and last.intrinsics is not None
    map_state = MapState(
        last.T_world_camera, before.network.T_world_camera, scale * before.network.map_scale, last.intrinsics.fx, 0
    )
    second = Heard(halves[1], OnlineBackEnd(map_state=map_state))
    poses = np.concatenate([first.poses(), second.poses()])
    network = ate(np.array([result.T_world_camera for result in video.results]), video.truth)
    assert ate(poses, video.truth) < min(2 * ate(heard.poses(), video.truth), 0.5 * network)
    steps = np.linalg.norm(np.diff(poses[:, :3, 3], axis=0), axis=1)
    true = np.linalg.norm(np.diff(video.truth[:, :3, 3], axis=0), axis=1)
    assert 0.6 < steps[19] / true[19] / np.median(steps / true) < 1.6, "no jump at the border"


def test_blank_images_keep_the_networks_poses() -> None:
    truth = walk(10)
    guess = drifting(truth, turn_deg=0.5, move=0.1)
    video = Video(truth, guess)
    video.blank()
    heard = Heard(video, OnlineBackEnd(prefill=4))
    assert np.allclose(heard.poses(), guess, atol=1e-9)


@pytest.mark.slow
def test_descriptors_recover_lost_tracks() -> None:
    truth = look_down(16)
    random = np.random.default_rng(8)
    guess = drifting(truth, turn_deg=1.0, move=0.1)
    for k in range(len(guess)):
        # The network misses all image rotations.
        guess[k, :3, :3] = guess[0, :3, :3]
        guess[k, :3, 3] += random.normal(0, 0.1, 3)
    heard = Heard(Video(truth, guess, focal=FOCAL), OnlineBackEnd(prefill=4))
    assert ate(heard.poses(), truth) < 0.5 * ate(guess, truth)


def test_a_new_segment_starts_at_the_last_pose() -> None:
    truth = walk(60)[:24]
    guess = drifting(truth, turn_deg=0.3, move=0.1)
    heard = Heard(Video(truth, guess), OnlineBackEnd(prefill=4), [0] * 12 + [1] * 12)
    before, after = heard.poses(first=True)[11:13]
    step = np.linalg.inv(guess[11]) @ guess[12]
    found = np.linalg.inv(before) @ after
    assert np.allclose(found[:3, :3], step[:3, :3], atol=0.05)
    assert np.linalg.norm(found[:3, 3]) < 3 * np.linalg.norm(step[:3, 3]) + 1e-6


def test_a_live_back_end_outputs_every_result() -> None:
    truth = walk(60)[:20]
    video = Video(truth, drifting(truth, turn_deg=0.3, move=0.1))
    assert len(Heard(video, OnlineBackEnd(prefill=4, live=True)).first) == 20


def test_a_late_live_back_end_skips_adjustments_and_counts_them() -> None:
    truth = walk(60)[:20]
    video = Video(truth, drifting(truth, turn_deg=0.3, move=0.1))
    late = iter(np.linspace(0, 40, 20))
    back_end = OnlineBackEnd(prefill=4, live=True, clock=lambda: float(next(late)))
    assert len(Heard(video, back_end).first) == 20
    assert back_end.figures["adjustments_skipped"] > 2 and "adjustments skipped" in back_end.status_line


@pytest.mark.slow
def test_old_keyframes_keep_their_poses_alone() -> None:
    truth = walk(60)[:40]
    back_end = OnlineBackEnd(prefill=4, config=OnlineConfig(map=MapConfig(active=10)))
    heard = Heard(Video(truth, drifting(truth, turn_deg=0.3, move=0.1)), back_end)
    assert back_end.map is not None
    keyframes = back_end.map.keyframes
    assert len(keyframes) > 10
    assert all(len(keyframe.track) == 0 for keyframe in keyframes[:-10])
    assert all(len(keyframe.track) for keyframe in keyframes[-10:])
    assert len(heard.last) == 40


@pytest.mark.slow
def test_matches_of_descriptors_give_longer_tracks_and_smaller_errors() -> None:
    truth = walk(60)[:14]
    lengths, errors = [], []
    for is_enabled in (False, True):
        config = OnlineConfig(descriptors=DescriptorConfig(is_enabled=is_enabled))
        back_end = OnlineBackEnd(prefill=4, config=config)
        heard = Heard(Video(truth, drifting(truth, turn_deg=0.3, move=0.1)), back_end)
        assert back_end.map is not None
        keyframes = back_end.map.keyframes
        lengths.append(np.unique(np.concatenate([keyframe.track for keyframe in keyframes]), return_counts=True)[1])
        errors.append(ate(heard.poses(), truth))
    assert (lengths[1] >= 5).sum() > 1.2 * (lengths[0] >= 5).sum()
    assert errors[1] < 1.05 * errors[0]


def test_matches_of_descriptors_are_not_followed(wandering: tuple[Video, Heard]) -> None:
    back_end = OnlineBackEnd(prefill=4)
    Heard(wandering[0], back_end)
    assert back_end.map is not None
    for last, new in pairwise(back_end.map.keyframes):
        rows = common_rows(last, new)
        # Otherwise a track would be in the new keyframe twice: followed and matched anew.
        assert not new.followed[rows[:, 1]][~last.followed[rows[:, 0]]].any()
    assert all((~keyframe.followed).any() for keyframe in back_end.map.keyframes)


def test_without_adjustments_a_map_drifts_more(wandering: tuple[Video, Heard]) -> None:
    video, heard = wandering
    config = OnlineConfig(
        local_ba=LocalBAConfig(is_enabled=False),
        global_ba=GlobalBAConfig(is_enabled=False),
        final_ba=FinalBAConfig(is_enabled=False),
    )
    plain = Heard(video, OnlineBackEnd(prefill=4, config=config))
    assert ate(plain.poses(), video.truth) > 1.1 * ate(heard.poses(), video.truth)


def test_its_status_line_has_the_figures(wandering: tuple[Video, Heard]) -> None:
    back_end = OnlineBackEnd()
    assert back_end.status_line == ""
    Heard(wandering[0], back_end)
    assert "tracks, error" in back_end.status_line
    assert len(back_end.sparse.points) > 50 and np.isfinite(back_end.sparse.points).all()
