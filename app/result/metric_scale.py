"""Metric scale of a result: the object ``metric_scale`` in ``run.json``.

``name`` is ``metre``; ``scale``, metres per reconstruction unit; ``error``, relative standard error of the scale or
null; ``from``, the source as the user gave it; ``how``, one line about it; ``world``, the kind of axes; ``origin``, see
`MetricScale.origin`; ``T_metric_own`` [4, 4], the similarity from the reconstruction's own world to the world of
``cameras.json``. Causal poses and the network's poses stay in the own world. A result without ``metric_scale`` is in
its own world and unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.result.run_record import METRIC_SCALE, ONTO
from stream_recon.configs.errors import OutputError

FIRST_CAMERA = "first camera"
EAST_NORTH_UP = "east north up"
OF_FILE = "of the file"


@dataclass(frozen=True)
class MetricScale:
    """Similarity from the reconstruction's own world to metres, and where it comes from."""

    T_metric_own: Similarity
    error: float | None
    """Relative standard error of the scale; None where it is unknown."""
    given: str
    """Source of the scale, as the user gave it."""
    how: str
    """One line about the measurement."""
    world: str = FIRST_CAMERA
    """Axes: `FIRST_CAMERA`, `EAST_NORTH_UP` or `OF_FILE`."""
    origin: tuple[float, float, float] | None = None
    """`EAST_NORTH_UP`: latitude and longitude in degrees, height in metres. `OF_FILE`: the subtracted coordinates."""

    def after(self, T_current_own: Similarity) -> "MetricScale":
        """The same scale for the reconstruction's own world, where it was measured in the world of ``cameras.json``."""
        T_metric_own = self.T_metric_own @ T_current_own
        if self.world == FIRST_CAMERA:
            # Axes of a GPS track applied before are dropped.
            T_metric_own = Similarity.of_scale(T_metric_own.scale)
        return replace(self, T_metric_own=T_metric_own)

    def to_json(self) -> dict[str, Any]:
        """The object ``metric_scale``."""
        return {
            "name": "metre",
            "scale": self.T_metric_own.scale,
            "error": self.error,
            "from": self.given,
            "how": self.how,
            "world": self.world,
            "origin": self.origin,
            "T_metric_own": self.T_metric_own.matrix.tolist(),
        }


def metric_scale_of(run: Mapping[str, Any]) -> MetricScale | None:
    """The metric scale in a ``run.json``; None where the result is in its own unit. Raises OutputError."""
    record = run.get(METRIC_SCALE)
    if record is None:
        return None
    try:
        T_metric_own = Similarity.of_matrix(np.array(record["T_metric_own"], np.float64))
        error, origin = record["error"], record["origin"]
        if record["name"] != "metre" or record["world"] not in (FIRST_CAMERA, EAST_NORTH_UP, OF_FILE):
            raise ValueError("unknown name or world")
        return MetricScale(
            T_metric_own,
            None if error is None else float(error),
            str(record["from"]),
            str(record["how"]),
            record["world"],
            None if origin is None else (float(origin[0]), float(origin[1]), float(origin[2])),
        )
    except (KeyError, TypeError, ValueError, IndexError, np.linalg.LinAlgError) as error:
        raise OutputError(f"{METRIC_SCALE} in run.json is damaged: {error}") from error


def T_current_own(run: Mapping[str, Any]) -> Similarity:
    """Similarity from the reconstruction's own world to the world of ``cameras.json``. Raises OutputError."""
    metric_scale = metric_scale_of(run)
    if metric_scale is not None:
        return metric_scale.T_metric_own
    onto = run.get(ONTO)
    if onto is None:
        return Similarity.identity()
    try:
        return Similarity.of_matrix(np.array(onto["T_onto_own"], np.float64))
    except (KeyError, TypeError, ValueError, IndexError, np.linalg.LinAlgError) as error:
        raise OutputError(f"{ONTO} in run.json is damaged: {error}") from error
