"""Small videos and image folders for tests."""

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.configs.schema import load_preset, preset_to_toml
from stream_recon.models.embedded import EMBEDDED_PRESET

SAMPLE_CAMERA = "284.65,284.65,191.5,143.5"
"""The camera of the sample as ``--intrinsics`` takes it; a known one halves the time of refinement."""


def numbered_image(number: int, size: tuple[int, int] = (64, 48)) -> NDArray[np.uint8]:
    """RGB image [H, W, 3] whose brightness encodes a number from 0 to 30, robust to compression."""
    return np.full((size[1], size[0], 3), number * 8 + 4, np.uint8)


def number_of(rgb: NDArray[np.uint8]) -> int:
    """Number that a `numbered_image` encodes."""
    return round((float(rgb.mean()) - 4) / 8)


def write_video(path: Path, frames: int = 30, fps: float = 10.0, size: tuple[int, int] = (64, 48)) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), fps, size)
    assert writer.isOpened()
    for number in range(frames):
        writer.write(numbered_image(number % 31, size))
    writer.release()
    return path


def quick_preset(folder: Path) -> str:
    """A preset file of the embedded network for images of half the side, which take a quarter of the time."""
    preset = load_preset(EMBEDDED_PRESET)
    path = folder / "quick.toml"
    path.write_text(preset_to_toml(replace(preset, image=replace(preset.image, max_side=112))))
    return str(path)


def write_broken_avi(path: Path, frames: int = 30, size: tuple[int, int] = (64, 48)) -> Path:
    """Write an AVI and cut it in half; without its index, which stands at the end, it still opens."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10.0, size)
    assert writer.isOpened()
    noise = np.random.default_rng(0)
    for _ in range(frames):
        writer.write(noise.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8))
    writer.release()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def write_images(folder: Path, names: list[str], size: tuple[int, int] = (64, 48)) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    for number, name in enumerate(names):
        assert cv2.imwrite(str(folder / name), numbered_image(number, size))
    return folder
