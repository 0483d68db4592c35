"""Some of a result's points, spread evenly over all of them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ply import Vertices, header
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.ply import stored_points


def some_points(folder: Path, most: int) -> Vertices:
    """At most ``most`` points of the cloud, in its order. Raises OutputError where the file is missing or damaged."""
    return subsample(stored_points(folder / POINTS_NAME), most)


def subsample(vertices: Vertices, most: int) -> Vertices:
    """At most ``most`` of the points: one from each of so many equal parts of the list."""
    return np.array(vertices) if len(vertices) <= most else vertices[spread_indices(len(vertices), most)]


def spread_indices(count: int, most: int) -> NDArray[np.intp]:
    """Ascending numbers below ``count``, ``most`` of them or all.

    Drawn within each part: equal steps would fall into step with an image's rows, and show.
    """
    if count <= most:
        return np.arange(count)
    draw = np.random.default_rng(0).random(most)
    return ((np.arange(most) + draw) * (count / most)).astype(np.intp).clip(0, count - 1)


def write_points(path: Path, vertices: Vertices) -> None:
    """A PLY file. OSError where the system refuses."""
    with path.open("wb") as file:
        file.write(header(len(vertices)))
        file.write(np.ascontiguousarray(vertices).view(np.uint8).data)
