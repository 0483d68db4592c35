"""Which frames of a result an export is made of."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.result.cameras import Camera
from stream_recon.configs.errors import ConfigError, InputError

FAR = 2
"""Usual distances between the refinement's keyframes, beyond which the network's fill a gap."""


def select(cameras: Sequence[Camera], frames: str, refined: NDArray[np.integer] | None = None) -> list[Camera]:
    """The frames that ``frames`` names: ``keyframes``, ``all``, or a number N for every N-th.

    ``refined``: indices of the frames, ascending, that a refinement was fitted to. These are then the keyframes, with
    the network's where there are none of them about.

    Raises:
        ConfigError: it is none of these.
        InputError: there are no frames yet.
    """
    if frames == "keyframes":
        chosen = _keyframes(cameras, np.empty(0, np.int64) if refined is None else refined) or list(cameras)
    elif frames == "all":
        chosen = list(cameras)
    elif frames.isascii() and frames.isdecimal() and int(frames) > 0:
        chosen = list(cameras[:: int(frames)])
    else:
        raise ConfigError(f"--frames {frames}: use keyframes, all, or a number N for every N-th frame")
    if not chosen:
        raise InputError("the result has no frames yet: there is nothing to export")
    return chosen


def _keyframes(cameras: Sequence[Camera], refined: NDArray[np.integer]) -> list[Camera]:
    if len(refined) < 2:
        return [camera for camera in cameras if camera.is_keyframe]
    fitted, far = set(refined.tolist()), FAR * float(np.median(np.diff(refined)))
    index = np.array([camera.index for camera in cameras])
    after = np.searchsorted(refined, index).clip(1, len(refined) - 1)
    away = np.minimum(np.abs(refined[after] - index), np.abs(refined[after - 1] - index))
    return [
        camera
        for camera, distance in zip(cameras, away, strict=True)
        if camera.index in fitted or (camera.is_keyframe and distance > far)
    ]
