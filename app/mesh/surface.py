"""Mesh extraction from a TSDF volume: marching cubes (Lewiner et al., 2003), removal of floaters, simplification.

It uses scikit-image and fast-simplification (quadric errors, Garland and Heckbert 1997), which are small and, unlike
Open3D, need neither a web server nor OpenGL to be imported.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from stream_recon.app.mesh.tsdf import BLOCK, COLOUR_STEPS, Volume

CHUNK = 4
"""Blocks along each axis of a chunk that marching cubes runs on: bounds memory, with few chunk borders."""


@dataclass(frozen=True)
class Mesh:
    """Triangles with vertex colours, counter-clockwise seen from the front."""

    xyz: NDArray[np.float32]  # [N, 3]
    rgb: NDArray[np.uint8]  # [N, 3]
    faces: NDArray[np.int32]  # [M, 3]


def extract(volume: Volume, min_frames: int) -> Mesh:
    """Mesh of the surface in voxels that at least ``min_frames`` frames observed."""
    # Imported here: it takes half a second.
    from skimage.measure import marching_cubes

    corners = np.unique(np.floor_divide(volume.cells, CHUNK), axis=0) if len(volume.cells) else volume.cells
    parts: list[tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.uint8]]] = []
    count = 0
    for corner in corners:
        distance, rgb, known = _dense(volume, corner, min_frames)
        inside = distance < 0
        if known.any() and (inside & known).any() and (~inside & known).any():
            try:
                vertices, faces, _, _ = marching_cubes(
                    distance, 0.0, mask=_complete_cells(known), gradient_direction="descent"
                )
            except (ValueError, RuntimeError):  # no surface within the mask
                pass
            else:
                xyz = vertices.astype(np.float64)
                parts.append((xyz + corner * CHUNK * BLOCK, faces.astype(np.int64) + count, _colours(rgb, xyz)))
                count += len(xyz)
    if not parts:
        return Mesh(np.empty((0, 3), np.float32), np.empty((0, 3), np.uint8), np.empty((0, 3), np.int32))
    lattice, faces, colours = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _merged(lattice, faces, colours, volume.voxel)


def without_floaters(mesh: Mesh, min_part: float) -> Mesh:
    """The mesh without connected parts smaller than a share ``min_part`` of all triangles."""
    if not len(mesh.faces):
        return mesh
    part = parts_of(mesh.faces, len(mesh.xyz))[mesh.faces[:, 0]]
    sizes = np.bincount(part)
    return subset(mesh, sizes[part] >= max(min_part * len(mesh.faces), 1))


def parts_of(faces: NDArray[np.int32], count: int) -> NDArray[np.intp]:
    """Number [count] of the connected part that each vertex belongs to."""
    a, b, c = faces.T
    edges = np.concatenate([a, b]), np.concatenate([b, c])
    graph = coo_matrix((np.ones(len(edges[0]), np.int8), edges), shape=(count, count))
    return np.asarray(connected_components(graph, directed=False)[1], np.intp)


def joined(first: Mesh, second: Mesh) -> Mesh:
    """Both meshes as one."""
    faces = np.concatenate([first.faces, second.faces + np.int32(len(first.xyz))])
    return Mesh(np.concatenate([first.xyz, second.xyz]), np.concatenate([first.rgb, second.rgb]), faces)


def decimated(mesh: Mesh, max_faces: int) -> Mesh:
    """The mesh simplified to about ``max_faces`` triangles."""
    if len(mesh.faces) <= max_faces:
        return mesh
    import fast_simplification

    xyz, faces = fast_simplification.simplify(mesh.xyz, mesh.faces, target_count=max_faces)[:2]
    xyz = np.asarray(xyz, np.float32)
    nearest = cKDTree(mesh.xyz).query(xyz)[1]
    return Mesh(xyz, mesh.rgb[nearest], np.asarray(faces, np.int32))


def _dense(
    volume: Volume, corner: NDArray[np.int64], min_frames: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]:
    """Distances [n, n, n], colours [n, n, n, 3] and whether known, of a chunk and the first voxels of the next ones."""
    side = (CHUNK + 1) * BLOCK
    distance = np.ones((side, side, side), np.float32)
    rgb = np.zeros((side, side, side, 3), np.float32)
    frames = np.zeros((side, side, side), np.uint8)
    first = corner * CHUNK
    for i, j, k in np.ndindex(CHUNK + 1, CHUNK + 1, CHUNK + 1):
        slot = volume.slot((int(first[0]) + i, int(first[1]) + j, int(first[2]) + k))
        if slot is None:
            continue
        voxels = tuple(slice(n * BLOCK, (n + 1) * BLOCK) for n in (i, j, k))
        distance[voxels] = volume.distance[slot].reshape(BLOCK, BLOCK, BLOCK)
        rgb[voxels] = volume.rgb[slot].T.reshape(BLOCK, BLOCK, BLOCK, 3)
        frames[voxels] = volume.frames[slot].reshape(BLOCK, BLOCK, BLOCK)
    end = CHUNK * BLOCK + 1
    rgb /= COLOUR_STEPS
    return distance[:end, :end, :end], rgb[:end, :end, :end], frames[:end, :end, :end] >= min_frames


def _complete_cells(known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which cubes have all eight corners known, each at its last corner, as scikit-image expects."""
    complete = np.zeros_like(known)
    cell = known[1:, 1:, 1:].copy()
    for i, j, k in np.ndindex(2, 2, 2):
        cell &= known[i : i + cell.shape[0], j : j + cell.shape[1], k : k + cell.shape[2]]
    complete[1:, 1:, 1:] = cell
    return complete


def _colours(rgb: NDArray[np.float32], xyz: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Colours at vertices, each of which lies on an edge between two neighbours of the lattice."""
    low, high = np.floor(xyz).astype(np.intp), np.ceil(xyz).astype(np.intp)
    share = (xyz - low).max(axis=1)[:, None]
    mixed = (1 - share) * rgb[tuple(low.T)] + share * rgb[tuple(high.T)]
    return np.asarray(np.rint(mixed).clip(0, 255), np.uint8)


def _merged(lattice: NDArray[np.float64], faces: NDArray[np.int64], rgb: NDArray[np.uint8], voxel: float) -> Mesh:
    """The mesh with each vertex once; chunks have the vertices of their common border twice."""
    steps = np.rint(lattice * 512).astype(np.int64).view(np.uint64)
    # A hash of three coordinates: among a million vertices a collision is as rare as one in ten million meshes.
    primes = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9], np.uint64)
    keys = (steps * primes).sum(axis=1, dtype=np.uint64)
    _, first, number = np.unique(keys, return_index=True, return_inverse=True)
    faces = number[faces]
    proper = (faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 0] != faces[:, 2])
    xyz = (lattice[first] * voxel).astype(np.float32)
    return Mesh(xyz, rgb[first], faces[proper].astype(np.int32))


def subset(mesh: Mesh, good: NDArray[np.bool_]) -> Mesh:
    """The ``good`` triangles [M] with their vertices."""
    used, faces = np.unique(mesh.faces[good], return_inverse=True)
    return Mesh(mesh.xyz[used], mesh.rgb[used], faces.reshape(-1, 3).astype(np.int32))
