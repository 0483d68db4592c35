"""Files of positions: units, decimal signs, dates and encodings are applied or refused."""

from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.metric_scale.gps_tracks import Positions, read_positions
from stream_recon.app.metric_scale.scale_source import parse_scale_source
from stream_recon.configs.errors import InputError
from tests.mutations import Mutant, of_lines, of_table, silently_other

PLACES = np.array([[0.0, 0, 0], [10, 2, 1], [20, 6, 3], [30, 12, 2], [41, 15, 4]])
TIMES = np.array([0.0, 0.2, 0.4, 0.6, 0.8])
LATITUDES = [47.0 + 1e-4 * n for n in range(5)]


def read(tmp_path: Path, head: str, rows: list[str], name: str = "track.csv") -> Positions:
    (tmp_path / name).write_text("\n".join([head, *rows]) + "\n")
    return read_positions(tmp_path / name)


def cartesian(time: float = 1.0, length: float = 1.0) -> list[str]:
    return [
        f"{t * time:.6f},{x * length:.6f},{y * length:.6f},{z * length:.6f}"
        for t, (x, y, z) in zip(TIMES, PLACES, strict=True)
    ]


@pytest.mark.parametrize(
    ("head", "time", "length"),
    [
        ("time,x,y,z", 1, 1),
        ("time(s),x(m),y(m),z(m)", 1, 1),
        ("time(millisecond),x(ft),y(ft),z(ft)", 1e3, 1 / 0.3048),
        ("Time [ms],East [feet],North [feet],Up [feet]", 1e3, 1 / 0.3048),
        ("timestamp_us,x_m,y_m,z_m", 1e6, 1),
        ("#timestamp [ns], p_x [m], p_y [m], p_z [m]".replace("p_", ""), 1e9, 1),
        ("t (s),x (km),y (km),z (km)", 1, 1e-3),
        ("time,x,y,z\ns,ft,ft,ft", 1, 1 / 0.3048),
    ],
)
def test_units_of_all_columns_are_read(tmp_path: Path, head: str, time: float, length: float) -> None:
    found = read(tmp_path, head, cartesian(time, length))
    assert found.metres == pytest.approx(PLACES, abs=2e-3)
    assert found.times == pytest.approx(TIMES, abs=1e-6)


def test_units_may_differ_between_columns(tmp_path: Path) -> None:
    rows = [f"{1000 * t},{x / 0.3048},{y},{100 * z}" for t, (x, y, z) in zip(TIMES, PLACES, strict=True)]
    found = read(tmp_path, "time(ms),x(ft),y(m),z(cm)", rows)
    assert found.metres == pytest.approx(PLACES) and found.times == pytest.approx(TIMES)


@pytest.mark.parametrize(
    ("head", "named"),
    [
        ("time(s),x(fathoms),y(m),z(m)", r"column 'x\(fathoms\)' \(first value '0.000000'\).*'fathoms'"),
        ("time(jiffies),x,y,z", "'jiffies'"),
    ],
)
def test_unknown_units_are_refused_by_column_and_first_cell(tmp_path: Path, head: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read(tmp_path, head, cartesian())


def test_a_drone_log_in_feet_has_its_height_in_metres(tmp_path: Path) -> None:
    rows = [f"{200 * n},{47 + 1e-4 * n},8.5,{100 * n}" for n in range(5)]
    found = read(tmp_path, "time(millisecond),latitude,longitude,altitude_above_seaLevel(feet)", rows)
    assert np.ptp(found.metres[:, 2]) == pytest.approx(400 * 0.3048, abs=0.1)
    assert found.times == pytest.approx(0.2 * np.arange(5))


@pytest.mark.parametrize(("unit", "factor"), [("(rad)", np.pi / 180), ("(degE7)", 1e7), ("(deg)", 1.0)])
def test_angles_have_units(tmp_path: Path, unit: str, factor: float) -> None:
    rows = [f"{n},{(47 + 1e-4 * n) * factor:.9f},{8.5 * factor:.9f}" for n in range(5)]
    found = read(tmp_path, f"time,lat{unit},lon{unit}", rows)
    assert found.metres[4, 1] == pytest.approx(4e-4 * 111_170, abs=0.1)


def test_longitudes_go_to_360_and_zeros_are_no_fix(tmp_path: Path) -> None:
    rows = [f"{n},{47 + 1e-4 * n},{360 - 8.5}" for n in range(5)] + ["5,0.0,0.0"]
    found = read(tmp_path, "time,lat,lon", rows)
    assert len(found.metres) == 5 and found.left_out == 1
    assert found.origin is not None and found.origin[1] == pytest.approx(-8.5)


def test_decimal_commas_are_read_where_they_cannot_be_thousands(tmp_path: Path) -> None:
    rows = [row.replace(",", ";").replace(".", ",") for row in cartesian()]
    found = read(tmp_path, "time;x;y;z", rows)
    assert found.metres == pytest.approx(PLACES) and found.times == pytest.approx(TIMES)


def test_decimal_commas_between_commas_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="semicolon"):
        read(tmp_path, "time,x,y,z", [row.replace(".", ",") for row in cartesian()])
    with pytest.raises(ValueError, match="thousands"):
        read(tmp_path, "time,x,y,z", [f'{n},"{n + 1},250","{n + 2},500","1,000"' for n in range(5)])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_any_unicode_is_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "track.csv"
    path.write_bytes("\n".join(["time (µs),x,y,z", *cartesian(1e6)]).encode(encoding))
    assert read_positions(path).times == pytest.approx(TIMES)


BEGIN = datetime(2026, 5, 14, 23, 59, 58, tzinfo=UTC)


@pytest.mark.parametrize(
    "form",
    [
        "%Y-%m-%dT%H:%M:%SZ",
        "%Y-%m-%d %H:%M:%S.%f",
        "%Y/%m/%d %H:%M:%S",
        "%d.%m.%Y %H:%M:%S",
        "%m/%d/%Y %H:%M:%S",
        "%d/%m/%Y %H:%M:%S",
        "%m/%d/%Y %I:%M:%S %p",
        "%H:%M:%S",
    ],
)
def test_dates_and_times_of_day_go_on_over_midnight(tmp_path: Path, form: str) -> None:
    rows = [f"{(BEGIN + timedelta(seconds=n)).strftime(form)},{n},{n * n},0" for n in range(5)]
    found = read(tmp_path, "datetime(utc),x,y,z", rows)
    assert found.times is not None and np.diff(found.times) == pytest.approx(np.ones(4))
    assert found.metres[:, 0] == pytest.approx(np.arange(5))


def test_a_day_that_may_be_a_month_is_refused(tmp_path: Path) -> None:
    rows = [f"0{day}/0{month}/2026 10:00:00,1,{n},0" for n, (day, month) in enumerate([(1, 2), (2, 3), (3, 4)])]
    with pytest.raises(ValueError, match="day and month"):
        read(tmp_path, "time,x,y,z", rows)


def test_words_in_place_of_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"column 'latitude' \(first value '47.1N'\) has no number"):
        read(tmp_path, "time,latitude,longitude", [f"{n},47.1N,8.2E" for n in range(5)])


@pytest.mark.parametrize(("unit", "base"), [(1.0, 1.7e9), (1e3, 1.7e9), (1e6, 1.7e9), (1e9, 1.7e9)])
def test_times_of_tum_files_since_1970_may_have_any_unit(tmp_path: Path, unit: float, base: float) -> None:
    stamps = [int((base + t) * unit) if unit > 1 else base + t for t in TIMES]
    rows = [f"{t} {x} {y} {z}" for t, (x, y, z) in zip(stamps, PLACES, strict=True)]
    found = read(tmp_path, "# t x y z", rows, "a.txt")
    assert found.times is not None and found.times - found.times[0] == pytest.approx(TIMES, abs=1e-3)


def test_poses_without_times_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="12 numbers"):
        read(tmp_path, "", ["1 0 0 0 0 1 0 0 0 0 1 0"] * 5, "kitti.txt")


def test_the_path_of_a_gpx_is_not_its_waypoints(tmp_path: Path) -> None:
    point = '<{kind} lat="{lat}" lon="8"><time>2026-05-04T10:00:0{n}Z</time></{kind}>'
    track = "".join(point.format(kind="trkpt", lat=47 + 1e-4 * n, n=n) for n in range(5))
    way = "".join(point.format(kind="wpt", lat=46, n=n) for n in range(5, 8))
    (tmp_path / "a.gpx").write_text(f"<gpx>{way}<trk><trkseg>{track}<trkpt lat='47' lon='8'/></trkseg></trk></gpx>")
    found = read_positions(tmp_path / "a.gpx")
    assert len(found.metres) == 5 and found.left_out == 1
    (tmp_path / "a.kml").write_text("<kml><Document/></kml>")
    with pytest.raises(ValueError, match="no GPX, but kml"):
        read_positions(tmp_path / "a.kml")


def nmea(body: str) -> str:
    return f"${body}*{reduce(lambda a, b: a ^ b, body.encode(), 0):02X}"


def test_sentences_of_receivers_are_read(tmp_path: Path) -> None:
    lines = []
    for n in range(5):
        moment = BEGIN + timedelta(seconds=n)
        clock = moment.strftime("%H%M%S.00")
        lines.append(nmea(f"GPGGA,{clock},4706.{6000 + 60 * n:04d},N,00830.0000,W,1,08,0.9,{400 + n}.0,M,48.0,M,,"))
        lines.append(nmea(f"GPRMC,{clock},A,4706.6,N,00830.0,W,0.0,0.0,{moment.strftime('%d%m%y')},,,A"))
    lines += ["$GPGGA,junk*00", nmea("GPGGA,000003.00,,,,,0,00,,,M,,M,,")]
    found = read(tmp_path, lines[0], lines[1:], "walk.nmea")
    assert found.times is not None and np.diff(found.times) == pytest.approx(np.ones(4))
    assert found.times[0] == pytest.approx(BEGIN.timestamp())
    assert found.origin is not None and found.origin == pytest.approx((47.11, -8.5, 448.0))
    assert found.metres[4, 1] == pytest.approx(4 * 0.006 / 60 * 111_170, rel=1e-3) and found.left_out == 1


@pytest.mark.parametrize("sign", [" ", "\t", ","])
def test_a_commented_header_counts_whatever_separates_the_columns(tmp_path: Path, sign: str) -> None:
    rows = [sign.join(map(str, (z, y, t, x))) for t, (x, y, z) in zip(TIMES, PLACES, strict=True)]
    found = read(tmp_path, "# a walk", [f"# {sign.join(('z', 'y', 'time', 'x'))}", *rows])
    assert found.metres == pytest.approx(PLACES) and found.times == pytest.approx(TIMES)


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "pipe.csv")
    for name in (tmp_path / "pipe.csv", Path("/dev/zero")):
        with pytest.raises(InputError, match="not a regular file"):
            parse_scale_source(f"track:{name}")


@pytest.mark.parametrize("title", ["(" * 100_000, "abc" + "[ " * 50_000, "_" * 100_000])
def test_a_title_without_end_costs_no_time(tmp_path: Path, title: str) -> None:
    with pytest.raises(ValueError, match="no column time"):
        read(tmp_path, f"{title},x,y,z", cartesian())


POINTS = "".join(
    f'<trkpt lat="{48 + n * 1e-5}" lon="{11 + n * 2e-5}">'
    f"<ele>{500 + n}</ele><time>2026-05-01T10:00:0{n}Z</time></trkpt>"
    for n in range(6)
)
GPX = f'<gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>{POINTS}</trkseg></trk></gpx>'
TRACKS = {
    "earth.csv": ["time,lat,lon,alt", *(f"{n},{48 + n * 1e-5},{11 + n * 2e-5},{500 + n}" for n in range(6))],
    "frames.csv": ["frame,x,y,z", *(f"{n},{n * 0.5},{n * 0.1},0.5" for n in range(6))],
    "tum.txt": ["# time x y z qx qy qz qw", *(f"{n / 10} {n} {n / 2} 0 0 0 0 1" for n in range(6))],
}
MEANT = {"lat": "latitude", "lon": "longitude", "alt": "height"}
"""What is said of a column that is missing: what it is for."""


def track_mutants(name: str, lines: list[str]) -> list[Mutant[str]]:
    if name.endswith(".txt"):
        commented = (mutant for mutant in of_lines("\n".join(lines)) if "commented" in mutant.change)
        return [Mutant(m.change, (*m.names, "lines"), m.content) for m in commented]
    head, *rows = (line.split(",") for line in lines)
    return [
        Mutant(m.change, (*m.names, MEANT.get(m.names[-1], m.names[-1])), "\n".join(map(",".join, m.content)))
        for m in of_table(head, rows)
    ]


def read_track(path: Path, content: str) -> tuple[object, list[str]]:
    path.write_text(content)
    found = read_positions(path)
    clock = found.times if found.times is not None else found.frames
    said = [f"{found.without_height} without a height"] * (found.without_height > 0)
    said += [f"{found.left_out} lines were left out"] * (found.left_out > 0)
    assert clock is not None
    return (found.metres.round(3).tolist(), (clock - clock[0]).round(3).tolist(), found.world), said


@pytest.mark.parametrize("name", TRACKS)
def test_no_change_of_a_track_is_silent(tmp_path: Path, name: str) -> None:
    expected, _ = read_track(tmp_path / name, "\n".join(TRACKS[name]))
    mutants = track_mutants(name, TRACKS[name])
    assert len(mutants) > 5
    assert silently_other(lambda text: read_track(tmp_path / name, text), mutants, expected, ValueError) == []


def test_no_renamed_element_of_a_gpx_is_silent(tmp_path: Path) -> None:
    names = {"gpx": "gpx", "trkpt": "points", "ele": "height", "time": "time", "lat": "positions", "lon": "positions"}
    renamed = {tag: GPX.replace(f"<{tag}", f"<{tag}zzz").replace(f"</{tag}", f"</{tag}zzz") for tag in names}
    renamed |= {key: GPX.replace(f'{key}="', f'{key}zzz="') for key in ("lat", "lon")}
    mutants = [Mutant("renamed", (tag, names[tag]), text) for tag, text in renamed.items()]
    expected, _ = read_track(tmp_path / "a.gpx", GPX)
    assert silently_other(lambda text: read_track(tmp_path / "a.gpx", text), mutants, expected, ValueError) == []


def sentences(change: str = "", kind: str = "", at: int = 0) -> str:
    """A walk, with one word of all sentences of a kind changed."""
    lines = []
    for n in range(6):
        clock = f"1000{n:02d}.00"
        walk = {
            "GGA": f"GPGGA,{clock},4706.{6000 + 60 * n:04d},N,00830.{5000 + n:04d},W,1,08,0.9,{400 + n}.0,M,48.0,M,,",
            "RMC": f"GPRMC,{clock},A,4706.{6000 + 60 * n:04d},N,00830.{5000 + n:04d},W,0.0,0.0,140526,,,A",
        }
        for name, body in walk.items():
            words = body.split(",")
            if name == kind:
                one = words[at]
                words[at : at + 1] = {
                    **{"emptied": [""], "removed": [], "added before": ["7.5", one], "renamed": [one + "zzz"]},
                    **{"lower case": [one.lower()], "doubled": [one, one]},
                }[change]
            lines.append(nmea(",".join(words)))
    return "\n".join(lines)


def test_no_change_of_a_sentence_is_silent(tmp_path: Path) -> None:
    mutants = [
        Mutant(f"{change} word {at} of", (kind, "lines", "height"), sentences(change, kind, at))
        for kind, count in (("GGA", 15), ("RMC", 13))
        for at in range(count)
        for change in ("emptied", "removed", "added before", "renamed", "lower case", "doubled")
    ]
    expected, said = read_track(tmp_path / "a.nmea", sentences())
    assert not said
    assert silently_other(lambda text: read_track(tmp_path / "a.nmea", text), mutants, expected, ValueError) == []


def test_positions_of_no_receiver_or_of_two_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.nmea").write_text(sentences() + "\n$GPGGA,junk")
    assert read_positions(tmp_path / "a.nmea").left_out == 1
    twice = "\n".join([sentences(), *(line for line in sentences().splitlines() if "GGA" in line)])
    (tmp_path / "a.nmea").write_text(twice)
    assert read_positions(tmp_path / "a.nmea").left_out == 6
    (tmp_path / "a.nmea").write_text(
        "\n".join(nmea(line[1:-3].replace("W,1,08", "W,6,00")) for line in twice.splitlines())
    )
    with pytest.raises(ValueError, match="no position"):
        read_positions(tmp_path / "a.nmea")
