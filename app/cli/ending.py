"""What commands print at the end of a run: the result folder, what is in it, and commands to continue with."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

if TYPE_CHECKING:
    from rich.console import Console

CONTENT = {
    "trajectory.txt": "camera poses, TUM format",
    "cameras.json": "per frame: poses, intrinsics, depth scale",
    "depth": "per frame: depth, confidence, small image",
    "dense": "per keyframe: depth by stereo, image",
    "points.ply": "coloured cloud",
    "mesh.glb": "textured mesh",
    "splats.ply": "Gaussian splats",
    "tracks.npz": "triangulated points and their observations",
    "map.npz": "features by which images of the place are localized",
    "changes.ply": "points that are new (green) and gone (red)",
    "run.json": "options, timings, warnings, verdict",
}
"""Files and folders of a result that are listed where they exist."""


def print_ending(folder: Path, out: "Console") -> None:
    """List a finished result, and three commands: to view it, for a mesh, and for Gaussian splats."""
    sizes = {name: _size(folder / name) for name in CONTENT if (folder / name).exists()}
    out.print(f"in {folder}: {decimal(sum(sizes.values()))}")
    width = max(map(len, CONTENT)) + 1
    for name, size in sizes.items():
        shown = f"{name}/" if (folder / name).is_dir() else name
        out.print(f"  {shown:{width}} {decimal(size):>9}  {CONTENT[name]}")
    out.print("next:")
    for command in next_commands(folder):
        out.print(f"  {command}")


def next_commands(folder: Path) -> list[str]:
    """Commands to copy, for a shell in the current folder."""
    result, name = shlex.quote(str(folder)), folder.name.removesuffix("-recon")
    mesh, splats = shlex.quote(f"{name}.glb"), shlex.quote(f"{name}-colmap")
    return [
        f"stream-recon view {result}",
        f"stream-recon export {result} --format mesh -o {mesh}",
        f"stream-recon export {result} --format colmap -o {splats}",
    ]


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)
