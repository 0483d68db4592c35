"""Array operations of stereo on two backends: numpy with OpenCV on a CPU, and torch on a GPU.

Images are [..., h, w] float32. Pixel (0, 0) covers [0, 1) x [0, 1), so the centre of pixel (i, j) is (j + .5, i + .5).
Both backends give the same values up to rounding.
"""

from typing import TYPE_CHECKING, Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Array = Any
"""An array of the backend: ``NDArray`` or ``torch.Tensor``."""


class Arrays(Protocol):
    """Operations that numpy and torch name or do differently; arithmetic and comparisons are the arrays' own."""

    steps_at_once: int
    """Depth hypotheses that are computed in one call: 1 on a CPU, whose caches are small; many on a GPU."""
    views_at_once: int
    """Source views, and keyframes, that are computed in one call."""

    def array(self, values: NDArray[Any]) -> Array:
        """The backend's copy of a numpy array, or the same array."""

    def numpy(self, values: Array) -> NDArray[Any]:
        """A numpy array of the values."""

    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array: ...

    def minimum(self, a: Array, b: Array | float) -> Array: ...

    def maximum(self, a: Array, b: Array | float) -> Array: ...

    def exp(self, a: Array) -> Array: ...

    def log(self, a: Array) -> Array: ...

    def sqrt(self, a: Array) -> Array: ...

    def floor(self, a: Array) -> Array: ...

    def stack(self, arrays: list[Array]) -> Array:
        """Arrays along a new first axis."""

    def concatenate(self, arrays: list[Array], axis: int = 0) -> Array: ...

    def zeros_like(self, a: Array) -> Array: ...

    def argmin(self, a: Array) -> Array:
        """Index of the least value along the first axis."""

    def least(self, a: Array) -> Array:
        """Least value along the first axis."""

    def pick(self, a: Array, index: Array) -> Array:
        """Values of ``a`` [n, h, w] at ``index`` [h, w] along the first axis."""

    def total(self, a: Array) -> Array:
        """Sums over the last two axes, which stay with length 1."""

    def to_float(self, a: Array) -> Array: ...

    def sample(self, images: Array, x: Array, y: Array) -> Array:
        """Bilinear values of ``images`` [n, h, w] at pixel coordinates [n, k, h', w']; border values outside."""

    def take(self, images: Array, x: Array, y: Array) -> Array:
        """Values of the pixels of ``images`` [n, h, w] that hold the coordinates [n, h', w']; 0 outside."""

    def box(self, image: Array, radius: int) -> Array:
        """Means over squares of side 2 ``radius`` + 1; border values outside."""

    def enlarged(self, image: Array, size: tuple[int, int]) -> Array:
        """Bilinear resize to ``size`` (width, height)."""

    def repeated(self, image: Array, size: tuple[int, int]) -> Array:
        """Nearest-neighbour resize to ``size`` (width, height)."""


class NumpyArrays:
    """`Arrays` on numpy and OpenCV."""

    steps_at_once = 1
    views_at_once = 1

    def array(self, values: NDArray[Any]) -> Array:
        return values

    def numpy(self, values: Array) -> NDArray[Any]:
        return np.asarray(values)

    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array:
        return np.where(condition, _single(a), _single(b))

    def minimum(self, a: Array, b: Array | float) -> Array:
        return np.minimum(a, _single(b))

    def maximum(self, a: Array, b: Array | float) -> Array:
        return np.maximum(a, _single(b))

    def exp(self, a: Array) -> Array:
        return np.exp(a)

    def log(self, a: Array) -> Array:
        return np.log(a)

    def sqrt(self, a: Array) -> Array:
        return np.sqrt(a)

    def floor(self, a: Array) -> Array:
        return np.floor(a)

    def stack(self, arrays: list[Array]) -> Array:
        return np.stack(arrays)

    def concatenate(self, arrays: list[Array], axis: int = 0) -> Array:
        return np.concatenate(arrays, axis=axis)

    def zeros_like(self, a: Array) -> Array:
        return np.zeros_like(a)

    def argmin(self, a: Array) -> Array:
        return a.argmin(axis=0)

    def least(self, a: Array) -> Array:
        return a.min(axis=0)

    def pick(self, a: Array, index: Array) -> Array:
        return np.take_along_axis(a, index[None], axis=0)[0]

    def total(self, a: Array) -> Array:
        return a.sum(axis=(-2, -1), keepdims=True, dtype=np.float32)

    def to_float(self, a: Array) -> Array:
        return np.asarray(a, np.float32)

    def sample(self, images: Array, x: Array, y: Array) -> Array:
        def one(image: Array, u: Array, v: Array) -> Array:
            # OpenCV counts from the centre of the first pixel.
            return cv2.remap(
                image, u - np.float32(0.5), v - np.float32(0.5), cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE
            )

        found = [[one(images[n], x[n, k], y[n, k]) for k in range(x.shape[1])] for n in range(len(images))]
        return found[0][0][None, None] if x.shape[:2] == (1, 1) else np.array(found)

    def take(self, images: Array, x: Array, y: Array) -> Array:
        count, height, width = images.shape
        inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
        column = np.where(inside, x, 0).astype(np.intp)
        row = np.where(inside, y, 0).astype(np.intp)
        first = np.arange(count)[:, None, None] * (height * width)
        return np.where(inside, images.ravel()[first + row * width + column], np.float32(0))

    def box(self, image: Array, radius: int) -> Array:
        side = (2 * radius + 1, 2 * radius + 1)
        return _each(lambda one: cv2.blur(one, side, borderType=cv2.BORDER_REPLICATE), image)

    def enlarged(self, image: Array, size: tuple[int, int]) -> Array:
        return _each(lambda one: cv2.resize(one, size, interpolation=cv2.INTER_LINEAR), image)

    def repeated(self, image: Array, size: tuple[int, int]) -> Array:
        return _each(lambda one: cv2.resize(one, size, interpolation=cv2.INTER_NEAREST), image)


class TorchArrays:
    """`Arrays` on torch, for a GPU."""

    steps_at_once = 64
    views_at_once = 16

    def __init__(self, device: str) -> None:
        import torch

        self._torch, self._device = torch, torch.device(device)

    def array(self, values: NDArray[Any]) -> "torch.Tensor":
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def numpy(self, values: Array) -> NDArray[Any]:
        return np.asarray(values.cpu().numpy())

    def where(self, condition: Array, a: Array | float, b: Array | float) -> Array:
        return self._torch.where(condition, a, b)

    def minimum(self, a: Array, b: Array | float) -> Array:
        return self._torch.minimum(a, b) if isinstance(b, self._torch.Tensor) else a.clamp(max=b)

    def maximum(self, a: Array, b: Array | float) -> Array:
        return self._torch.maximum(a, b) if isinstance(b, self._torch.Tensor) else a.clamp(min=b)

    def exp(self, a: Array) -> Array:
        return self._torch.exp(a)

    def log(self, a: Array) -> Array:
        return self._torch.log(a)

    def sqrt(self, a: Array) -> Array:
        return self._torch.sqrt(a)

    def floor(self, a: Array) -> Array:
        return self._torch.floor(a)

    def stack(self, arrays: list[Array]) -> Array:
        return self._torch.stack(arrays)

    def concatenate(self, arrays: list[Array], axis: int = 0) -> Array:
        return self._torch.cat(arrays, dim=axis)

    def zeros_like(self, a: Array) -> Array:
        return self._torch.zeros_like(a)

    def argmin(self, a: Array) -> Array:
        return a.argmin(dim=0)

    def least(self, a: Array) -> Array:
        return a.amin(dim=0)

    def pick(self, a: Array, index: Array) -> Array:
        return a.gather(0, index[None])[0]

    def total(self, a: Array) -> Array:
        return a.sum(dim=(-2, -1), keepdim=True)

    def to_float(self, a: Array) -> Array:
        return a.float()

    def sample(self, images: Array, x: Array, y: Array) -> Array:
        count, height, width = images.shape
        grid = self._torch.stack([x * (2 / width) - 1, y * (2 / height) - 1], dim=-1)
        flat = grid.reshape(count, -1, grid.shape[-2], 2)
        found = self._torch.nn.functional.grid_sample(
            images[:, None], flat, mode="bilinear", padding_mode="border", align_corners=False
        )
        return found.reshape(x.shape)

    def take(self, images: Array, x: Array, y: Array) -> Array:
        count, height, width = images.shape
        inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
        first = self._torch.arange(count, device=images.device)[:, None, None] * (height * width)
        cell = first + self._torch.where(inside, y, 0).long() * width + self._torch.where(inside, x, 0).long()
        return self._torch.where(inside, images.reshape(-1)[cell], 0)

    def box(self, image: Array, radius: int) -> Array:
        flat = image.reshape(-1, 1, *image.shape[-2:])
        padded = self._torch.nn.functional.pad(flat, (radius,) * 4, mode="replicate")
        return self._torch.nn.functional.avg_pool2d(padded, 2 * radius + 1, stride=1).reshape(image.shape)

    def enlarged(self, image: Array, size: tuple[int, int]) -> Array:
        return self._resized(image, size, mode="bilinear", align_corners=False)

    def repeated(self, image: Array, size: tuple[int, int]) -> Array:
        return self._resized(image, size, mode="nearest")

    def _resized(self, image: Array, size: tuple[int, int], **how: Any) -> Array:
        flat = image.reshape(-1, 1, *image.shape[-2:])
        found = self._torch.nn.functional.interpolate(flat, size=size[::-1], **how)
        return found.reshape(*image.shape[:-2], *size[::-1])


def arrays_for(device: str) -> Arrays:
    """The backend of a device: ``cpu``, ``cuda``, or ``auto``, a GPU where there is one."""
    if device == "auto":
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
    return NumpyArrays() if device == "cpu" else TorchArrays(device)


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
