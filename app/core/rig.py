"""A rig: views that are fixed to one another and share one pose a frame."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import is_rigid

VIEW_STRIDE = 100_000_000
"""Frame ``k`` of view ``v`` has the index ``v * VIEW_STRIDE + k``: more frames than a month of film has."""
SAME_PLACE = 1e-4
"""Distance in metres up to which views have one centre, and give no scale."""


def view_of(index: int) -> int:
    """Number of the view of a frame; 0 without a rig."""
    return index // VIEW_STRIDE


@dataclass(frozen=True)
class Rig:
    """Views of one body, whose pose is that of view 0."""

    names: tuple[str, ...]
    T_body_view: NDArray[np.float64]  # [V, 4, 4] in metres; that of view 0 is the identity

    def __len__(self) -> int:
        return len(self.names)

    @property
    def is_central(self) -> bool:
        """Whether all views have one centre, so that they are turned only."""
        return bool(np.abs(self.T_body_view[:, :3, 3]).max() < SAME_PLACE)

    @classmethod
    def of_turns(cls, names: tuple[str, ...], R_body_view: NDArray[np.float64]) -> "Rig":
        """A rig whose views have one centre, from their rotations [V, 3, 3]."""
        T = np.tile(np.eye(4), (len(R_body_view), 1, 1))
        T[:, :3, :3] = R_body_view
        return cls(names, T)

    def to_json(self) -> list[dict[str, Any]]:
        """The rig as JSON."""
        return [{"name": n, "T_body_view": T.tolist()} for n, T in zip(self.names, self.T_body_view, strict=True)]

    @classmethod
    def from_json(cls, record: Sequence[Mapping[str, Any]]) -> "Rig":
        """The rig of a ``run.json``. Raises KeyError, TypeError or ValueError where it is not valid."""
        T = np.array([view["T_body_view"] for view in record], np.float64).reshape(-1, 4, 4)
        if len(T) < 2 or not is_rigid(T) or not np.allclose(T[0], np.eye(4)):
            raise ValueError("a rig is not valid")
        return cls(tuple(str(view["name"]) for view in record), T)
