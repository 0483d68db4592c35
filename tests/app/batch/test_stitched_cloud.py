from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from plyfile import PlyData

from stream_recon.app.batch.stitched_files import StitchedCloud
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.files import PlyFile, in_order
from stream_recon.configs.errors import OutputError
from tests.app.batch.fakes import random_rotation

VOXEL = 0.05
COUNT = 3000


def chunk_cloud(folder: Path, seed: int) -> NDArray[np.float32]:
    """Points of a chunk, [N, 3], written to its file; the colours identify each point."""
    noise = np.random.default_rng(seed)
    xyz = noise.uniform(-1, 1, (COUNT, 3)).astype(np.float32)
    folder.mkdir()
    ply = PlyFile(folder / POINTS_NAME)
    ply.append(xyz, colours(seed))
    ply.close()
    return xyz


def colours(seed: int) -> NDArray[np.uint8]:
    number = np.arange(COUNT)
    return np.stack([np.full(COUNT, seed), number // 256, number % 256], axis=1).astype(np.uint8)


def stitch_three(base: Path, block_points: int) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Join chunks of three worlds; where their points belong [N, 3], and their colours."""
    noise = np.random.default_rng(9)
    points = []
    with closing(StitchedCloud(base, VOXEL, block_points)) as cloud:
        for seed in range(3):
            transform = Similarity(0.5 + 0.4 * seed, random_rotation(noise), noise.normal(size=3))
            points.append(transform.apply(chunk_cloud(base / str(seed), seed).astype(np.float64)))
            cloud.add(base / str(seed), transform)
    return np.concatenate(points), np.concatenate([colours(seed) for seed in range(3)])


@pytest.mark.parametrize("block", [100, 10**6])
def test_the_first_point_of_each_voxel_is_moved_and_keeps_its_colour(tmp_path: Path, block: int) -> None:
    points, rgb = stitch_three(tmp_path, block)
    vertices = PlyData.read(tmp_path / POINTS_NAME)["vertex"]
    xyz = np.stack([vertices[axis] for axis in "xyz"], axis=1)
    found = np.stack([vertices[channel] for channel in ("red", "green", "blue")], axis=1)
    number = COUNT * found[:, 0].astype(int) + 256 * found[:, 1].astype(int) + found[:, 2]
    assert np.all(np.diff(number) > 0), "the chunks' order"
    np.testing.assert_allclose(xyz, points[number], atol=1e-5)
    assert np.array_equal(found, rgb[number])
    _, first = np.unique(np.floor(points / VOXEL).astype(int), axis=0, return_index=True)
    # Points next to a voxel's wall may fall to either side of it in fp32; a voxel may be forgotten for another.
    assert len(np.setxor1d(number, first)) < 0.002 * len(first)


def test_a_full_disk_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = PlyFile.append_vertices

    def refuse(ply: PlyFile, vertices: NDArray[np.void]) -> None:
        if ply.count > 500:
            raise OutputError("no space left on device")
        append(ply, vertices)

    monkeypatch.setattr(PlyFile, "append_vertices", refuse)
    with pytest.raises(OutputError, match="no space left"):
        stitch_three(tmp_path, 100)


def test_work_is_handed_on_in_order_and_not_all_at_once() -> None:
    taken = 0

    def arguments() -> Iterator[tuple[int]]:
        nonlocal taken
        for number in range(50):
            taken += 1
            yield (number,)

    with ThreadPoolExecutor(4) as pool:
        results = in_order(pool, lambda number: number * number, arguments(), ahead=5)
        assert next(results) == 0 and taken == 6
        assert list(results) == [number * number for number in range(1, 50)]
