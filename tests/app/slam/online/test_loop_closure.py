"""Online loop closure: loops are closed at revisits, and only there."""

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import rotation_angle_deg
from stream_recon.app.core.worker import StopTest, ThreadWorker
from stream_recon.app.slam.matching.features import NO_FEATURES
from stream_recon.app.slam.matching.matching import NO_MATCHES
from stream_recon.app.slam.online.back_end import OnlineBackEnd
from stream_recon.app.slam.online.config import LoopConfig, MapConfig, OnlineConfig
from stream_recon.app.slam.online.global_ba import GlobalBA
from stream_recon.app.slam.online.keyframe import Keyframe
from stream_recon.app.slam.online.keyframe_features import PlaceDescriptor
from stream_recon.app.slam.online.loop_closure import Loop, LoopCorrection, thinned
from stream_recon.app.slam.online.place_recognition import KeyframeDatabase, PlaceQuery, QueryResult
from stream_recon.app.slam.online.process import ProcessBackEnd
from tests.app.slam.online.test_back_end import Heard, ate
from tests.app.slam.room import FOCAL, ROOM, Room, Video, drifting, pose

FloatArray = NDArray[np.float64]


def round_trip(count: int, turns: float) -> FloatArray:
    """Poses [count, 4, 4] along a circle, looking outwards."""
    angles = np.linspace(0, 2 * np.pi * turns, count)
    return np.array([pose((0.8 * np.sin(a), 0.1 * np.sin(3 * a), 0.8 * np.cos(a)), a) for a in angles])


@pytest.fixture(scope="module")
def again() -> tuple[Video, OnlineBackEnd, Heard]:
    truth = round_trip(110, 1.25)
    # A map that drifts: the focal length is wrong and stays so.
    video = Video(truth, drifting(truth, turn_deg=0.5, move=0.1), focal=1.08 * FOCAL)
    back_end = OnlineBackEnd(prefill=4, known_intrinsics=True)
    return video, back_end, Heard(video, back_end)


def gap(poses: FloatArray, truth: FloatArray, frames: tuple[int, int]) -> float:
    """Rotation error of the motion between two frames, in degrees."""
    first, second = frames
    found, true = (np.linalg.inv(T[first]) @ T[second] for T in (poses, truth))
    return float(rotation_angle_deg(found[:3, :3].T @ true[:3, :3]))


@pytest.mark.slow
def test_a_place_seen_again_closes_a_loop(again: tuple[Video, OnlineBackEnd, Heard]) -> None:
    video, back_end, heard = again
    assert len(back_end.sparse.loops) and "loops" in back_end.status_line
    for first, second in back_end.sparse.loops.tolist():
        assert rotation_angle_deg(video.truth[first][:3, :3].T @ video.truth[second][:3, :3]) < 40
        assert second - first > 60
    first, second = back_end.sparse.loops[0]
    before, after = (gap(heard.poses(first=first_given), video.truth, (first, second)) for first_given in (True, False))
    assert after < 0.5 * before
    assert ate(heard.poses(), video.truth) < 0.7 * ate(heard.poses(first=True), video.truth)


@pytest.mark.slow
def test_loops_can_be_left_open_and_no_pose_depends_on_later_ones(again: tuple[Video, OnlineBackEnd, Heard]) -> None:
    video, _, closed = again
    config = OnlineConfig(loops=LoopConfig(is_enabled=False))
    back_end = OnlineBackEnd(prefill=4, known_intrinsics=True, config=config)
    heard = Heard(video, back_end)
    assert not len(back_end.sparse.loops)
    assert ate(heard.poses(), video.truth) > ate(closed.poses(), video.truth)
    assert np.array_equal(heard.poses(first=True)[:60], closed.poses(first=True)[:60])


@pytest.mark.slow
def test_results_do_not_depend_on_clock_threads_or_processes(again: tuple[Video, OnlineBackEnd, Heard]) -> None:
    video, back_end, heard = again
    remote = ProcessBackEnd(prefill=4, known_intrinsics=True)
    found = Heard(video, remote)
    for first in (True, False):
        assert np.array_equal(found.poses(first=first), heard.poses(first=first))
    assert all(np.array_equal(found.first[k].depth, heard.first[k].depth) for k in heard.first)
    assert np.array_equal(remote.sparse.loops, back_end.sparse.loops) and remote.figures == back_end.figures


@pytest.mark.slow
def test_a_corridor_that_repeats_is_no_loop() -> None:
    corridor = Room(np.array([1.5, 1.6, 40.0]), [np.tile(texture[:256, :256], (4, 4)) for texture in ROOM.textures])
    looked: list[int] = []

    class Watched(KeyframeDatabase):
        def query(self, should_stop: StopTest, query: PlaceQuery, camera_model: CameraModel) -> QueryResult:
            found = super().query(should_stop, query, camera_model)
            looked.append(len(found.revisits))
            return found

    truth = np.array([pose((0.0, 0.05 * np.sin(z), z), 1.3) for z in np.linspace(-6, 6, 100)])
    back_end = OnlineBackEnd(
        prefill=4, workers=(ThreadWorker(GlobalBA(), "global-ba"), ThreadWorker(Watched(), "loops"))
    )
    Heard(Video(truth, drifting(truth, turn_deg=0.2, move=0.05), FOCAL, room=corridor), back_end)
    assert sum(looked) > 3, "places look alike there"
    assert not len(back_end.sparse.loops)


@pytest.mark.slow
def test_loops_are_closed_over_inactive_keyframes(again: tuple[Video, OnlineBackEnd, Heard]) -> None:
    back_end = OnlineBackEnd(prefill=4, known_intrinsics=True, config=OnlineConfig(map=MapConfig(active=20)))
    heard = Heard(again[0], back_end)
    assert len(back_end.sparse.loops) and len(heard.last) == len(again[0].truth)
    assert back_end.map is not None and back_end.map.fixed


def test_a_correction_is_interpolated_between_keyframes() -> None:
    S = np.tile(np.eye(4), (3, 1, 1))
    S[2, :3, 3], S[2, :3, :3] = (4, 0, 0), 2 * np.eye(3)
    found = LoopCorrection(np.array([0, 10, 20]), S, [], 0.0).interpolate([0, 5, 15, 20, 30])
    assert np.allclose(found[:2], np.eye(4)) and np.allclose(found[3], found[4])
    assert np.isclose(found[2, 0, 3], 2) and np.isclose(found[2, 0, 0], np.sqrt(2))


def test_of_many_loops_the_newest_are_kept_and_fewer_of_those_before() -> None:
    few, many = loops(200), loops(1000)
    assert thinned(few, 200) == few
    kept = [loop.inliers for loop in thinned(many, 200)]
    assert 100 <= len(kept) <= 200 and kept == sorted(set(kept))
    steps = np.diff(kept)
    assert kept[0] == 0 and kept[-1] == len(many) - 1
    assert steps[-1] == 1 and steps[0] > 1 and (np.diff(steps) <= 0).all()


def loops(count: int) -> list[Loop]:
    """Numbered by their inliers."""
    keyframe = Keyframe(0, np.eye(4), FOCAL, np.eye(4), 0.0)
    end = PlaceDescriptor(keyframe, NO_FEATURES, {})
    return [Loop(end, end, NO_MATCHES, np.eye(4), number) for number in range(count)]
