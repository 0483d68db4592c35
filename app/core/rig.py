"""A rig: views that are fixed to one another and share one pose a frame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import is_rigid

VIEW_STRIDE = 100_000_000
"""Frame ``k`` of view ``v`` has the index ``v * VIEW_STRIDE + k``: more frames than a month of film has."""


def view_of(index: int) -> int:
    """Number of the view of a frame; 0 without a rig."""
    return index // VIEW_STRIDE


@dataclass(frozen=True)
class Rig:
    """Views of one body, whose pose is that of view 0. All have one centre: they are turned only."""

    names: tuple[str, ...]
    R_body_view: NDArray[np.float64]  # [V, 3, 3]; that of view 0 is the identity

    def __len__(self) -> int:
        return len(self.names)

    def to_json(self) -> list[dict[str, Any]]:
        """The rig as JSON."""
        return [{"name": n, "R_body_view": R.tolist()} for n, R in zip(self.names, self.R_body_view, strict=True)]

    @classmethod
    def from_json(cls, record: Sequence[Mapping[str, Any]]) -> "Rig":
        """The rig of a ``run.json``. Raises KeyError, TypeError or ValueError where it is not valid."""
        R = np.array([view["R_body_view"] for view in record], np.float64)
        T = np.tile(np.eye(4), (len(R), 1, 1))
        T[:, :3, :3] = R.reshape(-1, 3, 3)
        if len(R) < 2 or not all(map(is_rigid, T)) or not np.allclose(R[0], np.eye(3)):
            raise ValueError("a rig is not valid")
        return cls(tuple(str(view["name"]) for view in record), R)
