"""Files of the project around the code: containers, workflows and forms."""

import json
import re
import shlex
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_recon import __version__
from stream_recon.app.web.access import PROBES
from stream_recon.app.web.data_folder import DataFolder
from tests.app.web.serving import served
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


def test_the_manifest_runs_a_command_with_probes_that_are_routes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {part["kind"]: part for part in yaml.safe_load_all((ROOT / "docs" / "kubernetes.yaml").read_text())}
    pod = parts["Deployment"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert problem(Shown("kubernetes.yaml", tuple(container["args"]))) is None
    assert dict(instructions("Dockerfile"))["CMD"] == json.dumps(container["args"])
    assert container["image"] == f"stream-recon:{__version__}"
    assert (
        pod["spec"]["securityContext"]["runAsNonRoot"] is container["securityContext"]["readOnlyRootFilesystem"] is True
    )
    assert "memory" in container["resources"]["limits"] and container["resources"]["requests"]
    with served(tmp_path / "data", jobs=0) as client:
        described = client.get("/openapi.json").json()["paths"]
        metrics = client.get("/metrics").text
    probes = [container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")]
    assert {probe["path"] for probe in probes} == set(PROBES) <= set(described)
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {probe["port"] for probe in probes} == set(named) and str(named["http"]) in container["args"]
    service, scaler = parts["Service"]["spec"], parts["HorizontalPodAutoscaler"]["spec"]
    assert service["selector"] == pod["metadata"]["labels"] and service["ports"][0]["targetPort"] in named
    assert scaler["scaleTargetRef"]["name"] == parts["Deployment"]["metadata"]["name"]
    assert f"# TYPE {scaler['metrics'][0]['pods']['metric']['name']} gauge" in metrics
    policy = parts["NetworkPolicy"]["spec"]
    assert (
        policy["podSelector"]["matchLabels"] == service["selector"]
        and policy["ingress"][0]["ports"][0]["port"] in named
    )
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["spec"]["volumes"]}
    # The secret lies where the server looks for the token of its data folder.
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    folder = DataFolder(Path(mounts["data"])).secrets()
    assert mounts["token"] == f"{container['env'][0]['value']}/{folder.relative_to(state)}"


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
