"""What is imported when the program or a worker starts: workers set threads and GPUs before torch comes."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import stream_recon.app.batch
import stream_recon.app.cli


def modules_of(package: str, folder: Path) -> list[str]:
    return [f"{package}.{file.stem}" for file in sorted(folder.glob("*.py")) if file.stem != "__init__"]


def imported_with(modules: list[str]) -> set[str]:
    """All that a fresh process has imported once it has imported ``modules``."""
    script = f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("package", [stream_recon.app.batch, stream_recon.app.cli])
def test_what_workers_and_commands_import_at_their_start_leaves_torch_alone(package: ModuleType) -> None:
    name, (folder,) = package.__name__, package.__path__
    modules = modules_of(name, Path(folder))
    assert len(modules) > 5
    assert not imported_with(modules) & {"torch", "stream_recon.app.engine.engine"}


def test_help_needs_no_more_than_the_options() -> None:
    heavy = {"torch", "cv2", "numpy", "viser", "scipy", "rich.progress"}
    assert not imported_with(["stream_recon.app.cli.main"]) & heavy
