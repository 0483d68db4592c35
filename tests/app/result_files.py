"""Single files of a result folder, written outside a change of it."""

from pathlib import Path

from stream_recon.app.result.commit import FolderChange
from stream_recon.app.result.dense import DenseMap, dense_path, write_dense_beside
from stream_recon.app.result.tracks import SparseTracks, change_tracks


def write_dense(folder: Path, dense: DenseMap, refinement: str) -> None:
    """Write a keyframe's dense map; ``refinement``: id of the refinement."""
    write_dense_beside(folder, dense, refinement).replace(dense_path(folder, dense.index))


def write_tracks(folder: Path, tracks: SparseTracks) -> None:
    """Write or replace ``tracks.npz``."""
    with FolderChange(folder) as change:
        change_tracks(change, tracks)
        change.commit()
