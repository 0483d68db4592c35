"""The site: its reference pages name all commands and public names, and its links lead to pages."""

import re

import site_hooks
import stream_recon
from stream_recon.app.cli.main import COMMANDS
from tests.docs.documents import ROOT, documents, name_of


def test_commands_page_has_each_command_with_its_options() -> None:
    page = site_hooks.commands()
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == list(COMMANDS)
    assert "| `--stride <int>` | Take every n-th frame. [default: 1] |" in re.sub(r"  +", " ", page)


def test_python_page_has_each_public_name() -> None:
    names = re.findall(r"^::: stream_recon\.(\w+)$", site_hooks.python_names(), re.MULTILINE)
    assert sorted(names) == sorted(name for name in stream_recon.__all__ if not name.startswith("_"))


def test_links_of_a_document_lead_to_pages_of_the_site() -> None:
    text = "[formats](../result/README.md#resume), ![room](../../docs/pictures/a.jpg), [code](grid.py), [web](https://x.org)"
    shown = site_hooks.site_text(text, "viewer.md")
    assert shown == "[formats](result.md#resume), ![room](pictures/a.jpg), code, [web](https://x.org)"
    linked = site_hooks.site_text("[code](grid.py)", "viewer.md", "https://host/owner/name")
    assert linked == "[code](https://host/owner/name/blob/main/app/viewer/grid.py)"
    assert site_hooks.site_text("[start](../start.md)", "tutorials/data-set.md") == "[start](../start.md)"


def test_code_keeps_its_text() -> None:
    code = "```bash\na [b](c.md) \\| d\n```\n"
    assert site_hooks.site_text(code, "viewer.md") == code


def test_every_document_of_the_site_exists_and_is_in_its_navigation() -> None:
    pages = {name_of(path).removeprefix("docs/") for path in documents() if name_of(path).startswith("docs/")}
    pages |= set(site_hooks.PAGES)
    assert all((ROOT / origin).is_file() for origin in site_hooks.PAGES.values())
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert sorted(re.findall(r"([\w/-]+\.md)", navigation)) == sorted(pages)
