import gzip
import re
from pathlib import Path

from stream_recon.app.viewer.document import MARK, PageBody, markup, with_page

PAGE = "<!doctype html><html><head><meta charset='utf-8'><title>Viser</title></head><body>\u00e9</body></html>"


def test_the_title_is_text_and_ends_no_script() -> None:
    text = with_page(PAGE, '</script><b>"kitchen\\')
    assert text.count("<title>") == 1 and "<title>&lt;/script&gt;&lt;b&gt;&quot;kitchen\\</title>" in text
    assert text.count("</script>") == 1 and f'id="{MARK}"' in text
    assert "<body>\u00e9</body>" in text


def test_bodies_follow_the_title_and_the_encoding() -> None:
    page = PageBody()
    plain = page.body(PAGE.encode(), zipped=False)
    assert gzip.decompress(page.body(gzip.compress(PAGE.encode()), zipped=True)) == plain
    page.title = "kitchen"
    assert b"<title>kitchen</title>" in page.body(PAGE.encode(), zipped=False)


def test_only_the_pages_own_scripts_are_named_in_its_policy() -> None:
    page = PageBody()
    body = page.body(PAGE.replace("<head>", "<head><script>let client</script>").encode(), zipped=False).decode()
    nonce = re.findall(r"'nonce-([^']+)'", page.policy("ws://here"))[0]
    assert body.count(f'<script nonce="{nonce}"') == 2 == body.count("<script")
    assert f"'nonce-{nonce}'" not in PageBody().policy("") and "unsafe-inline'; script" not in page.policy("")


def test_plain_text_becomes_no_markup_but_bold_and_lines() -> None:
    assert markup('a <b onclick="x">\n**c & d**') == "a &lt;b onclick=&quot;x&quot;&gt;<br><b>c &amp; d</b>"


def test_nothing_is_shown_as_markdown() -> None:
    """Viser's Markdown passes HTML on."""
    app = Path(__file__).resolve().parents[3] / "app"
    assert not [path for path in app.rglob("*.py") if "add_markdown" in path.read_text()]
