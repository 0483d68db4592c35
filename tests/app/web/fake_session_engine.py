"""An engine of sessions without a network, as a program: poses count frames, and each third frame revises the first.

The y of a pose is the engine's process id. A segment has two frames.
"""

import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.api.session_engine import serve_sessions
from stream_recon.app.core.types import FrameResult, FrameRevision, ImageTransform, Intrinsics, Revision
from stream_recon.app.sources.images import checked_time
from stream_recon.configs.errors import InputError

SIZE, DEADLY, UNWANTED, STICKY = (96, 128), (64, 64), (80, 80), (64, 80)
"""Heights and widths of images: good ones, and those that kill the engine, that it refuses, and at which it hangs."""
SLOW_SECONDS = 0.3
"""Duration of a step with ``mapping`` off."""


def moved(x: float) -> NDArray[np.float64]:
    pose = np.eye(4)
    pose[:2, 3] = x, os.getpid()
    return pose


class FakeStream:
    def __init__(self, seconds: float) -> None:
        self._seconds, self._count = seconds, 0
        self._time: float | None = None

    def __enter__(self) -> "FakeStream":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def push(self, rgb: NDArray[np.uint8], timestamp: float | None = None) -> list[FrameResult | Revision]:
        at = checked_time(timestamp, self._time)
        if rgb.shape[:2] == DEADLY:
            os._exit(1)
        if rgb.shape[:2] == STICKY:
            time.sleep(1000)
        if rgb.shape[:2] == UNWANTED:
            raise InputError("an image of another size")
        time.sleep(self._seconds)
        index, self._count, self._time = self._count, self._count + 1, at
        depth = np.full((4, 6), 2.0, np.float32)
        transform = ImageTransform((rgb.shape[1], rgb.shape[0]), (0, 0, rgb.shape[1], rgb.shape[0]), (6, 4))
        camera = Intrinsics(100, 100, 64, 48)
        small = np.zeros((4, 6, 3), np.uint8)
        result = FrameResult(
            index,
            at,
            moved(index),
            camera,
            depth,
            depth,
            small,
            transform,
            index == 0,
            segment=index // 2,
            health=0.9 if index else None,
        )
        return [result, *([self._revision()] if index % 3 == 2 else [])]

    def finish(self) -> list[FrameResult | Revision]:
        time.sleep(self._seconds)
        return [self._revision()] if self._count else []

    def _revision(self) -> Revision:
        return Revision((FrameRevision(0, moved(-self._count), 1.5),))


class FakeModel:
    def stream(self, camera: Any, mapping: Any) -> FakeStream:
        return FakeStream(SLOW_SECONDS if mapping == "off" else 0.0)


if __name__ == "__main__":
    serve_sessions(FakeModel)  # type: ignore[arg-type]
