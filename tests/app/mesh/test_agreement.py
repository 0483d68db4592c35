"""Unconfirmed depth that frames agree on."""

from collections.abc import Callable
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.types import Certainty, FrameResult, ImageTransform, Intrinsics
from stream_recon.app.mesh.agreement import AgreedMaps
from stream_recon.app.mesh.config import AgreementConfig
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.folder import ResultFolder
from stream_recon.configs.errors import OutputError

SIZE = (96, 72)
CONFIG = AgreementConfig()
BIASES = np.random.default_rng(3).normal(0, 0.03, 15)


def wall(index: int, log_bias: float, certainty: int | None, slant: float = 0.3) -> FrameResult:
    """A slanted wall, z = 2 + slant x, from cameras that move sideways and forward, at a wrong scale of depth."""
    T = np.eye(4)
    T[:3, 3] = 0.05 * index, 0.0, 0.02 * index
    k = Intrinsics(80.0, 80.0, SIZE[0] / 2, SIZE[1] / 2)
    u = (np.arange(SIZE[0]) + 0.5 - k.cx) / k.fx
    depth = (2 + slant * T[0, 3] - T[2, 3]) / (1 - slant * u)
    depth = np.broadcast_to(depth * np.exp(log_bias), SIZE[::-1]).astype(np.float32)
    levels = None if certainty is None else np.full(depth.shape, certainty, np.uint8)
    transform = ImageTransform(SIZE, (0.0, 0.0, *map(float, SIZE)), SIZE)
    confidence, rgb = np.full(depth.shape, 9, np.float32), np.full((*depth.shape, 3), 128, np.uint8)
    return FrameResult(index, index / 10, T, k, depth, confidence, rgb, transform, True, certainty=levels)


class Frames:
    """A result of these frames; None: one that cannot be read."""

    def __init__(self, frames: list[FrameResult | None]) -> None:
        self.frames = frames

    def surface_of(self, camera: int) -> FrameResult:
        frame = self.frames[camera]
        if frame is None:
            raise OutputError("damaged")
        return frame


def agreed(frames: list[FrameResult | None], on_step: Callable[[], None] = lambda: None) -> AgreedMaps:
    cameras = cast(list[FrameCamera], list(range(len(frames))))
    return AgreedMaps(cast(ResultFolder, Frames(frames)), cameras, CONFIG, on_step)


def log_errors(maps: AgreedMaps) -> NDArray[np.float64]:
    """Mean log ratio of each frame's depth to the true one."""
    return np.array([np.log(maps.frame(n).depth / wall(n, 0.0, None).depth).mean() for n in range(len(maps))])


@pytest.mark.parametrize("certainty", [Certainty.NETWORK, None])
def test_frames_agree_on_a_wall_within_the_tolerance(certainty: int | None) -> None:
    errors = log_errors(agreed([wall(n, bias, certainty) for n, bias in enumerate(BIASES)]))
    assert errors.std() < BIASES.std() / 2 and np.median(np.abs(errors - np.median(errors))) < CONFIG.tolerance
    assert abs(errors.mean() - BIASES.mean()) < CONFIG.tolerance


@pytest.mark.parametrize("certainty", [Certainty.CONFIRMED, Certainty.NEAR])
def test_measured_depth_stays(certainty: int) -> None:
    frames = [wall(n, bias, certainty) for n, bias in enumerate(BIASES)]
    maps = agreed(list(frames))
    for number, frame in enumerate(frames):
        np.testing.assert_array_equal(maps.frame(number).depth, frame.depth)


def test_others_move_to_what_stereo_confirmed() -> None:
    maps = agreed([wall(n, 0.0 if n % 2 else 0.06, 3 if n % 2 else Certainty.NETWORK) for n in range(6)])
    assert np.abs(log_errors(maps)).max() < 2 * CONFIG.tolerance


def test_another_surface_and_unknown_depth_stay() -> None:
    frames = [wall(n, bias, Certainty.NETWORK) for n, bias in enumerate(BIASES)]
    depth = frames[3].depth.copy()
    depth[20:50, 30:60] *= 0.5
    depth[:8] = 0
    frames[3] = wall(3, 0.0, Certainty.NETWORK)
    frames[3].depth[:] = depth
    new = agreed(list(frames)).frame(3).depth
    np.testing.assert_allclose(new[26:44, 36:54], depth[26:44, 36:54], rtol=1e-6)
    assert (new[:8] == 0).all() and (new[12:] > 0).all()


def test_a_frame_that_cannot_be_read_is_left_out() -> None:
    frames: list[FrameResult | None] = [wall(n, bias, Certainty.NETWORK) for n, bias in enumerate(BIASES)]
    frames[2] = None
    maps = agreed(frames)
    with pytest.raises(OutputError):
        maps.frame(2)
    assert np.isfinite(maps.frame(1).depth).all()


def test_a_single_frame_stays() -> None:
    frame = wall(0, 0.1, Certainty.NETWORK)
    np.testing.assert_array_equal(agreed([frame]).frame(0).depth, frame.depth)


def test_it_can_be_stopped_while_frames_are_read_and_while_they_move() -> None:
    frames: list[FrameResult | None] = [wall(n, bias, Certainty.NETWORK) for n, bias in enumerate(BIASES)]
    for calls in (1, len(frames) + 1):
        on_step = Mock(side_effect=[None] * (calls - 1) + [Cancelled])
        with pytest.raises(Cancelled):
            agreed(frames, on_step)
        assert on_step.call_count == calls
