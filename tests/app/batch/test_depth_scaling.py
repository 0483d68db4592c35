import zipfile
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.batch.depth_scaling import DepthScale
from stream_recon.app.output.depth import FLOAT16_MAX, write_depth
from tests.app.boxroom import room_result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "depth").mkdir()
    write_depth(tmp_path, room_result(3))
    return tmp_path / "depth" / "000003.npz"


def scaled(file: Path, scale: float) -> Path:
    content = bytearray(file.read_bytes())
    DepthScale(scale).apply(content)
    target = file.with_name("scaled.npz")
    target.write_bytes(content)
    return target


@pytest.mark.parametrize("scale", [1.0, 0.37, 2.9, 1e6])
def test_only_the_depth_changes_and_rounds_as_if_worked_out(file: Path, scale: float) -> None:
    target = scaled(file, scale)
    with zipfile.ZipFile(target) as archive:
        assert archive.testzip() is None, "every checksum is right"
    with np.load(file) as before, np.load(target) as after:
        assert before.files == after.files
        for name in set(before.files) - {"depth"}:
            np.testing.assert_array_equal(before[name], after[name])
        expected = np.clip(before["depth"].astype(np.float32) * np.float32(scale), 0, FLOAT16_MAX)
        assert after["depth"].dtype == np.float16
        np.testing.assert_array_equal(after["depth"], expected.astype(np.float16))


def test_a_scale_of_one_changes_no_byte(file: Path) -> None:
    assert scaled(file, 1.0).read_bytes() == file.read_bytes()


def test_damage_and_files_of_others_are_refused(file: Path) -> None:
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[1000] ^= 1
    np.savez_compressed(file, depth=np.ones((4, 4), np.float16))
    compressed = file.read_bytes()
    np.savez(file, depth=np.ones((4, 4), np.float32))
    single = file.read_bytes()
    for content in (whole[:5000], bytes(flipped), compressed, single, b""):
        with pytest.raises((ValueError, KeyError, zipfile.BadZipFile)):
            DepthScale(2.0).apply(bytearray(content))
