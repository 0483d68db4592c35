"""The web page around viser's client: its title, a folded panel on phones, pictures of the view, fewer notices."""

import gzip
import html
import re

MARK = "stream-recon-page"
"""Id of the added script."""
PICTURE_LABEL = "Picture of this view"
"""Label of the button whose click the page itself answers."""
SCRIPT = """
(() => {
  // Notices of the client library that say nothing about the reconstruction.
  const hidden = ["Software WebGL rendering detected", "Could not detect browser version"];
  let folded = false;
  const tidy = () => {
    for (const note of document.querySelectorAll(".mantine-Notification-root"))
      if (hidden.some(text => note.textContent.includes(text))) note.style.display = "none";
    if (!folded && matchMedia("(max-width: 36em)").matches) {
      const handle = document.querySelector('div[style*="cursor: pointer"][style*="height: 3.5em"]');
      if (handle) { folded = true; handle.click(); }
    }
    if (document.title !== TITLE) document.title = TITLE;
  };
  new MutationObserver(tidy).observe(document, {childList: true, subtree: true});
  document.addEventListener("click", event => {
    const button = event.target.closest && event.target.closest("button");
    if (!button || button.textContent.trim() !== PICTURE) return;
    const scene = [...document.querySelectorAll("canvas")].sort((a, b) => b.width - a.width)[0];
    const copy = document.createElement("canvas");
    copy.width = scene.width; copy.height = scene.height;
    const context = copy.getContext("2d");
    context.fillStyle = getComputedStyle(document.body).backgroundColor;
    context.fillRect(0, 0, copy.width, copy.height);
    context.drawImage(scene, 0, 0);
    copy.toBlob(blob => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(blob);
      link.download = TITLE.replace(/[^\\w.-]+/g, "-") + ".png";
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    }, "image/png");
  }, true);
})();
"""
"""Runs before the client. TITLE and PICTURE are replaced by strings."""


def with_page(text: str, title: str) -> str:
    """Viser's HTML page ``text`` with a title, and what this module adds."""
    # Only the head is searched: the rest has megabytes.
    end = text.index("<head>") + len("<head>")
    script = SCRIPT.replace("TITLE", _string(title)).replace("PICTURE", _string(PICTURE_LABEL))
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
