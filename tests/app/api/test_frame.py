"""Arrays of frames by the names of other programs of the family."""

from dataclasses import replace

import numpy as np
import pytest

import stream_recon as sr
from stream_recon.app.core.types import Certainty, FrameResult
from tests.app.boxroom import room_result


def test_arrays_unproject_to_the_points_of_the_frames() -> None:
    results = [room_result(index) for index in (0, 7, 20)]
    arrays = sr.as_arrays(iter(results))
    height, width = results[0].depth.shape
    assert {name: array.shape for name, array in arrays.items()} == {
        "depth": (3, height, width, 1),
        "depth_conf": (3, height, width),
        "extrinsic": (3, 3, 4),
        "pose": (3, 3, 4),
        "intrinsic": (3, 3, 3),
        "images": (3, height, width, 3),
        "frame": (3,),
    }
    assert list(arrays.pop("frame")) == [0, 7, 20] and {array.dtype for array in arrays.values()} == {np.dtype("f4")}
    assert arrays["images"].min() >= 0 and 0.5 < arrays["images"].max() <= 1
    v, u = np.mgrid[:height, :width] + 0.5
    for number, result in enumerate(results):
        rays = np.stack([u, v, np.ones_like(u)], -1) @ np.linalg.inv(arrays["intrinsic"][number]).T
        local = rays * arrays["depth"][number]
        pose, extrinsic = arrays["pose"][number], arrays["extrinsic"][number]
        world = local @ pose[:, :3].T + pose[:, 3]
        # By the other matrix, back to the camera.
        np.testing.assert_allclose(world @ extrinsic[:, :3].T + extrinsic[:, 3], local, atol=1e-4)
        points, _ = sr.ResultFrame(result).points()
        np.testing.assert_allclose(world[result.depth > 0], points, atol=1e-4)
        np.testing.assert_array_equal(arrays["depth_conf"][number], sr.ResultFrame(result).confidence)


def dense(result: FrameResult) -> FrameResult:
    depth, rgb = (np.repeat(np.repeat(array, 2, 0), 2, 1) for array in (result.depth, result.rgb))
    size = (depth.shape[1], depth.shape[0])
    certainty = np.full(depth.shape, Certainty.CONFIRMED, np.uint8)
    transform = replace(result.transform, network_size=size)
    return replace(result, depth=depth, rgb=rgb, confidence=depth, certainty=certainty, transform=transform)


def test_frames_without_a_common_size_are_refused() -> None:
    frame = sr.ResultFrame(room_result(0))
    with pytest.raises(sr.InputError, match="not none"):
        sr.as_arrays([])
    with pytest.raises(sr.InputError, match=r"one size, not \d+x\d+ and \d+x\d+.*is_dense"):
        sr.as_arrays([frame, dense(room_result(1))])
    both = sr.as_arrays([frame, room_result(1)])
    assert (both["depth"][0, ..., 0] == frame.depth).all()
