"""Faults that are put into a clip: of the lens and the light, of the editing, and of what is seen."""

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

from bench.scenarios.images import Clip, Image, noisy

BLUR_PX = 6.0
"""Of a Gaussian, at 640 pixels of width."""


def each_image(alter: Callable[[Image], NDArray[np.floating] | Image]) -> Callable[[Clip], Clip]:
    """A fault that treats all images alike, with the noise of a sensor."""

    def put(clip: Clip) -> Clip:
        noise = np.random.default_rng(4)
        return clip.change(lambda k, image: noisy(alter(image), noise))

    return put


def blurred(image: Image) -> Image:
    return np.asarray(cv2.GaussianBlur(image, None, BLUR_PX * image.shape[1] / 640), np.uint8)


def blurred_interval(clip: Clip) -> Clip:
    middle = len(clip.images) // 2
    return clip.change(lambda k, image: blurred(image) if middle - 4 <= k < middle + 4 else image)


def blank_interval(clip: Clip) -> Clip:
    middle, noise = len(clip.images) // 2, np.random.default_rng(1)
    blank = np.full_like(clip.images[0], 90)
    return clip.change(lambda k, image: noisy(blank, noise) if middle - 3 <= k < middle + 3 else image)


def _patches(clip: Clip, side: int, seed: int, size: tuple[int, int]) -> Image:
    """A picture with more texture than all else, of patches of ``side`` pixels."""
    height, width = clip.images[0].shape[:2]
    small = np.random.default_rng(seed).integers(0, 255, (height // side, width // side, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(small, size, interpolation=cv2.INTER_CUBIC), np.uint8)


def moving_patch(clip: Clip) -> Clip:
    """A quarter of the image, which passes through."""
    height, width = clip.images[0].shape[:2]
    patch, count = _patches(clip, 12, 3, (width // 2, height // 2)), len(clip.images)

    def put(k: int, image: Image) -> Image:
        covered = image.copy()
        left = round((width - width // 2) * k / max(count - 1, 1))
        covered[height // 4 : height // 4 + patch.shape[0], left : left + patch.shape[1]] = patch
        return covered

    return clip.change(put)


def overlay(clip: Clip) -> Clip:
    """A frame with text that stays in the same place, over two fifths of the image."""
    height, width = clip.images[0].shape[:2]
    picture = _patches(clip, 10, 6, (width, height))
    fixed = np.ones((height, width, 1), bool)
    fixed[round(0.12 * height) : round(0.88 * height), round(0.1 * width) : round(0.9 * width)] = False
    return clip.change(lambda k, image: np.where(fixed, picture, image).astype(np.uint8))


def squeezed(clip: Clip) -> Clip:
    """Pixels that are not square, as after a wrong change of aspect ratio."""
    height, width = clip.images[0].shape[:2]
    return clip.change(lambda k, image: np.asarray(cv2.resize(image, (round(0.7 * width), height)), np.uint8))


def zoomed(clip: Clip) -> Clip:
    """The camera zooms in by a factor of 1.8 while it moves."""
    height, width = clip.images[0].shape[:2]

    def zoom(k: int, image: Image) -> Image:
        factor = 1.8 ** (k / max(len(clip.images) - 1, 1))
        M = np.array([[factor, 0, (1 - factor) * width / 2], [0, factor, (1 - factor) * height / 2]])
        return np.asarray(cv2.warpAffine(image, M, (width, height)), np.uint8)

    return clip.change(zoom)


def barrel(clip: Clip) -> Clip:
    """Strong radial distortion."""
    height, width = clip.images[0].shape[:2]
    u, v = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    x, y = (u - width / 2) / (width / 2), (v - height / 2) / (width / 2)
    bend = 0.75 + 0.25 * (x * x + y * y)
    u, v = x * bend * width / 2 + width / 2, y * bend * width / 2 + height / 2
    return clip.change(lambda k, image: np.asarray(cv2.remap(image, u, v, cv2.INTER_LINEAR), np.uint8))


def mirrored(clip: Clip) -> Clip:
    """The second half is mirrored, as by an editor."""
    middle = len(clip.images) // 2
    return clip.change(lambda k, image: np.ascontiguousarray(image[:, ::-1]) if k >= middle else image)


def textureless(image: Image) -> Image:
    """Nearly all of the image becomes plain areas of colour."""
    return np.asarray(cv2.medianBlur(np.asarray(cv2.pyrMeanShiftFiltering(image, 12, 45), np.uint8), 15), np.uint8)


def repeated(clip: Clip) -> Clip:
    """Every second frame three times, with noise."""
    noise = np.random.default_rng(9)
    frames = [k for k in range(0, len(clip.images), 2) for _ in range(3)]
    return clip.take(frames).change(lambda k, image: noisy(image, noise))


def joined(clip: Clip) -> Clip:
    """A third is cut out, with no mark of the cut."""
    count = len(clip.images)
    return clip.take([*range(count // 3), *range(2 * count // 3, count)])


def swapped_halves(clip: Clip) -> Clip:
    """The second half comes first: where one ends nothing is seen of where the other begins."""
    count = len(clip.images)
    return clip.take([*range(count // 2, count), *range(count // 2)])


FAULTS: dict[str, Callable[[Clip], Clip]] = {
    "as it is": lambda clip: clip,
    "blurred": lambda clip: clip.change(lambda k, image: blurred(image)),
    "blurred interval": blurred_interval,
    "blank interval": blank_interval,
    "dark": each_image(lambda image: image * np.float32(0.05)),
    "faint": each_image(lambda image: 118 + (image.astype(np.float32) - 118) * 0.06),
    "moving patch": moving_patch,
    "overlay": overlay,
    "squeezed": squeezed,
    "zoomed": zoomed,
    "barrel": barrel,
    "mirrored": mirrored,
    "textureless": each_image(textureless),
    "shuffled": lambda clip: clip.take(np.random.default_rng(8).permutation(len(clip.images)).tolist()),
    "repeated": repeated,
    "sparse": lambda clip: clip.take(range(0, len(clip.images), 3)),
    "joined": joined,
    "swapped halves": swapped_halves,
}
