"""Clips within long tracks of another clock, and the error that a scale by a track states."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.metric_scale.gps_alignment import scale_by_track
from stream_recon.app.metric_scale.gps_tracks import Positions
from stream_recon.app.metric_scale.scale_source import GpsTrack
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.metric_scale import EAST_NORTH_UP
from stream_recon.configs.errors import InputError
from tests.app.boxroom import room_result
from tests.app.slam.room import pose

UP = np.array([0.0, -1.0, 0.0])
FROM_WORLD = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
UNIT = 5.0
DAY = 1.7e9


def ride(seconds: int, seed: int, bend: float = 0.12) -> FloatArray:
    """Positions [N, 3] of a ride, one a second, with turns of ``bend`` radians a second."""
    random = np.random.default_rng(seed)
    heading = np.cumsum(random.normal(0, bend, seconds))
    speed = 6 + 1.5 * np.sin(np.arange(seconds) / 40)
    steps = np.stack([np.cos(heading) * speed, np.sin(heading) * speed, random.normal(0, 0.03, seconds)], axis=1)
    return np.cumsum(steps, axis=0)


def cameras_at(places: FloatArray, rate: int = 2) -> list[FrameCamera]:
    """Cameras of a clip along ``places`` (one a second), without scale, from time 0 on."""
    times = np.arange((len(places) - 1) * rate + 1) / rate
    at = np.stack([np.interp(times, np.arange(len(places)), places[:, axis]) for axis in range(3)], axis=1)
    local = (at - at[0]) @ FROM_WORLD / UNIT
    blank = room_result(0)
    made = [
        replace(blank, index=n, timestamp=float(t), T_world_camera=pose(p, 0.1 * np.sin(n / 9)))
        for n, (t, p) in enumerate(zip(times, local, strict=True))
    ]
    return [FrameCamera.from_result(result) for result in made]


def track(places: FloatArray, noise: float, seed: int, begin: float = DAY) -> Positions:
    random = np.random.default_rng(seed)
    return Positions(places + random.normal(0, noise, places.shape), EAST_NORTH_UP, begin + np.arange(len(places)))


@pytest.mark.parametrize("begin", [0, 611, 3000, 7099])
def test_a_clip_is_found_within_two_hours(begin: int) -> None:
    places = ride(7200, 3)
    cameras = cameras_at(places[begin : begin + 101])
    found = scale_by_track(cameras, UP, GpsTrack(track(places, 0.5, 1)), "track")
    assert found.T_metric_own.scale == pytest.approx(UNIT, rel=0.01)
    said = float(found.how.split("begins ")[1].split(" s")[0])
    assert said == pytest.approx(begin, abs=2)
    assert found.error is not None and found.error < 0.01


def test_a_path_that_was_driven_twice_has_to_be_told() -> None:
    places = np.concatenate([ride(300, 5), ride(300, 5)])
    with pytest.raises(InputError, match=r"fits about as well.*@SECONDS"):
        scale_by_track(cameras_at(places[100:200]), UP, GpsTrack(track(places, 0.5, 1)), "track")
    found = scale_by_track(cameras_at(places[100:200]), UP, GpsTrack(track(places, 0.5, 1), 400.0), "track")
    assert found.T_metric_own.scale == pytest.approx(UNIT, rel=0.01)


def test_a_straight_clip_on_a_straight_road_has_to_be_told() -> None:
    places = ride(2000, 5, bend=0.0)
    with pytest.raises(InputError, match="fits about as well"):
        scale_by_track(cameras_at(places[500:600]), UP, GpsTrack(track(places, 1.0, 1)), "track")


def test_times_that_agree_by_chance_are_not_believed() -> None:
    """Both clocks begin at 0, as those of loggers and videos do, but the clip is of the middle of the track."""
    places = ride(900, 8)
    with pytest.raises(InputError, match=r"fits better from 4\d\d\.\d s on.*@SECONDS"):
        scale_by_track(cameras_at(places[450:550]), UP, GpsTrack(track(places, 0.5, 1, begin=0.0)), "track")


def test_a_clip_of_another_ride_is_never_confident() -> None:
    wrong = 0
    for seed in range(5):
        cameras = cameras_at(ride(101, 100 + seed))
        try:
            scale_by_track(cameras, UP, GpsTrack(track(ride(3600, seed), 0.5, 1)), "track")
        except InputError:
            continue
        wrong += 1
    assert wrong == 0


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "seconds"), [(0.5, 60), (3.0, 100)])
def test_the_stated_error_holds(noise: float, seconds: int) -> None:
    """The true error is within two stated ones in 90 % of tries, and the clip is found or refused."""
    within = tries = 0
    for seed in range(16):
        places = ride(1000, seed)
        begin = 100 + 20 * seed
        cameras = cameras_at(places[begin : begin + seconds])
        try:
            found = scale_by_track(cameras, UP, GpsTrack(track(places, noise, 50 + seed)), "track")
        except InputError:
            continue
        tries += 1
        assert found.error is not None
        within += abs(found.T_metric_own.scale / UNIT - 1) <= 2 * found.error
    assert tries >= 8
    assert within >= 0.9 * tries


@pytest.mark.slow
def test_the_stated_error_holds_for_correlated_positions() -> None:
    """Errors of satellite positions last for tens of seconds."""
    within = 0
    for seed in range(30):
        places = ride(200, seed)
        random = np.random.default_rng(seed)
        wander = np.zeros((200, 3))
        for n in range(1, 200):
            wander[n] = 0.95 * wander[n - 1] + random.normal(0, 0.6, 3)
        noisy = Positions(places + wander, EAST_NORTH_UP, np.arange(200.0))
        found = scale_by_track(cameras_at(places), UP, GpsTrack(noisy, 0.0), "track")
        assert found.error is not None
        within += abs(found.T_metric_own.scale / UNIT - 1) <= 2 * found.error
    assert within >= 27


def test_a_road_driven_twice_is_told_apart_by_the_films_own_time() -> None:
    places = np.concatenate([ride(300, 5), ride(300, 5)])
    cameras = cameras_at(places[100:200])
    for recorded, begins in ((DAY + 110, 100), (DAY + 499, 400)):
        found = scale_by_track(cameras, UP, GpsTrack(track(places, 0.5, 1)), "track", recorded)
        assert found.T_metric_own.scale == pytest.approx(UNIT, rel=0.01)
        said = float(found.how.split("begins ")[1].split(" s")[0])
        assert said == pytest.approx(begins, abs=2) and "by the video's time" in found.how
    with pytest.raises(InputError, match="fits about as well"):
        scale_by_track(cameras, UP, GpsTrack(track(places, 0.5, 1)), "track", DAY - 86_400)
