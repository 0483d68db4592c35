"""How much of a run stays on the disk, and that poses and points stay whatever goes."""

from pathlib import Path

import numpy as np
import pytest
from plyfile import PlyData

from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.result.cloud import BYTES_PER_FRAME
from stream_recon.app.result.disk_limit import DiskLimit, bytes_per_frame
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.errors import ConfigError, OutputError
from stream_recon.configs.schema import parse_size
from tests.app.fake_engine import fake_result, frames, pose_at, prepared, run_info, trajectory_of

COUNT = 30


def write(
    folder: Path, limit: DiskLimit | None, revision: Revision | None = None, count: int = COUNT, finish: bool = True
) -> ResultWriter:
    writer = ResultWriter(folder, run_info(), limit=limit)
    for frame in frames(count):
        writer.add(fake_result(prepared(frame)))
    if revision is not None:
        writer.revise(revision)
    if finish:
        writer.finish(RunSummary(interrupted=False))
    else:
        writer.close()
    return writer


def kept(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in (folder / "depth").glob("*.npz"))


@pytest.mark.parametrize(
    ("keep", "expected"), [("all", range(COUNT)), ("keyframes", range(0, COUNT, 3)), ("none", range(0))]
)
def test_which_depth_is_kept(tmp_path: Path, keep: str, expected: range) -> None:
    write(tmp_path / "all", None)
    write(tmp_path / "out", DiskLimit(keep))  # type: ignore[arg-type]
    assert kept(tmp_path / "out") == list(expected)
    result = read_result(tmp_path / "out")
    assert len(result) == COUNT and result.run["frames"]["without_depth"] == COUNT - len(expected)
    for name in ("trajectory.txt", "cameras.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "all" / name).read_bytes()
    said: list[OutputError] = []
    assert [r.index for r in result.readable(said.append)] == list(expected) and said == []


def test_the_oldest_go_first_and_keyframes_last(tmp_path: Path) -> None:
    # As large as while the run goes on: at its end, points are left out.
    write(tmp_path / "all", None, finish=False)
    sizes = {path: path.stat().st_size for path in (tmp_path / "all").rglob("*") if path.is_file()}
    depth = sum(size for path, size in sizes.items() if path.suffix == ".npz")
    others = sum(size for path, size in sizes.items() if path.name in ("points.ply", "cameras.json", "trajectory.txt"))
    others += COUNT * BYTES_PER_FRAME
    write(tmp_path / "half", DiskLimit("all", others + depth // 2))
    left = kept(tmp_path / "half")
    assert 12 <= len(left) <= 15 and set(range(0, COUNT, 3)) <= set(left), "all keyframes"
    assert [index for index in left if index % 3] == [index for index in range(COUNT) if index % 3][-(len(left) - 10) :]
    write(tmp_path / "little", DiskLimit("all", others + depth // 6))
    left = kept(tmp_path / "little")
    assert left == list(range(0, COUNT, 3))[-len(left) :] and 3 <= len(left) <= 5
    total = sum(path.stat().st_size for path in (tmp_path / "little").rglob("*") if path.name != "run.json")
    assert total <= others + depth // 6 + 2 * 4096 * 10


def test_a_run_that_is_gone_on_with_counts_what_was_there(tmp_path: Path) -> None:
    write(tmp_path / "all", None)
    depth = sum(path.stat().st_size for path in (tmp_path / "all" / "depth").iterdir())
    first = ResultWriter(tmp_path / "out", run_info())
    for frame in frames(COUNT // 2):
        first.add(fake_result(prepared(frame)))
    first.checkpoint(RunSummary())
    first.close()
    unfinished = read_partial_result(tmp_path / "out")
    others = sum((tmp_path / "all" / name).stat().st_size for name in ("points.ply", "cameras.json", "trajectory.txt"))
    most = others + COUNT * BYTES_PER_FRAME + depth // 2
    again = ResultWriter(tmp_path / "out", run_info(), resume=unfinished, limit=DiskLimit("all", most))
    for frame in frames(COUNT)[COUNT // 2 :]:
        again.add(fake_result(prepared(frame)))
    again.finish(RunSummary(interrupted=False))
    left = sum(path.stat().st_size for path in (tmp_path / "out" / "depth").iterdir())
    assert depth // 3 < left <= depth // 2 and len(read_result(tmp_path / "out")) == COUNT


def test_a_bound_below_poses_and_points_ends_the_run_in_words(tmp_path: Path) -> None:
    write(tmp_path / "all", None)
    others = sum((tmp_path / "all" / name).stat().st_size for name in ("points.ply", "cameras.json", "trajectory.txt"))
    others += COUNT * BYTES_PER_FRAME
    with pytest.raises(OutputError, match="has reached --max-disk by poses and points alone"):
        write(tmp_path / "out", DiskLimit("all", others - 3000))
    assert len(read_result(tmp_path / "out")) > 10


def test_revisions_carry_points_along_whose_depth_is_gone(tmp_path: Path) -> None:
    turned = np.eye(4)
    turned[:3, :3], turned[:3, 3] = [[0, -1, 0], [1, 0, 0], [0, 0, 1]], (0.3, -0.2, 0.5)
    revision = Revision(tuple(FrameRevision(n, turned @ pose_at(n), 1.0) for n in range(COUNT)))
    clouds = []
    for name, limit in (("all", None), ("out", DiskLimit("none"))):
        write(tmp_path / name, limit, revision)
        vertices = PlyData.read(str(tmp_path / name / "points.ply"))["vertex"]
        clouds.append(np.stack([vertices[axis] for axis in "xyz"], axis=1))
    np.testing.assert_allclose(trajectory_of(tmp_path / "out"), trajectory_of(tmp_path / "all"))
    np.testing.assert_allclose(clouds[0].mean(axis=0), clouds[1].mean(axis=0), atol=0.05)
    np.testing.assert_allclose(clouds[0].std(axis=0), clouds[1].std(axis=0), atol=0.05)


def test_a_thinned_result_is_not_gone_on_with(tmp_path: Path) -> None:
    writer = ResultWriter(tmp_path, run_info(), limit=DiskLimit("keyframes"))
    for frame in frames(6):
        writer.add(fake_result(prepared(frame)))
    writer.checkpoint(RunSummary())
    writer.close()
    with pytest.raises(OutputError, match="its older depth files were not kept"):
        read_partial_result(tmp_path)


def test_what_is_told_beforehand_is_near_the_truth(tmp_path: Path) -> None:
    from stream_recon.app.result.depth import write_depth

    noise = np.random.default_rng(0)
    result = fake_result(prepared(frames(1)[0]))
    from dataclasses import replace

    smooth = np.repeat(np.repeat(noise.integers(0, 255, (21, 28, 3), dtype=np.uint8), 8, 0), 8, 1)
    depth = noise.uniform(1, 2, (168, 224)).astype(np.float32)
    (tmp_path / "depth").mkdir()
    write_depth(tmp_path, replace(result, depth=depth, confidence=depth, rgb=smooth))
    size = (tmp_path / "depth" / "000000.npz").stat().st_size
    assert bytes_per_frame(168 * 224, "all") == pytest.approx(size + 1300, rel=0.25)


@pytest.mark.parametrize(("text", "size"), [("20GB", 20 * 10**9), (" 1.5 gib", 3 * 2**29), ("500M", 5 * 10**8)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, "--max-disk") == size


@pytest.mark.parametrize("text", ["", "20", "GB", "-1GB", "9" * 400 + "GB", "nanGB", "1e3GB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--max-disk must be a size"):
        parse_size(text, "--max-disk")
