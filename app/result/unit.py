"""That a result is in metres: ``metric_scale`` in ``run.json``.

``name`` metre; ``scale``, metres for a unit of the reconstruction's own; ``error``, its relative standard error, or
null where nothing tells it; ``from``, what it was taken from, as the user gave it; ``how``, a line on that; ``world``,
what the axes are; ``origin``, what had to be subtracted of a file's coordinates, or where on Earth the origin is;
``T_metric_own`` [4, 4], what takes the reconstruction's own world and unit, in which first poses and the network's
stay, to the one of ``cameras.json``. A result without ``metric_scale`` is in its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stream_recon.app.core.transforms import Similarity
from stream_recon.app.result.run_record import METRIC_SCALE
from stream_recon.configs.errors import OutputError

FIRST_CAMERA = "first camera"
EAST_NORTH_UP = "east north up"
OF_FILE = "of the file"


@dataclass(frozen=True)
class MetricUnit:
    """How a result came to be in metres."""

    T_metric_own: Similarity
    error: float | None
    """Relative standard error of the scale; None where nothing tells it."""
    given: str
    """As the user said where the scale is to be taken from."""
    how: str
    """One line."""
    world: str = FIRST_CAMERA
    """One of the above."""
    origin: tuple[float, float, float] | None = None
    """`EAST_NORTH_UP`: latitude and longitude in degrees, height in metres; `OF_FILE`: what was subtracted."""

    def after(self, T_current_own: Similarity) -> "MetricUnit":
        """The same where it was measured in a world that is not the reconstruction's own any more."""
        whole = self.T_metric_own @ T_current_own
        if self.world == FIRST_CAMERA:
            # Axes that an earlier track gave are given up.
            whole = Similarity.of_scale(whole.scale)
        return replace(self, T_metric_own=whole)

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


def metres_of(run: Mapping[str, Any]) -> MetricUnit | None:
    """What a ``run.json`` says of it; None where it is in the reconstruction's own unit. Raises OutputError."""
    record = run.get(METRIC_SCALE)
    if record is None:
        return None
    try:
        T_metric_own = Similarity.of_matrix(np.array(record["T_metric_own"], np.float64))
        error, origin = record["error"], record["origin"]
        if record["name"] != "metre" or record["world"] not in (FIRST_CAMERA, EAST_NORTH_UP, OF_FILE):
            raise ValueError("of another kind")
        return MetricUnit(
            T_metric_own,
            None if error is None else float(error),
            str(record["from"]),
            str(record["how"]),
            record["world"],
            None if origin is None else (float(origin[0]), float(origin[1]), float(origin[2])),
        )
    except (KeyError, TypeError, ValueError, IndexError, np.linalg.LinAlgError) as error:
        raise OutputError(f"what run.json says of the unit is damaged: {error}") from error


def T_current_own(run: Mapping[str, Any]) -> Similarity:
    """What takes the reconstruction's own world to the one of ``cameras.json``. Raises OutputError."""
    metres = metres_of(run)
    return Similarity.identity() if metres is None else metres.T_metric_own
