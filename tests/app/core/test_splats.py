"""Files of Gaussian splats, read back by other means than they were written by."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.splats import COEFFICIENTS, SH_0, Splats, read_splats, splats_bytes
from stream_recon.app.core.spz import spz_bytes
from stream_recon.configs.errors import OutputError


def some_splats(count: int = 50, degree: int = 2) -> Splats:
    rng = np.random.default_rng(3)
    return Splats(
        rng.normal(0, 5, (count, 3)).astype(np.float32),
        rng.uniform(-6, -1, (count, 3)).astype(np.float32),
        rng.normal(size=(count, 4)).astype(np.float32),
        rng.normal(0, 2, count).astype(np.float32),
        rng.uniform(-0.8, 0.8, (count, COEFFICIENTS[degree], 3)).astype(np.float32),
    )


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_a_file_is_read_by_an_independent_reader(tmp_path: Path, degree: int) -> None:
    plyfile = pytest.importorskip("plyfile")
    splats = some_splats(degree=degree)
    (tmp_path / "s.ply").write_bytes(splats_bytes(splats))
    vertex = plyfile.PlyData.read(tmp_path / "s.ply")["vertex"]
    assert vertex.count == 50
    assert np.array_equal(np.stack([vertex[axis] for axis in "xyz"], 1), splats.means)
    assert np.array_equal(vertex["opacity"], splats.opacities)
    assert np.array_equal(vertex["f_dc_1"], splats.sh[:, 0, 1])
    rest = COEFFICIENTS[degree] - 1
    if rest:
        # All of red, then all of green, then all of blue.
        assert np.array_equal(vertex[f"f_rest_{rest}"], splats.sh[:, 1, 1])
        assert np.array_equal(vertex[f"f_rest_{3 * rest - 1}"], splats.sh[:, rest, 2])
    rotation = np.stack([vertex[f"rot_{k}"] for k in range(4)], 1)
    assert np.allclose(rotation, splats.quats / np.linalg.norm(splats.quats, axis=1, keepdims=True), atol=1e-6)
    again = read_splats(tmp_path / "s.ply")
    assert np.array_equal(again.sh, splats.sh) and np.array_equal(again.scales, splats.scales)


def test_files_that_have_no_splats_are_refused(tmp_path: Path) -> None:
    good = splats_bytes(some_splats())
    others = {
        b"float opacity": b"float density",
        b"vertex 50": b"vertex " + b"9" * 30,
        b"binary_": b"",
        b"vertex": b"face",
        b"float nx": b"float x",
    }
    for content in (b"", b"ply\n", good[:-7], good[:400], *(good.replace(*words) for words in others.items())):
        (tmp_path / "s.ply").write_bytes(content)
        with pytest.raises(OutputError, match="no Gaussian splats"):
            read_splats(tmp_path / "s.ply")
    with pytest.raises(OutputError):
        read_splats(tmp_path / "missing.ply")
    broken = some_splats()
    broken.means[3] = np.nan
    (tmp_path / "s.ply").write_bytes(splats_bytes(broken))
    with pytest.raises(OutputError, match="not finite"):
        read_splats(tmp_path / "s.ply")


def test_compressed_files_hold_the_same_by_the_description_of_their_format() -> None:
    splats = some_splats()
    content = gzip.decompress(spz_bytes(splats))
    magic, version, count, degree, bits, flags, reserved = struct.unpack_from("<IIIBBBB", content)
    assert (magic, version, count, degree, flags, reserved) == (0x5053474E, 2, 50, 2, 0, 0)
    assert len(content) == 16 + count * (9 + 1 + 3 + 3 + 3 + 24)
    at = 16

    def values(each: int) -> np.ndarray:
        nonlocal at
        found = np.frombuffer(content, np.uint8, count * each, at).reshape(count, each).astype(np.int64)
        at += count * each
        return found

    raw = values(9).reshape(count, 3, 3)
    fixed = raw[..., 0] + (raw[..., 1] << 8) + (raw[..., 2] << 16)
    fixed = np.where(fixed >= 1 << 23, fixed - (1 << 24), fixed)
    # The format's axes: x right, y up, z backward.
    assert np.abs(fixed / (1 << bits) * (1, -1, -1) - splats.means).max() <= 0.6 / (1 << bits)
    assert np.abs(values(1)[:, 0] / 255 - splats.alpha).max() < 0.003
    assert np.abs((values(3) / 255 - 0.5) / 0.15 - splats.sh[:, 0]).max() < 0.02
    assert np.abs(values(3) / 16 - 10 - splats.scales).max() < 0.04
    xyz = (values(3) / 127.5 - 1) * (1, -1, -1)
    w = np.sqrt(np.maximum(1 - np.square(xyz).sum(1), 0))
    unit = splats.quats / np.linalg.norm(splats.quats, axis=1, keepdims=True)
    assert np.abs(np.concatenate([w[:, None], xyz], 1) * unit).sum(1).min() > 0.9
    assert np.abs((np.concatenate([w[:, None], xyz], 1) * unit).sum(1)).min() > 0.99
    harmonics = (values(24).reshape(count, 8, 3) - 128) / 128
    assert at == len(content)
    # y, z, x of degree 1, and xy, yz, zz, xz, xx - yy of degree 2, as y and z change their signs.
    signs = np.array([-1, -1, 1, -1, 1, 1, -1, 1])[:, None]
    assert np.abs(harmonics * signs - splats.sh[:, 1:]).max() < 0.08


def test_far_splats_fit_into_a_compressed_file() -> None:
    """With as many bits after the point as there is room for."""
    splats = some_splats()
    for far in (30_000, -30_000, 2047.9, -2048.1, 1 << 22, -1 << 23, 0.5):
        splats.means[0] = far
        bits = gzip.decompress(spz_bytes(splats))[13]
        assert abs(far) * (1 << bits) <= (1 << 23) - 1 or bits == 0
        assert abs(far) * (2 << bits) > (1 << 23) - 1 or bits == 12
    assert gzip.decompress(spz_bytes(splats, antialiased=True))[14] == 1


def test_a_splat_has_the_shape_of_its_sizes_and_rotation() -> None:
    turned = np.array([[np.cos(np.pi / 4), 0, 0, np.sin(np.pi / 4)]], np.float32) * 3  # 90 degrees about z
    scales = np.log(np.array([[3, 2, 1]], np.float32))
    sh = np.full((1, 1, 3), 0.25 / SH_0, np.float32)
    splat = Splats(np.zeros((1, 3), np.float32), scales, turned, np.zeros(1, np.float32), sh)
    assert np.allclose(splat.covariances[0], np.diag([4, 9, 1]), atol=1e-5)
    assert np.allclose(splat.rgb, 0.75) and np.allclose(splat.alpha, 0.5)
    moved = splat.scaled(np.array([1, 2, 3]), 10)
    assert np.allclose(moved.means, [[1, 2, 3]]) and np.allclose(moved.covariances, 100 * splat.covariances)


def test_the_largest_and_most_opaque_are_kept() -> None:
    splats = some_splats()
    splats.opacities[:] = -9
    splats.opacities[[4, 7]] = 5
    splats.scales[[4, 7]] = 0
    assert np.array_equal(splats.most_visible(2).means, splats.means[[4, 7]])
    assert splats.most_visible(100) is splats
