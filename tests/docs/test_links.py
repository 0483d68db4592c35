"""Documents link to files and headings that exist."""

import re
from pathlib import Path

from tests.docs.documents import FENCED, INLINE, documents, name_of

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Names of a document's headings, as GitHub and the site make them."""
    headings = HEADING.findall(FENCED.sub("", path.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings() -> None:
    broken = []
    for path in documents():
        text = INLINE.sub("", FENCED.sub("", path.read_text(encoding="utf-8")))
        for link in LINK.findall(text):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            is_heading = not anchor or (target.suffix == ".md" and target.is_file() and anchor in anchors(target))
            if not (target.exists() and is_heading):
                broken.append(f"{name_of(path)}: {link}")
    assert not broken, "\n".join(broken)


def test_every_picture_is_shown() -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in documents())
    pictures = [path for path in (Path(__file__).parents[2] / "docs" / "pictures").iterdir()]
    assert [path.name for path in pictures if path.name not in texts] == []
