import io
import shlex
from pathlib import Path

from rich.console import Console

from stream_recon.app.cli.ending import next_commands, print_ending


def test_a_result_is_listed_with_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "walk-recon"
    (folder / "depth").mkdir(parents=True)
    for name, size in {"points.ply": 2_000_000, "run.json": 500, "depth/0.npz": 1000, "depth/1.npz": 2000}.items():
        (folder / name).write_bytes(bytes(size))
    out = Console(file=io.StringIO(), width=200)
    print_ending(folder, out)
    assert isinstance(out.file, io.StringIO)
    lines = out.file.getvalue().splitlines()
    assert lines[0] == f"in {folder}: 2.0 MB"
    sizes = {line.split()[0]: line.split()[1:3] for line in lines[1 : lines.index("next:")]}
    assert sizes == {"depth/": ["3.0", "kB"], "points.ply": ["2.0", "MB"], "run.json": ["500", "bytes"]}
    assert len(lines) == lines.index("next:") + 4


def test_the_commands_survive_a_shell(tmp_path: Path) -> None:
    folder = Path("it's a walk-recon")
    view, mesh, splats = (shlex.split(command) for command in next_commands(folder))
    assert view == ["stream-recon", "view", str(folder)]
    assert mesh == ["stream-recon", "export", str(folder), "--format", "mesh", "-o", "it's a walk.glb"]
    assert splats[-3:] == ["colmap", "-o", "it's a walk-colmap"]
