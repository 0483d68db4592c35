"""The web page around viser's client: title, a folded panel on phones, pictures, full screen, cuts, fewer notices."""

import gzip
import html
import re
from pathlib import Path

MARK = "stream-recon-page"
"""Id of the added script."""
PICTURE_LABEL, FULL_SCREEN_LABEL = "Picture of this view", "Full screen"
"""Labels of the buttons whose clicks the page itself answers."""
SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
"""Runs before the client."""


def with_page(text: str, title: str) -> str:
    """Viser's HTML page ``text`` with a title, and what this module adds."""
    # Only the head is searched: the rest has megabytes.
    end = text.index("<head>") + len("<head>")
    strings = {"TITLE": title, "PICTURE": PICTURE_LABEL, "FULL_SCREEN": FULL_SCREEN_LABEL}
    script = re.sub(r"\b(?:TITLE|PICTURE|FULL_SCREEN)\b", lambda name: _string(strings[name[0]]), SCRIPT)
    added = f'<title>{html.escape(title)}</title><script id="{MARK}">{script}</script>'
    rest = re.sub(r"<title>[^<]*</title>", "", text[end:], count=1)
    return text[:end] + added + rest


class PageBody:
    """Bodies of responses with `with_page`, made once for each title."""

    def __init__(self) -> None:
        self.title = "stream-recon"
        self._made: dict[tuple[str, bool], bytes] = {}

    def body(self, original: bytes, *, zipped: bool) -> bytes:
        """The body for viser's one; ``zipped``: both are compressed by gzip."""
        key = self.title, zipped
        if key not in self._made:
            self._made = {k: v for k, v in self._made.items() if k[0] == self.title}
            text = (gzip.decompress(original) if zipped else original).decode()
            content = with_page(text, self.title).encode()
            self._made[key] = gzip.compress(content, 6) if zipped else content
        return self._made[key]


def _string(text: str) -> str:
    """A JavaScript string; no character of it ends the script."""
    return '"' + "".join(c if c.isalnum() or c in " .-_" else f"\\u{{{ord(c):x}}}" for c in text) + '"'
