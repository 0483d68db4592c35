"""The end of a run: the result folder, what is in it, commands to continue with, and the exit code."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from stream_recon.app.cli.console import DONE, FAILED, Terminal
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.app.result.verdict import LEVELS, recorded_verdict

if TYPE_CHECKING:
    from rich.console import Console

    from stream_recon.app.result.verdict import Level
    from stream_recon.app.run.options import RunJob

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


def end_code(folder: Path, terminal: Terminal, fail_on: "Level | None") -> int:
    """Exit code of a complete result, after its JSON object is printed where the user wants it. Raises OutputError."""
    if not (folder / RUN_NAME).exists():
        return DONE
    result = read_result(folder)
    verdict = recorded_verdict(result.run)
    if terminal.as_json:
        entry = {"result": str(folder), "frames": len(result), "verdict": verdict and verdict.to_json()}
        print(json.dumps(entry), flush=True)
    if fail_on is None or verdict is None:
        return DONE
    return FAILED if LEVELS.index(verdict.level) >= LEVELS.index(fail_on) else DONE


def print_continuation(job: "RunJob", out: "Console") -> None:
    """Say by which command an interrupted run goes on."""
    arguments = [each for each in sys.argv[1:] if each not in ("--overwrite", "--resume")]
    if arguments[:1] == ["demo"]:
        # It does not resume; reconstruct does, and has all its options.
        arguments[0] = job.spec
    has_output = any(each == "-o" or each.startswith("--output") for each in arguments)
    output = [] if has_output else ["-o", str(job.folder)]
    out.print(f"to continue: {shlex.join(['stream-recon', *arguments, *output, '--resume'])}")
