"""Random error of a map's path, by maps from two halves of its tracks.

The network's error is independent of it, so the squared difference between both paths is the sum of their squared
errors. Evidence from neighbouring keyframes cannot tell this: where matches are few or noisy, a map that fits each pair
better than the network may drift more over all of them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import align
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.ba.robust_ba import BAState
from stream_recon.app.slam.offline import hierarchical_ba
from stream_recon.app.slam.offline.half_maps import HALVES, HalvesConfig, half_maps
from stream_recon.app.slam.offline.initialization import InitialCandidate


@dataclass(frozen=True)
class PathConfig:
    """How the error of a path is estimated."""

    systematic: float = 2.0
    """Ratio of a map's squared error to the estimate of its random part: both halves share the lens and wrong matches.
    On generated videos of static scenes it is 1.8; the ratio of the errors has median 1.1, quantiles 0.8 (10 %) and
    1.8."""
    splits: int = 3
    """Divisions into halves of which the median decides, where the first one speaks against the map."""
    min_keyframes: int = 6
    """Least number of keyframes of a segment: the path of fewer is mostly alignment."""
    on_the_spot: float = 0.01
    """Spread of the positions, relative to the depth, up to which there is no path to speak of."""
    halves: HalvesConfig = HALVES


PATH = PathConfig()


@dataclass(frozen=True)
class PathError:
    """RMS errors of positions after alignment, as shares of the path."""

    random: float
    """Random error of the map."""
    difference: float
    """Between the paths of map and network."""
    systematic: float = PATH.systematic

    @property
    def is_larger(self) -> bool:
        """Whether the map's error is larger than the network's."""
        return 2 * self.systematic * self.random**2 > self.difference**2

    @property
    def reason(self) -> str:
        """Why the network's path is kept where the map's error is larger."""
        return (
            f"matches are too few or too noisy: the map's path is known to {self.random:.2%} of its length, "
            f"and differs from the network's by {self.difference:.2%}"
        )


def path_error(
    start: BAState,
    candidate: InitialCandidate,
    T_network: FloatArray,
    segment: NDArray[np.integer],
    config: PathConfig = PATH,
) -> PathError | None:
    """Error of the map from all tracks of ``start``; None with too few keyframes or hardly any motion.

    Args:
        start: the map with all observations, also those that it does not explain.
        candidate: the map.
        T_network: poses [N, 4, 4].
        segment: [N], each is aligned for itself.
    """
    first = np.arange(min(len(T_network), config.halves.max_keyframes))
    parts = _parts(start, segment[first], config)
    if not parts:
        return None
    part = hierarchical_ba.subset(start, first)
    motions = hierarchical_ba.composed(candidate.motions, first, config.halves.hierarchy)
    mapped = start.scene.T_world_camera
    difference = _difference(T_network, mapped, parts)

    def between_halves(split: int) -> float:
        """Difference between maps from two halves of the tracks, a different division for each ``split``."""
        one, two = half_maps(part, candidate, motions, split, config.halves)
        return _difference(one.scene.T_world_camera, two.scene.T_world_camera, parts)

    try:
        error = PathError(0.5 * between_halves(0), difference, config.systematic)
        if error.is_larger:
            # One division may be unlucky.
            others = [0.5 * between_halves(split) for split in range(1, config.splits)]
            error = PathError(float(np.median([error.random, *others])), difference, config.systematic)
    except (SingularError, np.linalg.LinAlgError):
        return None
    return error


def path_difference(
    fit: BAState, T_network: FloatArray, segment: NDArray[np.integer], config: PathConfig = PATH
) -> float | None:
    """Between the paths of map and network [N, 4, 4], as in `PathError`; None with few keyframes or no motion."""
    parts = _parts(fit, segment, config)
    return _difference(T_network, fit.scene.T_world_camera, parts) if parts else None


def _difference(T: FloatArray, T_reference: FloatArray, parts: list[NDArray[np.intp]]) -> float:
    """RMS difference of positions after alignment of each part, as a share of its path; the mean over the parts."""
    differences = []
    for rows in parts:
        source, target = T[rows, :3, 3], T_reference[rows, :3, 3]
        path = float(np.linalg.norm(np.diff(target, axis=0), axis=1).sum())
        away = align(source, target).apply(source) - target
        differences.append(float(np.sqrt(np.square(away).sum(axis=1).mean())) / max(path, 1e-12))
    return float(np.mean(differences))


def _parts(fit: BAState, segment: NDArray[np.integer], config: PathConfig) -> list[NDArray[np.intp]]:
    """Rows of the segments that have a path; none where all of them turn on the spot."""
    every = (np.flatnonzero(segment == s) for s in np.unique(segment))
    parts = [rows for rows in every if len(rows) >= config.min_keyframes]
    depth = float(np.median(fit.depth)) if len(fit.depth) else 0.0
    spread = [float(np.sqrt(fit.scene.T_world_camera[rows, :3, 3].var(axis=0).sum())) for rows in parts]
    return parts if max(spread, default=0.0) > config.on_the_spot * depth else []
