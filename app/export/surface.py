"""Triangles of the surface in a fused volume: marching cubes (Lewiner et al., 2003), cleaned and thinned.

By scikit-image, and fast-simplification (quadric errors, Garland and Heckbert 1997): 14 MB in all. Open3D does all of
this in one, but is 105 MB and wants a web server, plotly and notebooks' widgets beside it only to be imported, and a
system's X11 and OpenGL. OpenCV's volumes give no triangles, nor the voxels to make some of.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from stream_recon.app.export.tsdf import BLOCK, Volume
from stream_recon.configs.errors import ResourceError

CHUNK = 4
"""Blocks along an axis of what is looked at in one go."""
SMALLEST_PART = 0.002
"""Of all triangles: a part that hangs together and has fewer floats about, and is left out."""


@dataclass(frozen=True)
class Mesh:
    """Triangles with colours at their corners; seen from in front they turn counter-clockwise."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    faces: NDArray[np.int32]  # [M, 3]


def check_libraries() -> None:
    """Raises ResourceError where the libraries for meshes are not installed."""
    try:
        import fast_simplification  # noqa: F401
        import skimage.measure  # noqa: F401
    except ImportError as error:
        raise ResourceError("meshes need two more libraries: pip install 'stream-recon[export]'") from error


def extract(volume: Volume, least_seen: int, on_chunk: Callable[[int, int], None] = lambda done, total: None) -> Mesh:
    """The surface where at least ``least_seen`` frames looked. ``on_chunk`` is told how much is done, of how much.

    Raises:
        ResourceError: see `check_libraries`.
    """
    check_libraries()
    from skimage.measure import marching_cubes

    corners = np.unique(np.floor_divide(volume.cells, CHUNK), axis=0) if len(volume.cells) else volume.cells
    parts: list[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.uint8]]] = []
    count = 0
    for done, corner in enumerate(corners):
        distance, rgb, known = _dense(volume, corner, least_seen)
        inside = distance < 0
        if known.any() and (inside & known).any() and (~inside & known).any():
            try:
                xyz, faces, _, _ = marching_cubes(distance, 0.0, mask=_whole_cells(known), gradient_direction="descent")
            except (ValueError, RuntimeError):  # no surface within the mask
                pass
            else:
                at = xyz.astype(np.float64)
                parts.append((at + corner * CHUNK * BLOCK, faces.astype(np.int64) + count, _colours(rgb, at)))
                count += len(xyz)
        on_chunk(done + 1, len(corners))
    if not parts:
        return Mesh(np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8), np.empty((0, 3), np.int32))
    lattice, faces, colours = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _welded(lattice, faces, colours, volume.voxel)


def without_floaters(mesh: Mesh) -> Mesh:
    """Without the parts that are small beside the whole."""
    if not len(mesh.faces):
        return mesh
    a, b, c = mesh.faces.T
    edges = np.concatenate([a, b]), np.concatenate([b, c])
    graph = coo_matrix((np.ones(len(edges[0]), np.int8), edges), shape=(len(mesh.xyz),) * 2)
    _, part = connected_components(graph, directed=False)
    sizes = np.bincount(part[a])
    return _kept(mesh, sizes[part[a]] >= max(SMALLEST_PART * len(mesh.faces), 1))


def decimated(mesh: Mesh, most: int) -> Mesh:
    """With about ``most`` triangles at most. Raises ResourceError, see `check_libraries`."""
    if len(mesh.faces) <= most:
        return mesh
    check_libraries()
    import fast_simplification

    xyz, faces = fast_simplification.simplify(mesh.xyz, mesh.faces, target_count=most)[:2]
    xyz = np.asarray(xyz, np.float32)
    nearest = cKDTree(mesh.xyz).query(xyz)[1]
    return Mesh(xyz, mesh.rgb[nearest], np.asarray(faces, np.int32))


def _dense(
    volume: Volume, corner: NDArray[np.int64], least_seen: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """Distances, colours, and where they are known, of a chunk and the first voxels of those after it."""
    side = (CHUNK + 1) * BLOCK
    distance = np.ones((side, side, side), np.float32)
    rgb = np.zeros((side, side, side, 3), np.float32)
    seen = np.zeros((side, side, side), np.uint8)
    first = corner * CHUNK
    for i, j, k in np.ndindex(CHUNK + 1, CHUNK + 1, CHUNK + 1):
        slot = volume.slot((int(first[0]) + i, int(first[1]) + j, int(first[2]) + k))
        if slot is None:
            continue
        here = tuple(slice(n * BLOCK, (n + 1) * BLOCK) for n in (i, j, k))
        distance[here] = volume.distance[slot].reshape(BLOCK, BLOCK, BLOCK)
        rgb[here] = volume.rgb[slot].reshape(BLOCK, BLOCK, BLOCK, 3)
        seen[here] = volume.seen[slot].reshape(BLOCK, BLOCK, BLOCK)
    end = CHUNK * BLOCK + 1
    return distance[:end, :end, :end], rgb[:end, :end, :end], seen[:end, :end, :end] >= least_seen


def _whole_cells(known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which cubes have all eight corners known, each marked at its last corner, as scikit-image wants it."""
    whole = np.zeros_like(known)
    cell = known[1:, 1:, 1:].copy()
    for i, j, k in np.ndindex(2, 2, 2):
        cell &= known[i : i + cell.shape[0], j : j + cell.shape[1], k : k + cell.shape[2]]
    whole[1:, 1:, 1:] = cell
    return whole


def _colours(rgb: NDArray[np.float32], at: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours at corners, which lie between two neighbours of the lattice."""
    low, high = np.floor(at).astype(np.intp), np.ceil(at).astype(np.intp)
    share = (at - low).max(axis=1)[:, None]
    mixed = (1 - share) * rgb[tuple(low.T)] + share * rgb[tuple(high.T)]
    return np.asarray(np.rint(mixed).clip(0, 255), np.uint8)


def _welded(lattice: NDArray[np.float64], faces: NDArray[np.int64], rgb: NDArray[np.uint8], voxel: float) -> Mesh:
    """With each corner once: chunks that meet have those of their seam twice."""
    steps = np.rint(lattice * 512).astype(np.int64).view(np.uint64)
    # One number for three: of a million corners two get the same by chance once in ten million meshes.
    primes = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
    keys = (steps * primes).sum(axis=1, dtype=np.uint64)
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    faces = number[faces]
    proper = (faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 0] != faces[:, 2])
    xyz = (lattice[first] * voxel).astype(np.float32)
    return Mesh(xyz, rgb[first], faces[proper].astype(np.int32))


def _kept(mesh: Mesh, good: NDArray[np.bool_]) -> Mesh:
    """With those of the triangles alone, and the corners that they have."""
    used, faces = np.unique(mesh.faces[good], return_inverse=True)
    return Mesh(mesh.xyz[used], mesh.rgb[used], faces.reshape(-1, 3).astype(np.int32))
