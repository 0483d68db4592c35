import numpy as np
import pytest

from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, Intrinsics
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.dense import DENSE_FOLDER, IMAGE_SIDE, DenseMap, encoded_image, read_dense
from stream_recon.configs.errors import OutputError
from tests.app.result_files import write_dense


def dense_map(index: int = 7) -> DenseMap:
    rng = np.random.default_rng(0)
    depth = rng.uniform(0.5, 3, (12, 16)).astype(np.float32)
    depth[0] = 0
    certainty = np.where(depth > 0, rng.integers(1, 4, depth.shape), 0).astype(np.uint8)
    image = np.full((48, 64, 3), (200, 100, 50), np.uint8)
    return DenseMap(index, depth, certainty, encoded_image(image), ImageTransform((64, 48), (0, 0, 64, 48), (16, 12)))


def camera(depth_scale: float) -> FrameCamera:
    result = FrameResult(
        *(7, 0.5, np.eye(4), Intrinsics(50, 50, 32, 24), np.ones((6, 8), np.float32), np.ones((6, 8), np.float32)),
        *(np.zeros((6, 8, 3), np.uint8), ImageTransform((64, 48), (0, 0, 64, 48), (8, 6)), True),
    )
    found = FrameCamera.from_result(result)
    return FrameCamera(**{**vars(found), "depth_scale": depth_scale})


def test_a_stored_map_is_read_back(tmp_path):
    written = dense_map()
    (tmp_path / DENSE_FOLDER).mkdir()
    write_dense(tmp_path, written, "ab12")

    found = read_dense(tmp_path, 7, "ab12")

    np.testing.assert_allclose(found.depth, written.depth, rtol=1e-3)
    np.testing.assert_array_equal(found.certainty, written.certainty)
    assert found.transform == written.transform


def test_a_map_of_another_refinement_is_refused(tmp_path):
    (tmp_path / DENSE_FOLDER).mkdir()
    write_dense(tmp_path, dense_map(), "ab12")

    with pytest.raises(OutputError, match="another refinement"):
        read_dense(tmp_path, 7, "cd34")


def test_a_damaged_map_is_refused(tmp_path):
    (tmp_path / DENSE_FOLDER).mkdir()
    write_dense(tmp_path, dense_map(), "ab12")
    path = tmp_path / DENSE_FOLDER / "000007.npz"
    path.write_bytes(path.read_bytes()[:-40])

    with pytest.raises(OutputError, match="damaged"):
        read_dense(tmp_path, 7, "ab12")


def test_the_result_has_the_unit_of_the_camera_and_the_size_of_the_map():
    dense = dense_map()

    result = dense.result(camera(depth_scale=2.5))

    np.testing.assert_allclose(result.depth, 2.5 * dense.depth)
    assert result.rgb.shape == (12, 16, 3)
    assert result.network_intrinsics == Intrinsics(12.5, 12.5, 8, 6)
    assert result.certainty is not None and result.certainty.max() == Certainty.CONFIRMED
    np.testing.assert_allclose(result.rgb.mean(axis=(0, 1)), (200, 100, 50), atol=4)


def test_large_images_are_reduced():
    image = DenseMap(0, *(np.zeros((1, 1)),) * 2, encoded_image(np.zeros((1200, 600, 3), np.uint8)), None).image
    assert image.shape == (IMAGE_SIDE, IMAGE_SIDE // 2, 3)
