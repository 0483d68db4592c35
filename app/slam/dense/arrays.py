"""Array operations of stereo on two backends: numpy with OpenCV on a CPU, and torch on a GPU.

Images are [..., h, w] float32. Pixel (0, 0) covers [0, 1) x [0, 1), so the centre of pixel (i, j) is (j + .5, i + .5).
Both backends give the same values up to rounding.
"""

from collections.abc import Callable, Hashable
from types import ModuleType
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

Array = Any
"""An array of the backend: ``NDArray`` or ``torch.Tensor``."""


class Arrays(Protocol):
    """Operations on a backend's arrays; arithmetic and comparisons are the arrays' own."""

    xp: ModuleType
    """``numpy`` or ``torch``."""
    steps_at_once: int
    """Depth hypotheses that are computed in one call: 1 on a CPU, whose caches are small; many on a GPU."""
    views_at_once: int
    """Source views, and keyframes, that are computed in one call."""

    def array(self, values: NDArray[Any]) -> Array:
        """The backend's copy of a numpy array, or the same array."""

    def constant(self, values: NDArray[Any]) -> Array:
        """`array` of values that are used again and must not be changed."""
        return self.array(values)

    def numpy(self, values: Array) -> NDArray[Any]:
        """A numpy array of the values."""

    def replayed(self, key: Hashable, function: Callable[..., tuple[Array, ...]], *inputs: Array) -> tuple[Array, ...]:
        """The function of the arrays.

        On a GPU its operations are recorded once for each key and shape of the inputs, and later started all at once.
        So it must depend on nothing but the key and the inputs, and may not bring arrays from or to the host.
        """

    def batched(self, key: Hashable, function: Callable[..., tuple[Array, ...]], *inputs: Array) -> tuple[Array, ...]:
        """`replayed` for arrays of up to `views_at_once` keyframes [n, ...], which do not depend on one another."""
        return self.replayed(key, function, *inputs)

    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array: ...

    def minimum(self, a: Array, b: Array | float) -> Array: ...

    def maximum(self, a: Array, b: Array | float) -> Array: ...

    def exp(self, a: Array) -> Array:
        return self.xp.exp(a)

    def log(self, a: Array) -> Array:
        return self.xp.log(a)

    def sqrt(self, a: Array) -> Array:
        return self.xp.sqrt(a)

    def floor(self, a: Array) -> Array:
        return self.xp.floor(a)

    def stack(self, arrays: list[Array]) -> Array:
        """Arrays along a new first axis."""
        return self.xp.stack(arrays)

    def concatenate(self, arrays: list[Array], axis: int = 0) -> Array:
        return self.xp.concatenate(arrays, axis)

    def zeros_like(self, a: Array) -> Array:
        return self.xp.zeros_like(a)

    def argmin(self, a: Array) -> Array:
        """Index of the least value along the first axis."""
        return self.xp.argmin(a, 0)

    def median(self, a: Array) -> Array:
        """Medians [n] of the rows of ``a`` [n, m]."""

    def pick(self, a: Array, index: Array) -> Array:
        """Values of ``a`` [n, h, w] at ``index`` [h, w] along the first axis."""

    def total(self, a: Array) -> Array:
        """Sums over the last two axes, which stay with length 1."""

    def product(self, a: Array, b: Array) -> Array:
        """`total` of ``a`` times ``b``."""
        return self.total(a * b)

    def plus(self, a: Array, factor: Array, b: Array) -> Array:
        """``a`` plus ``factor``, a result of `total`, times ``b``."""
        return a + factor * b

    def to_float(self, a: Array) -> Array: ...

    def sample(self, images: Array, x: Array, y: Array) -> Array:
        """Bilinear values of ``images`` [n, h, w] at coordinates [n, k, h', w']; border values outside.

        The coordinates count from the centre of the first pixel.
        """

    def take(self, images: Array, x: Array, y: Array) -> Array:
        """Values of the pixels of ``images`` [n, h, w] that hold the coordinates [n, h', w']; 0 outside."""

    def rows(self, chosen: Array, margin: int) -> slice:
        """Rows of images [n, h, w] with all ``chosen`` pixels and ``margin`` rows around them; all rows on a GPU."""

    def padded_rows(self, part: Array, rows: tuple[Any, ...], like: Array, value: float) -> Array:
        """An array with the shape of ``like`` that is ``part`` in some rows, an index, and else ``value``."""

    def box(self, image: Array, radius: int) -> Array:
        """Means over squares of side 2 ``radius`` + 1; border values outside."""

    def enlarged(self, image: Array, size: tuple[int, int]) -> Array:
        """Bilinear resize to ``size`` (width, height)."""

    def repeated(self, image: Array, size: tuple[int, int]) -> Array:
        """Nearest-neighbour resize to ``size`` (width, height)."""


class NumpyArrays(Arrays):
    """`Arrays` on numpy and OpenCV."""

    xp = np
    steps_at_once = 1
    views_at_once = 1

    def array(self, values: NDArray[Any]) -> Array:
        return values

    def numpy(self, values: Array) -> NDArray[Any]:
        return np.asarray(values)

    def replayed(self, key: Hashable, function: Callable[..., tuple[Array, ...]], *inputs: Array) -> tuple[Array, ...]:
        return function(*inputs)

    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array:
        if not (_is_image(condition, np.bool_) and all(_fits(value, condition.shape) for value in (a, b))):
            return np.where(condition, _single(a), _single(b))
        out = np.array(b) if isinstance(b, np.ndarray) else np.full(condition.shape, b, np.float32)
        source = a if isinstance(a, np.ndarray) else np.full(condition.shape, a, np.float32)
        cv2.copyTo(_flat(source), _flat(condition.view(np.uint8)), _flat(out))
        return out

    def minimum(self, a: Array, b: Array | float) -> Array:
        if _is_image(a) and isinstance(b, float | int):
            return cv2.threshold(_flat(a), b, 0, cv2.THRESH_TRUNC)[1].reshape(a.shape)
        return np.minimum(a, _single(b))

    def maximum(self, a: Array, b: Array | float) -> Array:
        if _is_image(a) and isinstance(b, float | int):
            return cv2.max(_flat(a), float(b)).reshape(a.shape)
        return np.maximum(a, _single(b))

    def log(self, a: Array) -> Array:
        return cv2.log(_flat(a)).reshape(a.shape) if _is_image(a) else np.log(a)

    def sqrt(self, a: Array) -> Array:
        return cv2.sqrt(_flat(a)).reshape(a.shape) if _is_image(a) else np.sqrt(a)

    def median(self, a: Array) -> Array:
        return np.median(a, axis=1)

    def pick(self, a: Array, index: Array) -> Array:
        return np.take_along_axis(a, index[None], axis=0)[0]

    def total(self, a: Array) -> Array:
        return a.sum(axis=(-2, -1), keepdims=True, dtype=np.float32)

    def product(self, a: Array, b: Array) -> Array:
        if a.size > a.shape[-1] * a.shape[-2]:
            return self.total(a * b)
        return np.vdot(a, b).reshape((1,) * a.ndim)

    def plus(self, a: Array, factor: Array, b: Array) -> Array:
        if factor.size > 1:
            return a + factor * b
        return cv2.scaleAdd(_flat(b), factor.item(), _flat(a)).reshape(a.shape)

    def to_float(self, a: Array) -> Array:
        return np.asarray(a, np.float32)

    def sample(self, images: Array, x: Array, y: Array) -> Array:
        def one(image: Array, u: Array, v: Array) -> Array:
            return cv2.remap(image, u, v, cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE)

        sampled = [[one(images[n], x[n, k], y[n, k]) for k in range(x.shape[1])] for n in range(len(images))]
        return sampled[0][0][None, None] if x.shape[:2] == (1, 1) else np.array(sampled)

    def take(self, images: Array, x: Array, y: Array) -> Array:
        half = np.float32(0.5)
        taken = [
            cv2.remap(image, u - half, v - half, cv2.INTER_NEAREST, None, cv2.BORDER_CONSTANT, 0)
            for image, u, v in zip(images, x, y, strict=True)
        ]
        return taken[0][None] if len(taken) == 1 else np.array(taken)

    def rows(self, chosen: Array, margin: int) -> slice:
        used = np.flatnonzero(chosen.any(axis=(0, 2)))
        if not len(used):
            return slice(0, 2 * margin + 1)
        return slice(max(int(used[0]) - margin, 0), int(used[-1]) + margin + 1)

    def padded_rows(self, part: Array, rows: tuple[Any, ...], like: Array, value: float) -> Array:
        if part.shape == like.shape:
            return part
        out = np.full(like.shape, value, np.float32)
        out[rows] = part
        return out

    def box(self, image: Array, radius: int) -> Array:
        kernel = np.full(2 * radius + 1, 1 / (2 * radius + 1), np.float32)
        return _each(lambda one: cv2.sepFilter2D(one, -1, kernel, kernel, borderType=cv2.BORDER_REPLICATE), image)

    def enlarged(self, image: Array, size: tuple[int, int]) -> Array:
        return _each(lambda one: cv2.resize(one, size, interpolation=cv2.INTER_LINEAR), image)

    def repeated(self, image: Array, size: tuple[int, int]) -> Array:
        return _each(lambda one: cv2.resize(one, size, interpolation=cv2.INTER_NEAREST), image)


def _is_image(value: Array, kind: type[np.generic] = np.float32) -> bool:
    """Whether OpenCV, which is faster than numpy for large arrays, takes the values."""
    return isinstance(value, np.ndarray) and value.dtype == kind and value.size > 256 and value.flags.c_contiguous


def _fits(value: Array | float, shape: tuple[int, ...]) -> bool:
    return isinstance(value, float | int) or (_is_image(value) and value.shape == shape)


def _flat(values: Array) -> Array:
    """A view [n, w] of arrays [..., w]."""
    return values.reshape(-1, values.shape[-1])


def _single(value: Array | float) -> Array:
    """A Python number as float32, so that it does not widen an array; arrays as they are."""
    return np.float32(value) if isinstance(value, float | int) else value


def _each(function: Any, *images: Array) -> Array:
    """The function of each image [h, w] of arrays [..., h, w]."""
    first = images[0]
    if first.ndim == 2:
        return function(*images)
    if first.shape[0] == 1:
        return _each(function, *(image[0] for image in images))[None]
    return np.stack([_each(function, *group) for group in zip(*images, strict=True)])
