import runpy
import tomllib
from pathlib import Path
from typing import Any

import pytest
import setuptools

import stream_recon

ROOT = Path(__file__).parents[1]
TOP = ("app", "cache", "configs", "models")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_has_every_folder_with_code(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    folders = {path.parent.relative_to(ROOT) for top in TOP for path in (ROOT / top).rglob("*.py")}
    assert {"stream_recon." + ".".join(folder.parts) for folder in folders} <= set(given["packages"])
    assert all((ROOT / folder).is_dir() for folder in given["package_dir"].values())


def test_the_package_directory_links_every_top_folder() -> None:
    links = {path.name for path in (ROOT / ".package" / "stream_recon").iterdir() if path.is_symlink()}
    assert links == set(TOP)


def test_version_and_public_names() -> None:
    assert stream_recon.__version__ == SETTINGS["project"]["version"]
    for name in stream_recon.__all__:
        assert getattr(stream_recon, name) is not None
