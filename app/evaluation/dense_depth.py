"""Errors of dense depth against ground truth, beside those of the network's depth at the same pixels, by certainty."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from stream_recon.app.core.ground_truth import GroundTruth
from stream_recon.app.core.transforms import FloatArray
from stream_recon.app.core.types import Certainty, FrameResult
from stream_recon.app.evaluation.metrics import DepthErrors, depth_errors

WORSE = 0.1
"""A pixel is worse where its relative error exceeds the network's by this much."""


@dataclass(frozen=True)
class DenseDepthErrors:
    """Errors over all pixels with true depth; one scale a sequence."""

    dense: DepthErrors
    network: DepthErrors
    """Of the refined network depth."""
    worse: float
    """Share of pixels that are worse by more than `WORSE`."""
    missing: float
    """Share of pixels without dense depth, where the network's counts."""
    shares: dict[str, float] = field(default_factory=dict)
    """Share of pixels of each certainty."""
    absrel: dict[str, tuple[float, float]] = field(default_factory=dict)
    """AbsRel of dense and of network depth by certainty."""


def dense_depth_errors(pairs: Iterable[tuple[FrameResult, FrameResult]], truth: GroundTruth) -> DenseDepthErrors | None:
    """Errors of pairs of results of the same frames, with dense and with network depth; None without true depth."""
    columns: list[FloatArray] = []
    for dense, network in pairs:
        depth = truth.depth(dense.index)
        if depth is None or dense.certainty is None:
            continue
        true_depth = depth.at_network(dense.transform)
        sx, sy = dense.transform.scale
        nx, ny = network.transform.scale
        left, top = network.transform.crop[:2]
        height, width = network.depth.shape
        column = (((true_depth.columns + 0.5) / sx - left) * nx).astype(np.intp).clip(0, width - 1)
        row = (((true_depth.rows + 0.5) / sy - top) * ny).astype(np.intp).clip(0, height - 1)
        dense_depth = dense.depth[true_depth.rows, true_depth.columns].astype(np.float64)
        network_depth = network.depth[row, column].astype(np.float64)
        certainty = dense.certainty[true_depth.rows, true_depth.columns].astype(np.float64)
        columns.append(np.stack([dense_depth, network_depth, true_depth.z, certainty])[:, network_depth > 0])
    if not columns or not sum(part.shape[1] for part in columns):
        return None
    dense_depth, network_depth, true, certainty = np.concatenate(columns, axis=1)
    missing = dense_depth <= 0
    dense_depth = np.where(missing, network_depth, dense_depth)
    errors = [np.abs(z * (np.median(true) / np.median(z)) / true - 1) for z in (dense_depth, network_depth)]
    shares, absrel = {}, {}
    for level in Certainty:
        chosen = certainty == level
        shares[level.name.lower()] = float(chosen.mean())
        if chosen.any():
            absrel[level.name.lower()] = (float(errors[0][chosen].mean()), float(errors[1][chosen].mean()))
    worse = float((errors[0] > errors[1] + WORSE).mean())
    return DenseDepthErrors(
        depth_errors(dense_depth, true), depth_errors(network_depth, true), worse, float(missing.mean()), shares, absrel
    )
