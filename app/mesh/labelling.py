"""Choice of a view for each triangle, so that neighbours take the same one where that costs little.

The energy is a Potts model on the graph of triangles: the loss of quality against the triangle's best view, plus the
length of the seams between views. Loopy belief propagation minimises it, as in Waechter et al., 2014.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from stream_recon.app.mesh.config import LabelConfig
from stream_recon.app.mesh.surface import Mesh

FloatArray = NDArray[np.float32]


def neighbours(mesh: Mesh) -> tuple[NDArray[np.intp], FloatArray]:
    """Pairs [E, 2] of triangles with a common edge, and its length [E] as a multiple of the mean."""
    faces = mesh.faces
    edges = np.sort(faces[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2), axis=1)
    owner = np.repeat(np.arange(len(faces)), 3)
    order = np.lexsort((edges[:, 1], edges[:, 0]))
    edges, owner = edges[order], owner[order]
    same = np.flatnonzero((edges[1:] == edges[:-1]).all(axis=1))
    length = np.linalg.norm(mesh.xyz[edges[same, 0]] - mesh.xyz[edges[same, 1]], axis=1)
    return np.stack([owner[same], owner[same + 1]], axis=1), length / max(
        float(length.mean()) if len(length) else 0, 1e-20
    )


def view_labels(mesh: Mesh, scores: NDArray[np.float16], config: LabelConfig) -> NDArray[np.int32]:
    """View of each triangle [M], -1 where none shows it. ``scores``: [V, M], 0 where a view does not show it."""
    count = min(config.candidates, len(scores))
    labels = np.full(len(mesh.faces), -1, np.int32)
    if not count:
        return labels
    views = np.argpartition(-scores, count - 1, axis=0)[:count].T.astype(np.int32)  # [M, K]
    score = np.take_along_axis(scores.T, views, axis=1).astype(np.float32)
    best = score.max(axis=1, keepdims=True)
    cost = np.where(score > 0, 1 - score / np.maximum(best, 1e-12), np.float32(config.forbidden_cost))
    pairs, length = neighbours(mesh)
    shown = best[:, 0] > 0
    both_shown = shown[pairs].all(axis=1)
    pairs, length = pairs[both_shown], length[both_shown]
    choice = _propagate(cost, views, pairs, config.seam_cost * length.clip(0.2, 4), config)
    labels[shown] = views[np.arange(len(views)), choice][shown]
    for _ in range(3):
        labels = _without_small_patches(labels, scores, pairs, config.min_patch)
    return labels


def _propagate(
    cost: FloatArray, views: NDArray[np.int32], pairs: NDArray[np.intp], seam: FloatArray, config: LabelConfig
) -> NDArray[np.intp]:
    """Candidate [M] of each triangle of least energy, by min-sum belief propagation."""
    source = np.concatenate([pairs[:, 0], pairs[:, 1]])
    target = np.concatenate([pairs[:, 1], pairs[:, 0]])
    seam = np.concatenate([seam, seam])[:, None]
    edges = len(pairs)
    reverse = np.concatenate([np.arange(edges) + edges, np.arange(edges)])
    # Number of the target's candidate among the source's, -1 where it is none of them.
    same = views[source][:, :, None] == views[target][:, None, :]  # [2E, source, target]
    candidate = np.where(same.any(axis=1), same.argmax(axis=1), -1)
    is_common, candidate = candidate >= 0, candidate.clip(0)
    del same
    messages = np.zeros((len(source), views.shape[1]), np.float32)
    order = np.argsort(target, kind="stable")
    starts = np.searchsorted(target[order], np.arange(len(cost)))
    filled = np.diff(np.append(starts, len(order))) > 0

    def beliefs() -> FloatArray:
        total = cost.copy()
        if len(order):
            total[filled] += np.add.reduceat(messages[order], starts[filled], axis=0)
        return total

    for _ in range(config.iterations if edges else 0):
        out = beliefs()[source] - messages[reverse]
        least = out.min(axis=1, keepdims=True)
        other = least + seam
        sent = np.where(is_common, np.minimum(np.take_along_axis(out, candidate, axis=1), other), other) - least
        messages = np.float32(config.damping) * messages + np.float32(1 - config.damping) * sent
    return np.asarray(beliefs().argmin(axis=1), np.intp)


def patches_of(labels: NDArray[np.int32], pairs: NDArray[np.intp]) -> NDArray[np.intp]:
    """Number [M] of the patch of each triangle: connected triangles with one view."""
    joined = pairs[labels[pairs[:, 0]] == labels[pairs[:, 1]]]
    graph = coo_matrix((np.ones(len(joined), np.int8), (joined[:, 0], joined[:, 1])), shape=(len(labels),) * 2)
    return np.asarray(connected_components(graph, directed=False)[1], np.intp)


def _without_small_patches(
    labels: NDArray[np.int32], scores: NDArray[np.float16], pairs: NDArray[np.intp], min_patch: int
) -> NDArray[np.int32]:
    """Small patches with the view of a neighbour across the seam, triangle by triangle, where it shows them."""
    small = np.bincount(patches_of(labels, pairs))[patches_of(labels, pairs)] < min_patch
    both = np.concatenate([pairs, pairs[:, ::-1]])
    crossing = both[(labels[both[:, 0]] != labels[both[:, 1]]) & small[both[:, 0]] & ~small[both[:, 1]]]
    view = labels[crossing[:, 1]]
    shows = scores[view, crossing[:, 0]]
    crossing, view = crossing[shows > 0], view[shows > 0]
    order = np.argsort(shows[shows > 0])  # the best neighbour is assigned last
    changed = labels.copy()
    changed[crossing[order, 0]] = view[order]
    return changed
