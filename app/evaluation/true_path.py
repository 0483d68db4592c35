"""The true trajectory over the frames of a run, of which some may lack a pose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.evaluation.metrics import PoseErrors, pose_errors


@dataclass(frozen=True)
class TruePath:
    """The M of N frames in a run that have a true pose."""

    places: NDArray[np.intp]
    """[M] which of the run's frames they are, counted as they came."""
    poses: FloatArray  # [M, 4, 4]

    @classmethod
    def of(cls, poses: Mapping[int, FloatArray], frames: Sequence[int]) -> "TruePath":
        """The true ``poses`` by index, over the ``frames`` of a run, by their indices in order."""
        places = [place for place, index in enumerate(frames) if index in poses]
        known = [poses[frames[place]] for place in places]
        return cls(np.array(places, dtype=np.intp), np.array(known, dtype=np.float64).reshape(-1, 4, 4))

    def __len__(self) -> int:
        return len(self.places)

    @property
    def adjacent(self) -> NDArray[np.bool_]:
        """[M - 1] which of their neighbours were neighbours in the run."""
        adjacent: NDArray[np.bool_] = np.diff(self.places) == 1
        return adjacent

    def errors(self, predicted: FloatArray) -> PoseErrors:
        """Errors of poses [N, 4, 4] for all frames of the run."""
        return pose_errors(predicted[self.places], self.poses, self.adjacent)

    def first_step(self) -> FloatArray | None:
        """The first known motion [4, 4] from one frame to the next; None where there is none."""
        starts = np.flatnonzero(self.adjacent)
        if not len(starts):
            return None
        step: FloatArray = np.linalg.inv(self.poses[starts[0]]) @ self.poses[starts[0] + 1]
        return step
