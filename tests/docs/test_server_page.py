"""The page on the server's interface names the routes that there are."""

import re

from tests.docs.documents import ROOT


def paths(pattern: str, text: str) -> set[str]:
    """Paths of the interface, with ID for each part that varies."""
    return {re.sub(r"\{[^}]*\}|\b[A-Z]+\b", "ID", path) for path in re.findall(pattern, text)}


def test_the_page_names_each_route_of_the_interface() -> None:
    routes = paths(r'Route\("(/api/[^"]*)"', (ROOT / "app" / "web" / "app.py").read_text(encoding="utf-8"))
    shown = paths(r"(?<=[A-Z] )/api/[\w/]+", (ROOT / "docs" / "server.md").read_text(encoding="utf-8"))
    actions = {
        path for path in shown if re.fullmatch(r"/api/(jobs|results)/ID/(stop|resume|refine|export|rename)", path)
    }
    assert len(actions) == 5
    assert shown - actions == routes - {"/api/jobs/ID/ID", "/api/results/ID/ID"}
