"""Tracks: features of several keyframes that show the same point of the scene."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from stream_recon.app.slam.matching.matching import Matches


@dataclass(frozen=True)
class Tracks:
    """Observations sorted by track: track, keyframe, and feature in the keyframe."""

    track: NDArray[np.int64]  # [O], from 0 without gaps
    keyframe: NDArray[np.int64]  # [O]
    feature: NDArray[np.int64]  # [O]

    def __len__(self) -> int:
        return int(self.track[-1]) + 1 if len(self.track) else 0


def build_tracks(counts: Sequence[int], matches: Mapping[tuple[int, int], Matches]) -> Tracks:
    """Connected components of the matches. Features of a keyframe that has several in one track are left out.

    Args:
        counts: number of features of each keyframe.
        matches: by pairs of keyframes.
    """
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    total = int(starts[-1])
    pairs = [np.asarray(m, np.int64) + starts[[i, j]] for (i, j), m in matches.items() if len(m)]
    if not pairs:
        empty = np.zeros(0, np.int64)
        return Tracks(empty, empty, empty)
    edges = np.concatenate(pairs)
    graph = coo_matrix((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), (total, total))
    _, label = connected_components(graph, directed=False)
    nodes = np.unique(edges)
    keyframe = np.searchsorted(starts, nodes, side="right") - 1
    track = label[nodes].astype(np.int64)
    _, inverse, seen = np.unique(track * len(counts) + keyframe, return_inverse=True, return_counts=True)
    clear = seen[inverse] == 1
    nodes, keyframe, track = nodes[clear], keyframe[clear], track[clear]
    _, inverse, length = np.unique(track, return_inverse=True, return_counts=True)
    long = length[inverse] >= 2
    _, dense = np.unique(track[long], return_inverse=True)
    order = np.lexsort((keyframe[long], dense))
    return Tracks(dense[order], keyframe[long][order], (nodes - starts[keyframe])[long][order])
