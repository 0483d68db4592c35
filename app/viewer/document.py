"""The web page around viser's client: title, a folded panel on phones, pictures, full screen, cuts, fewer notices."""

import gzip
import html
import re
import secrets
from pathlib import Path

MARK = "stream-recon-page"
"""Id of the added script."""
PICTURE_LABEL, FULL_SCREEN_LABEL = "Picture of this view", "Full screen"
"""Labels of the buttons whose clicks the page itself answers."""
SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
"""Runs before the client."""
POLICY = (
    "default-src 'none'; script-src 'nonce-{nonce}' 'unsafe-eval' blob:; worker-src blob:; "
    "style-src 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; media-src blob: data:; "
    "connect-src 'self' {sockets} blob: data:; frame-ancestors 'self'; base-uri 'none'; form-action 'none'"
)
"""Content security policy of the page: it refuses scripts that text of a result brings, and foreign addresses. The
client's own compiled parts need ``unsafe-eval``."""
SCRIPT_TAG = re.compile(r"<script(?=[\s>])")


def markup(text: str) -> str:
    """HTML of plain text, whose lines are kept; words between pairs of ``**`` are bold. Nothing else is markup."""
    escaped = html.escape(text).replace("\n", "<br>")
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escaped)


def with_page(text: str, title: str, nonce: str = "") -> str:
    """Viser's HTML page ``text`` with a title, and what this module adds.

    ``nonce``: marks the page's own scripts for `POLICY`; empty: there is no policy, as in a file.
    """
    # Only the head is searched: the rest has megabytes.
    end = text.index("<head>") + len("<head>")
    strings = {"TITLE": title, "PICTURE": PICTURE_LABEL, "FULL_SCREEN": FULL_SCREEN_LABEL}
    script = re.sub(r"\b(?:TITLE|PICTURE|FULL_SCREEN)\b", lambda name: _string(strings[name[0]]), SCRIPT)
    added = f'<title>{html.escape(title)}</title><script id="{MARK}">{script}</script>'
    body = re.sub(r"<title>[^<]*</title>", "", text[end:], count=1)
    page = text[:end] + added + body
    return SCRIPT_TAG.sub(f'<script nonce="{nonce}"', page) if nonce else page


class PageBody:
    """Bodies of responses with `with_page`, made once for each title."""

    def __init__(self) -> None:
        self.title = "stream-recon"
        self._nonce = secrets.token_urlsafe(16)
        self._made: dict[tuple[str, bool], bytes] = {}

    def policy(self, sockets: str) -> str:
        """The page's content security policy; ``sockets``: web sockets of its own address, see `own_sockets`."""
        return POLICY.format(nonce=self._nonce, sockets=sockets)

    def body(self, original: bytes, *, zipped: bool) -> bytes:
        """The body for viser's one; ``zipped``: both are compressed by gzip."""
        key = self.title, zipped
        if key not in self._made:
            self._made = {k: v for k, v in self._made.items() if k[0] == self.title}
            text = (gzip.decompress(original) if zipped else original).decode()
            content = with_page(text, self.title, self._nonce).encode()
            self._made[key] = gzip.compress(content, 6) if zipped else content
        return self._made[key]


def _string(text: str) -> str:
    """A JavaScript string; no character of it ends the script."""
    return '"' + "".join(c if c.isalnum() or c in " .-_" else f"\\u{{{ord(c):x}}}" for c in text) + '"'
