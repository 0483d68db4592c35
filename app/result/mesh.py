"""Name and removal of a result's mesh, which is made of its depth maps and images."""

from pathlib import Path

from stream_recon.app.result.files import PART_SUFFIX, output_errors

MESH_NAME = "mesh.glb"


def remove_mesh(folder: Path) -> None:
    """Remove the mesh, which the result's poses or depth no longer agree with. Raises OutputError."""
    with output_errors(folder):
        for name in (MESH_NAME, MESH_NAME + PART_SUFFIX):
            (folder / name).unlink(missing_ok=True)
