import numpy as np
import pytest

from stream_recon.app.core.voxels import VoxelTable, first_of_each, voxel_first


def test_voxel_table_keeps_the_first_point_of_each_voxel() -> None:
    table = VoxelTable(0.1)
    points = np.array([[0.01, 0, 0], [0.09, 0, 0], [-0.01, 0, 0], [0.11, 0, 0]], np.float32)
    assert table.take_new(points).tolist() == [0, 2, 3]
    assert table.take_new(points + np.float32(0.005)).tolist() == []
    assert table.take_new(np.array([[5, 5, 5], [0.05, 0.05, 0.05]], np.float32)).tolist() == [0]
    assert table.take_new(np.empty((0, 3), np.float32)).tolist() == []


def test_voxel_table_does_not_grow_and_forgets_by_its_rule() -> None:
    table = VoxelTable(1.0, bits=10)
    line = np.arange(4096, dtype=np.float32)[:, None] + np.array([0.5, 0.5, 0.5], np.float32)
    assert len(table.take_new(line)) == 4096, "all voxels are new"
    again = len(table.take_new(line))
    assert 3072 <= again < 4096, "at most 1,024 voxels are remembered"
    roomy = VoxelTable(1.0, bits=20)
    roomy.take_new(line)
    assert len(roomy.take_new(line)) < 0.02 * 4096


@pytest.mark.parametrize("values", [1, 40, 3_000, 10**15])
def test_first_of_each_value(values: int) -> None:
    noise = np.random.default_rng(values)
    for count in (0, 1, 2, 5_000):
        keys = noise.integers(0, values, count).astype(np.uint64)
        assert first_of_each(keys).tolist() == sorted(np.unique(keys, return_index=True)[1].tolist())


def test_points_are_the_same_taken_at_once_or_by_voxels_worked_out_before() -> None:
    noise = np.random.default_rng(0)
    one, other = VoxelTable(0.5), VoxelTable(0.5)
    for _ in range(3):
        points = noise.normal(size=(500, 3)).astype(np.float32)
        keys = other.keys(points)
        first = first_of_each(keys)
        assert one.take_new(points).tolist() == first[other.take_new_keys(keys[first])].tolist()


def test_one_point_a_voxel_and_it_is_the_first() -> None:
    xyz = np.random.default_rng(2).uniform(-1, 1, (5000, 3)).astype(np.float32)
    kept = voxel_first(xyz, 0.1)
    cells = [tuple(c) for c in np.floor(xyz.astype(np.float64) / 0.1).astype(int)]
    first_seen = {cell: i for i, cell in reversed(list(enumerate(cells)))}
    assert sorted(first_seen.values()) == kept.tolist()


def test_voxels_survive_huge_extents() -> None:
    xyz = np.array([[0, 0, 0], [1e9, -1e9, 1e9], [0.001, 0.001, 0.001], [1e9, 1e9, 0]], np.float64)
    assert voxel_first(xyz, 0.01).tolist() == [0, 1, 3]
    assert voxel_first(np.empty((0, 3), np.float32), 0.01).shape == (0,)
