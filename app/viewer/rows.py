"""Arrays that grow by rows."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Rows:
    """An array [n, ...] that grows at its end, in constant time for each row on average."""

    def __init__(self, *shape: int, dtype: type[np.generic] = np.float64) -> None:
        """``shape``: of one row."""
        self._array: NDArray[Any] = np.zeros((256, *shape), dtype)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> NDArray[Any]:
        """All rows, writable; a view that the next `append` may leave behind."""
        return self._array[: self._count]

    def append(self, row: Any) -> None:
        if self._count == len(self._array):
            self._array = np.concatenate([self._array, np.zeros_like(self._array)])
        self._array[self._count] = row
        self._count += 1
