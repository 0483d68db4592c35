import tomllib
from pathlib import Path

from setuptools import find_namespace_packages

import stream_recon

ROOT = Path(__file__).parents[1]
TOP = ("app", "cache", "configs", "models")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_wheel_has_every_folder_with_code() -> None:
    find = SETTINGS["tool"]["setuptools"]["packages"]["find"]
    found = set(find_namespace_packages(str(ROOT / find["where"][0])))
    folders = {path.parent.relative_to(ROOT) for top in TOP for path in (ROOT / top).rglob("*.py")}
    assert {"stream_recon." + ".".join(folder.parts) for folder in folders} <= found


def test_the_package_directory_links_every_top_folder() -> None:
    links = {path.name for path in (ROOT / ".package" / "stream_recon").iterdir() if path.is_symlink()}
    assert links == set(TOP)


def test_version_and_public_names() -> None:
    assert stream_recon.__version__ == SETTINGS["project"]["version"]
    for name in stream_recon.__all__:
        assert getattr(stream_recon, name) is not None
