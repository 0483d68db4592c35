"""Camera poses over time."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.result.cameras import tum_line
from stream_recon.app.result.files import replace_file


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Camera poses of N frames, in order.

    Args:
        timestamps: [N], seconds from the start of the source.
        poses: [N, 4, 4], camera to world; camera axes x right, y down, z forward. Lengths are in the result's unit.
    """

    timestamps: NDArray[np.float64]
    poses: NDArray[np.float64]

    @property
    def positions(self) -> NDArray[np.float64]:
        """Centres of the cameras in the world, [N, 3]."""
        return self.poses[:, :3, 3]

    @property
    def length(self) -> float:
        """Length of the path through all positions."""
        return float(np.linalg.norm(np.diff(self.positions, axis=0), axis=1).sum())

    def save(self, path: str | Path) -> None:
        """Write a file in the format of TUM: timestamp tx ty tz qx qy qz qw. Raises OutputError."""
        lines = [tum_line(time, pose) for time, pose in zip(self.timestamps, self.poses, strict=True)]
        replace_file(Path(path), lambda file: file.write("".join(lines).encode()))

    def __len__(self) -> int:
        return len(self.poses)

    def __repr__(self) -> str:
        return f"<Trajectory: {len(self)} poses, path length {self.length:.4g}>"
