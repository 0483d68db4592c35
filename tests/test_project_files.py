"""Files of the project around the code: containers, workflows and forms."""

import json
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.documents import Shown
from tests.docs.test_commands_shown import problem

ROOT = Path(__file__).parents[1]
DOCKERFILES = ("Dockerfile", "Dockerfile.cuda")
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github").glob("ISSUE_TEMPLATE/*.yml"))


def instructions(name: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile with their arguments, without comments."""
    text = re.sub(r"^\s*#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def copied(name: str) -> list[str]:
    """What a Dockerfile copies from the repository."""
    words = [shlex.split(rest) for word, rest in instructions(name) if word == "COPY"]
    return [source for line in words if not line[0].startswith("--from") for source in line[:-1]]


@pytest.mark.parametrize("name", DOCKERFILES)
def test_what_is_copied_exists_and_is_not_ignored(name: str) -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    for source in copied(name):
        assert (ROOT / source).exists()
        ignored = [line for line in lines if fnmatch(source, line.lstrip("!"))]
        assert ignored[-1].startswith("!"), source


@pytest.mark.parametrize("name", DOCKERFILES)
def test_all_that_the_package_consists_of_is_copied(name: str) -> None:
    links = {path.name for path in (ROOT / ".package" / "stream_recon").iterdir() if path.is_symlink()}
    assert {"pyproject.toml", "README.md", "LICENSE", ".package", *links} <= set(copied(name))


@pytest.mark.parametrize("name", DOCKERFILES)
def test_a_container_serves_as_a_user_without_rights(name: str) -> None:
    last = dict(instructions(name))
    assert last["USER"] not in ("root", "0")
    words = json.loads(last["CMD"])
    assert json.loads(last["ENTRYPOINT"]) == ["stream-recon"] and words[0] == "serve"
    assert problem(Shown(name, tuple(words))) is None
    # A changed file of the code does not install the dependencies again.
    order = [rest for _, rest in instructions(name)]
    first_code = next(at for at, rest in enumerate(order) if rest.startswith(".package"))
    assert any("requirements.txt" in rest for rest in order[:first_code])


def test_the_containers_differ_only_in_what_a_gpu_needs() -> None:
    plain, cuda = (set(instructions(name)) for name in DOCKERFILES)
    assert {word for word, _ in plain ^ cuda} <= {"RUN", "ENV", "COPY"} and len(plain ^ cuda) < 10


@pytest.mark.parametrize("path", [*WORKFLOWS, *FORMS, ROOT / ".github" / "dependabot.yml"], ids=lambda path: path.name)
def test_yaml_is_valid(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def steps(path: Path) -> list[dict[str, Any]]:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_scripts_that_exist(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"} and all(
        "runs-on" in job for job in workflow["jobs"].values()
    )
    for step in steps(path):
        assert ("uses" in step) != ("run" in step)
        for name in re.findall(r"(?:scripts|\.ci)/[\w./]+", step.get("run", "")):
            assert (ROOT / name).is_file(), name
