"""The page on the server's interface names the routes that there are."""

import re
from pathlib import Path

from tests.app.web.serving import served
from tests.docs.documents import ROOT


def paths(pattern: str, text: str) -> set[str]:
    """Paths of the interface, with ID for each part that varies."""
    return {re.sub(r"\{[^}]*\}|\b[A-Z]+\b", "ID", path) for path in re.findall(pattern, text)}


def test_the_page_names_each_route_of_the_interface(tmp_path: Path) -> None:
    with served(tmp_path / "data", jobs=0) as client:
        described = client.get("/openapi.json").json()["paths"]
    routes = paths(r"(/api/.*)", "\n".join(described))
    shown = paths(r"(?<=[A-Z] )/api/[\w/]+", (ROOT / "docs" / "server.md").read_text(encoding="utf-8"))
    assert shown == routes
