import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOP = ("app", "cache", "configs", "models")


def test_the_wheel_has_every_folder_with_code() -> None:
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {path.parent.relative_to(ROOT) for top in TOP for path in (ROOT / top).rglob("*.py")}
    assert {"stream_recon." + ".".join(folder.parts) for folder in folders} == listed


def test_type_checkers_see_every_top_folder() -> None:
    assert {path.name for path in (ROOT / ".typings" / "stream_recon").iterdir()} == set(TOP)
