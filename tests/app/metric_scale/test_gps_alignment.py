"""Metric scale from tracks of positions in all file formats."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.transforms import FloatArray, Similarity
from stream_recon.app.core.types import FrameResult
from stream_recon.app.metric_scale.config import DEFAULT_SCALE
from stream_recon.app.metric_scale.gps_alignment import scale_by_photographs, scale_by_track
from stream_recon.app.metric_scale.gps_tracks import east_north_up, read_positions
from stream_recon.app.metric_scale.scale_source import (
    Distance,
    GpsTrack,
    Height,
    Marker,
    Photographs,
    parse_scale_source,
)
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.metric_scale import EAST_NORTH_UP, FIRST_CAMERA, OF_FILE
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.errors import ConfigError, InputError
from tests.app.boxroom import room_result
from tests.app.fake_engine import run_info
from tests.app.slam.room import pose
from tests.app.sources.exif_files import entries, jpeg, structure

PLACE = 48.1371, 11.5754, 519.0
METRES_A_DEGREE = 111_194.0 * np.array([1.0, np.cos(np.radians(PLACE[0]))])
UNIT = 3.2
LEVEL = np.array([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
"""From y down to z up."""
HEADING = np.array([[0.6, -0.8, 0], [0.8, 0.6, 0], [0, 0, 1.0]])


def round_walk(count: int = 200, seconds: float = 100.0) -> tuple[list[FrameCamera], FloatArray]:
    """Cameras of a result, and where they were [N, 3] in metres east, north, up."""
    t = np.linspace(0, 1, count)
    down = np.stack([30 * np.sin(5 * t), 1.0 * np.sin(11 * t), 40 * t + 5 * np.sin(9 * t)], axis=1)
    blank = room_result(0)
    cameras = []
    for number, (place, share) in enumerate(zip(down / UNIT, t, strict=True)):
        T = pose(place, 4 * share, 0.05 * np.sin(20 * share))
        result: FrameResult = replace(blank, index=number, timestamp=share * seconds, T_world_camera=T)
        cameras.append(FrameCamera.from_result(result))
    return cameras, down @ (HEADING @ LEVEL).T


def gpx(path: Path, places: FloatArray, begin: float, step: float) -> Path:
    start = datetime(2026, 5, 4, 10, 0, tzinfo=UTC)
    rows = []
    for number, (east, north, up) in enumerate(places):
        latitude, longitude = PLACE[0] + north / METRES_A_DEGREE[0], PLACE[1] + east / METRES_A_DEGREE[1]
        time = (start + timedelta(seconds=begin + step * number)).isoformat().replace("+00:00", "Z")
        rows.append(
            f'<trkpt lat="{latitude:.9f}" lon="{longitude:.9f}"><ele>{PLACE[2] + up}</ele><time>{time}</time></trkpt>'
        )
    body = "\n".join(rows)
    path.write_text(f'<gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>{body}</trkseg></trk></gpx>')
    return path


UP = np.array([0.0, -1.0, 0.0])


def test_a_gps_track_of_another_clock_gives_scale_axes_and_offset(tmp_path: Path) -> None:
    cameras, truth = round_walk()
    random = np.random.default_rng(3)
    # One position a second; the walk begins 30 s after the track.
    still = np.repeat(truth[:1], 30, axis=0) + [[-0.8 * (30 - n), 0.3 * (30 - n), 0] for n in range(30)]
    places = np.concatenate([still, truth[::2], truth[-1:] + [[0.5 * n, 0, 0] for n in range(10)]])
    noisy = places + random.normal(0, 0.5, places.shape)
    noisy[40:46] += (25, -30, 10)
    file = gpx(tmp_path / "walk.gpx", noisy, 0, 100 / 199 * 2)
    given, text = parse_scale_source(f"track:{file}")
    assert isinstance(given, GpsTrack) and text == f"track:{file}"
    found = scale_by_track(cameras, UP, given, text)
    assert found.T_metric_own.scale == pytest.approx(UNIT, rel=0.01)
    assert found.world == EAST_NORTH_UP and found.error is not None and found.error < 0.02
    assert found.origin is not None and found.origin[:2] == pytest.approx(PLACE[:2], abs=1e-3)
    rotation = found.T_metric_own.rotation @ (HEADING @ LEVEL).T
    assert np.degrees(np.arccos((np.trace(rotation) - 1) / 2)) < 1.5
    assert "begins 30" in found.how or "begins 29" in found.how
    with_offset = scale_by_track(cameras, UP, GpsTrack(given.positions, 30.0 * 200 / 199), text)
    assert with_offset.T_metric_own.scale == pytest.approx(UNIT, rel=0.01)


def test_on_a_straight_path_up_is_that_of_the_cameras(tmp_path: Path) -> None:
    cameras, _ = round_walk(60, 59.0)
    straight = np.stack([np.zeros(60), np.zeros(60), np.arange(60.0)], axis=1)
    cameras = [
        replace(camera, T_world_camera=pose(place / UNIT, 0.1 * np.sin(number)))
        for number, (camera, place) in enumerate(zip(cameras, straight, strict=True))
    ]
    noise = np.random.default_rng(0).normal(0, 0.8, (60, 3)) * (1, 1, 3)
    file = gpx(tmp_path / "way.gpx", straight @ (HEADING @ LEVEL).T + noise, 0, 1.0)
    found = scale_by_track(cameras, UP, GpsTrack(read_positions(file)), "track")
    assert found.T_metric_own.scale == pytest.approx(UNIT, rel=0.03)
    assert found.T_metric_own.rotation @ UP == pytest.approx([0, 0, 1], abs=1e-6)


def test_csv_by_frames_or_times_and_tum(tmp_path: Path) -> None:
    cameras, truth = round_walk()
    table = tmp_path / "a.csv"
    lines = [f"{n},{x:.4f},{y:.4f},{z:.4f}" for n, (x, y, z) in enumerate(truth) if n % 7 == 0]
    table.write_text("frame,x [m],y [m],z [m]\n" + "\n".join(lines))
    tum = tmp_path / "a.txt"
    tum.write_text(
        "# t x y z\n"
        + "".join(f"{c.timestamp} {x} {y} {z} 0 0 0 1\n" for c, (x, y, z) in zip(cameras, truth, strict=True))
    )
    late = tmp_path / "b.csv"
    degrees = np.array(PLACE[:2]) + truth[:, [1, 0]] / METRES_A_DEGREE
    late.write_text(
        "Timestamp;Latitude;Longitude\n"
        + "".join(f"{1.7e12 + 1000 * c.timestamp:.0f};{b};{a}\n" for c, (b, a) in zip(cameras, degrees, strict=True))
    )
    for file in (table, tum):
        found = scale_by_track(cameras, UP, GpsTrack(read_positions(file)), "track")
        assert found.T_metric_own.scale == pytest.approx(UNIT, rel=1e-4) and found.world == OF_FILE
        assert np.allclose(found.T_metric_own.rotation, HEADING @ LEVEL, atol=1e-4)
    level = scale_by_track(cameras, UP, GpsTrack(read_positions(late)), "track")
    assert level.T_metric_own.scale == pytest.approx(UNIT, rel=0.01) and level.world == EAST_NORTH_UP


def test_photographs_give_the_scale_and_what_is_odd_of_their_places_is_told(tmp_path: Path) -> None:
    cameras, truth = round_walk()
    (tmp_path / "images").mkdir()
    for number, (east, north, up) in enumerate(truth.tolist()):
        place = PLACE[0] + north / METRES_A_DEGREE[0], PLACE[1] + east / METRES_A_DEGREE[1], PLACE[2] + up
        main, inner, gps = entries(place=place)
        if number == 3:
            gps["GPSAltitudeRef"] = (5, 1, b"\x09")
        jpeg(tmp_path / f"images/{number:03}.jpg", np.zeros((8, 8, 3), np.uint8), structure(main, inner, gps))
    writer = ResultWriter(tmp_path / "out", replace(run_info(), options={"source": str(tmp_path / "images")}))
    writer.add(room_result(0))
    writer.finish(RunSummary(interrupted=False))
    result = read_result(tmp_path / "out")
    found = scale_by_photographs(result, cameras, "exif", DEFAULT_SCALE.track.fit)
    assert found.T_metric_own.scale == pytest.approx(UNIT, rel=0.01) and "EXIF GPSAltitudeRef 9" in found.how
    with pytest.raises(InputError, match=r"1 photographs have GPS positions.*GPSAltitudeRef 9"):
        scale_by_photographs(result, cameras[3:4], "exif", DEFAULT_SCALE.track.fit)


def test_grid_coordinates_get_an_origin_and_a_line_keeps_the_axes(tmp_path: Path) -> None:
    cameras, truth = round_walk()
    file = tmp_path / "utm.txt"
    far = np.array([691_000.0, 5_334_000.0, 500.0])
    file.write_text("".join(f"{c.timestamp} {x} {y} {z}\n" for c, (x, y, z) in zip(cameras, truth + far, strict=True)))
    found = scale_by_track(cameras, UP, GpsTrack(read_positions(file)), "track")
    assert found.origin is not None and np.abs(np.array(found.origin) - far).max() < 100
    place = found.T_metric_own.apply(cameras[9].T_world_camera[:3, 3]) + found.origin
    assert place == pytest.approx(truth[9] + far, abs=0.01)
    line = np.stack([np.arange(200.0), np.zeros(200), np.zeros(200)], axis=1)
    cameras = [replace(c, T_world_camera=pose(p / UNIT, 0)) for c, p in zip(cameras, line, strict=True)]
    file.write_text("".join(f"{c.timestamp} 0 {p[0]} 0\n" for c, p in zip(cameras, line, strict=True)))
    found = scale_by_track(cameras, UP, GpsTrack(read_positions(file)), "track")
    assert found.world == FIRST_CAMERA and np.array_equal(found.T_metric_own.rotation, np.eye(3))
    assert found.T_metric_own.scale == pytest.approx(UNIT, rel=1e-4)


def test_a_track_of_another_path_is_refused(tmp_path: Path) -> None:
    cameras, truth = round_walk()
    file = tmp_path / "a.txt"
    other = np.random.default_rng(1).normal(0, 20, truth.shape)
    file.write_text("".join(f"{c.timestamp} {x} {y} {z}\n" for c, (x, y, z) in zip(cameras, other, strict=True)))
    with pytest.raises(InputError, match="does not fit"):
        scale_by_track(cameras, UP, GpsTrack(read_positions(file)), "track:a.txt")
    file.write_text("".join(f"{n} 1 2 3\n" for n in range(100)))
    with pytest.raises(InputError, match=r"does not (move|fit)"):
        scale_by_track(cameras, UP, GpsTrack(read_positions(file)), "track:a.txt")


def test_local_coordinates_are_those_of_the_ellipsoid() -> None:
    # A minute of latitude at 45 degrees is 1,852.2 m, of longitude 1,314.1 m (tables of the ellipsoid WGS 84).
    degrees = np.array([[45.0, 7.0], [45 + 1 / 60, 7.0], [45.0, 7 + 1 / 60], [45.0, 7.0]])
    metres, origin = east_north_up(degrees, np.array([100.0, 100.0, 100.0, 130.0]))
    assert metres[1] == pytest.approx([0, 1852.2, -0.27], abs=0.3)
    assert metres[2] == pytest.approx([1314.1, 0.13, -0.13], abs=0.3)
    assert metres[3] == pytest.approx([0, 0, 30], abs=1e-6) and origin == (45.0, 7.0, 100.0)


def test_sources_of_scale_are_parsed_or_refused(tmp_path: Path) -> None:
    assert parse_scale_source("marker:0.16")[0] == Marker(0.16)
    assert parse_scale_source("frames:12,240,1.85")[0] == Distance(12, 240, 1.85)
    assert parse_scale_source("height:1.6")[0] == Height(1.6)
    assert parse_scale_source("exif")[0] == Photographs()
    for text in (
        "",
        "marker",
        "marker:0",
        "marker:-1",
        "marker:a",
        "marker:1,2",
        "frames:1,1,2",
        "frames:1,2",
        "track:",
    ):
        with pytest.raises(ConfigError, match="--scale-from"):
            parse_scale_source(text)
    (tmp_path / "junk.gpx").write_text("<gpx><trk>")
    (tmp_path / "bomb.gpx").write_text('<!DOCTYPE g [<!ENTITY a "b">]><gpx>&a;</gpx>')
    (tmp_path / "none.csv").write_text("a,b\n1,2\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "words.csv").write_text("time,lat,lon\nx,y,z\nu,v,w\nk,l,m\n")
    (tmp_path / "lines.csv").write_text('a,"b\nc",d\n1,2,3\n')
    (tmp_path / "long.csv").write_text("time,x,y,z\n" + "1" * 200_000 + ",2,3,4\n")
    for name in ("junk.gpx", "bomb.gpx", "none.csv", "empty", "words.csv", "long.csv", "lines.csv", "not there", "."):
        with pytest.raises(InputError, match="--scale-from") as raised:
            parse_scale_source(f"track:{tmp_path / name}")
        assert "\n" not in str(raised.value)


def test_points_of_weight_zero_do_not_count() -> None:
    random = np.random.default_rng(0)
    points, weights = random.normal(size=(20, 3)), np.r_[np.ones(15), np.zeros(5)]
    change = Similarity(2.0, HEADING, np.array([1.0, 2, 3]))
    target = change.apply(points)
    target[15:] += 100
    from stream_recon.app.core.transforms import align

    found = align(points, target, weights)
    assert found.scale == pytest.approx(2.0) and np.allclose(found.rotation, HEADING)
