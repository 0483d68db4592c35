"""Tables of true poses: columns by their header, units, empty cells, and what is refused by its name."""

from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.datasets.trajectories import COLUMNS, TimedPoses, read_euroc_trajectory, read_trajectory
from stream_recon.configs.errors import InputError
from tests.app.datasets.folders import camera_path, write_lines
from tests.mutations import of_table, silently_other

PATH = camera_path(5)
TIMES = [1305031102.175 + 0.1 * i for i in range(5)]
NAMES = dict(zip(COLUMNS, ("timestamp", "tx", "ty", "tz", "qx", "qy", "qz", "qw"), strict=True))


def cells(order: tuple[str, ...] = COLUMNS, scale: float = 1.0, metres: float = 1.0) -> list[list[str]]:
    rows = [
        dict(zip(COLUMNS, [t * scale, *(v * metres for v in p.position), *p.xyzw], strict=True))
        for t, p in zip(TIMES, PATH, strict=True)
    ]
    return [[repr(float(row[name])) if name in row else "5" for name in order] for row in rows]


def assert_read(found: TimedPoses) -> None:
    np.testing.assert_allclose(found.times, TIMES, atol=1e-6)
    np.testing.assert_allclose(found.poses, [pose.matrix for pose in PATH], atol=1e-6)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("separator", [" ", ",", "\t", ", ", ";"])
def test_columns_in_any_order_are_found_by_their_header(tmp_path: Path, seed: int, separator: str) -> None:
    draw = np.random.default_rng(seed)
    order = tuple(str(name) for name in draw.permutation([*COLUMNS, "vx", "error"][: 8 + seed % 3]))
    header = ("# " if seed % 2 else "") + separator.join(NAMES.get(name, name) for name in order)
    rows = [separator.join(row) for row in cells(order)]
    assert_read(read_trajectory(write_lines(tmp_path / "a.csv", header, *rows)))


@pytest.mark.parametrize(
    "names",
    [
        "time,x,y,z,qx,qy,qz,qw",
        "timestamp [s],p_RS_R_x [m],p_RS_R_y [m],p_RS_R_z [m],q_RS_x [],q_RS_y [],q_RS_z [],q_RS_w []",
        "sec,pos_x,pos_y,pos_z,quat_x,quat_y,quat_z,quat_w",
        "%time,field.pose.pose.position.x,field.pose.pose.position.y,field.pose.pose.position.z,"
        "field.pose.pose.orientation.x,field.pose.pose.orientation.y,field.pose.pose.orientation.z,"
        "field.pose.pose.orientation.w",
        "# Format: timestamp, tx, ty, tz, qx, qy, qz, qw",
    ],
)
def test_names_of_other_programs_are_understood(tmp_path: Path, names: str) -> None:
    assert_read(read_trajectory(write_lines(tmp_path / "a.csv", names, *map(",".join, cells()))))


def test_two_columns_of_the_same_times_are_one(tmp_path: Path) -> None:
    rows = [[f"{1e9 * float(row[0]) + 2e6:.0f}", *row] for row in cells()]
    header = "%time,field.header.stamp,x,y,z,qx,qy,qz,qw"
    found = read_trajectory(write_lines(tmp_path / "a.csv", header, *map(",".join, rows)))
    np.testing.assert_allclose(found.times, np.add(TIMES, 0.002), atol=1e-6)


@pytest.mark.parametrize(("unit", "scale"), [("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
def test_times_of_other_units_are_seconds(tmp_path: Path, unit: str, scale: float) -> None:
    rows = [" ".join(row) for row in cells(scale=scale)]
    assert_read(read_trajectory(write_lines(tmp_path / "a.txt", *rows)))
    named = [f"timestamp [{unit}],tx [mm],ty [mm],tz [mm],qx,qy,qz,qw", *map(",".join, cells(scale=scale, metres=1e3))]
    assert_read(read_trajectory(write_lines(tmp_path / "b.txt", *named)))


def test_a_header_counts_in_files_of_known_programs(tmp_path: Path) -> None:
    order = ("t", "x", "y", "z", "qx", "qy", "qz", "qw")
    header = "#timestamp [ns], p_x [m], p_y [m], p_z [m], q_x [], q_y [], q_z [], q_w []"
    rows = [",".join(row) for row in cells(order, 1e9)]
    assert_read(read_euroc_trajectory(write_lines(tmp_path / "data.csv", header, *rows)))


def test_an_empty_cell_is_a_lost_frame_and_moves_no_other(tmp_path: Path) -> None:
    rows = cells()
    rows[2][3] = ""
    found = read_trajectory(write_lines(tmp_path / "a.csv", *map(",".join, rows)))
    assert len(found.times) == 4
    np.testing.assert_allclose(found.poses[2], PATH[3].matrix, atol=1e-6)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["time,x,y,z,roll,pitch,yaw", "1,2,3,4,0,0,0"], "names no column for qx, qy, qz, qw"),
        (["frame,x,y,z,qx,qy,qz,qw", "1,2,3,4,0,0,0,1"], "names no column for t"),
        (["time,x [parsec],y,z,qx,qy,qz,qw", "1,2,3,4,0,0,0,1"], "'parsec'"),
        (["time,x,y,z,tx,qx,qy,qz,qw", "1,2,3,4,5,0,0,0,1"], "more than one column for x"),
        (["time [ticks],x,y,z,qx,qy,qz,qw", "1,2,3,4,0,0,0,1"], "'ticks'"),
        (["t,timestamp,x,y,z,qx,qy,qz,qw", "0,5,1,2,3,0,0,0,1"], "columns 't' and 'timestamp' are times and differ"),
        (["stamp.sec,stamp.nanosec,x,y,z,qx,qy,qz,qw", "9,500000000,1,2,3,0,0,0,1"], "'stamp.sec' and 'stamp.nanosec'"),
        (["1520530308199447626,1,2,3,1,0,0,0"], "nanoseconds and commas, as EuRoC's"),
        (["1 0.1 0.2 0.3 0 0 0 1 7"], "line 1: 9 numbers, more than 8"),
        (["1 5 5 5 0 0 0 1", "2 5 5 5 1 0 0 0", "3 5 5 5 0.9 0.9 0 1"], "length 1.62, others of 1"),
        (["1 0.1 0.2 0.3 0 0 0 one"], "not a number"),
    ],
)
def test_what_is_not_understood_is_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        read_trajectory(write_lines(tmp_path / "a.txt", *lines))
    assert "a.txt" in str(raised.value) and "\n" not in str(raised.value)


def test_no_change_of_a_column_is_read_as_something_else(tmp_path: Path) -> None:
    def read(table: list[list[str]]) -> tuple[list[list[float]], list[str]]:
        found = read_trajectory(write_lines(tmp_path / "a.csv", *map(",".join, table)))
        return [[time, *pose.ravel()] for time, pose in zip(found.times, found.poses, strict=True)], []

    mutants = list(of_table(COLUMNS, cells()))
    expected = read([list(COLUMNS), *cells()])[0]
    assert silently_other(read, mutants, expected, InputError) == []


@pytest.mark.parametrize("column", [1, 6])
def test_two_poses_of_one_time_are_refused_and_equal_ones_count_once(tmp_path: Path, column: int) -> None:
    rows = cells()
    assert_read(read_trajectory(write_lines(tmp_path / "a.txt", *map(" ".join, [*rows, rows[2]]))))
    other = [*rows[2][:column], "0.25", *rows[2][column + 1 :]]
    lines = [" ".join(row) for row in (*rows, other)]
    with pytest.raises(InputError, match=r"a\.txt: timestamp 1305031102\.375000 has different poses"):
        read_trajectory(write_lines(tmp_path / "a.txt", *lines))


def test_a_first_quaternion_in_another_order_is_told_where_it_is_plain(tmp_path: Path) -> None:
    rows = ["0.0 0 0 0 1 0 0 0", "0.1 0.2 0 0 0.999 0.04 0 0"]
    with pytest.raises(InputError, match=r"a\.txt begins at the origin by half a turn: name its columns"):
        read_trajectory(write_lines(tmp_path / "a.txt", *rows))
    found = read_trajectory(write_lines(tmp_path / "a.txt", "# timestamp tx ty tz qw qx qy qz", *rows))
    assert np.array_equal(found.poses[0], np.eye(4))
    with pytest.raises(InputError, match="half a turn"):
        read_euroc_trajectory(write_lines(tmp_path / "b.csv", "1000000000,0,0,0,0,0,0,1"))


def test_two_trajectories_in_one_file_are_refused_and_rows_in_any_order_are_read(tmp_path: Path) -> None:
    assert_read(read_trajectory(write_lines(tmp_path / "a.txt", *map(" ".join, cells()[::-1]))))
    first = [f"{0.1 * i} {i} 0 0 0 0 0 1" for i in range(6)]
    second = [f"{0.1 * i + 0.05} {50 - i} 9 0 0 0 0 1" for i in range(6)]
    with pytest.raises(InputError, match="two trajectories"):
        read_trajectory(write_lines(tmp_path / "a.txt", *first, *second))
