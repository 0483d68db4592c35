"""Hooks of mkdocs: documents of all folders as pages, generated reference pages, and links that work on the site.

Documents link to one another by their places in the repository, so that they can be read there, too. On the site a link
to a document leads to its page, and one to any other file to the repository, or it becomes plain text.
"""

import ast
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "index.md": "README.md",
    "batch.md": "app/batch/README.md",
    "cache.md": "cache/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "export.md": "app/export/README.md",
    "figures.md": "scripts/README.md",
    "how-it-works.md": "app/README.md",
    "localization.md": "app/localization/README.md",
    "mesh.md": "app/mesh/README.md",
    "model-card.md": "models/README.md",
    "publishing.md": "app/publishing/README.md",
    "result.md": "app/result/README.md",
    "security.md": "SECURITY.md",
    "slam.md": "app/slam/README.md",
    "splats.md": "app/splat/README.md",
    "training.md": "scripts/training/README.md",
    "viewer.md": "app/viewer/README.md",
    "web-page.md": "app/web/README.md",
}
"""Pages of the site that are documents from elsewhere in the repository."""
FENCED = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)\s*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the documents from outside ``docs/``."""
    from mkdocs.structure.files import File

    for name, origin in PAGES.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / origin)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A page with its generated parts and the site's links."""
    text = markdown.replace("<!-- generated: commands -->", commands() if page.file.src_uri == "commands.md" else "")
    text = text.replace("<!-- generated: names -->", python_names() if page.file.src_uri == "python.md" else "")
    return site_text(text, page.file.src_uri, config["repo_url"] or "")


def site_text(text: str, page: str, repository: str = "") -> str:
    """Text of a document as the page ``page`` shows it. ``repository``: address that other files are linked to."""
    parts, end = [], 0
    for code in FENCED.finditer(text):
        parts += [_with_links(text[end : code.start()], page, repository), code[0]]
        end = code.end()
    return "".join([*parts, _with_links(text[end:], page, repository)])


def _with_links(text: str, page: str, repository: str) -> str:
    # Python-Markdown shows a backslash in code; a bar in code does not end a cell.
    text = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), text)
    return LINK.sub(lambda link: _link(link, page, repository), text)


def _link(link: "re.Match[str]", page: str, repository: str) -> str:
    mark, label, target = link.groups()
    if re.match(r"[a-z]+:|#", target):
        return link[0]
    path, hash_mark, anchor = target.partition("#")
    origin = PAGES.get(page, f"docs/{page}")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))
    shown = {origin: name for name, origin in PAGES.items()}.get(path)
    if shown is None and path.startswith("docs/"):
        shown = path.removeprefix("docs/")
    if shown is not None:
        relative = posixpath.relpath(shown, posixpath.dirname(page) or ".")
        return f"{mark}[{label}]({relative}{hash_mark}{anchor})"
    return f"{mark}[{label}]({repository.rstrip('/')}/blob/main/{path})" if repository else label


def python_names() -> str:
    """mkdocstrings' marks for all public names: functions, classes, then errors."""
    init = ast.parse((ROOT / ".package" / "stream_recon" / "__init__.py").read_text(encoding="utf-8"))
    public = next(
        ast.literal_eval(node.value)
        for node in init.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    )
    names = [name for name in public if not name.startswith("_")]
    errors = [name for name in names if name.endswith("Error") or name == "Cancelled"]
    functions = [name for name in names if name.islower()]
    classes = [name for name in names if name not in (*errors, *functions)]
    sections = {"Functions": functions, "Classes": classes, "Errors": errors}
    return "\n\n".join(
        "\n\n".join([f"## {title}", *(f"::: stream_recon.{name}" for name in members)])
        for title, members in sections.items()
    )


def commands() -> str:
    """All commands with their arguments and options, as tables, from the program's own help."""
    import typer

    from stream_recon.app.cli.main import app

    group: Any = typer.main.get_command(app)
    return "\n\n".join([group.epilog, *(_command(word, command) for word, command in group.commands.items())])


def _command(word: str, command: Any) -> str:
    context = command.context_class(command, info_name=f"stream-recon {word}")
    panels: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and parameter.name != "help":
            is_argument = parameter.param_type_name == "argument"
            panel = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or "Options"
            panels.setdefault(panel, []).append(record)
    usage = command.get_usage(context).removeprefix("Usage: ")
    tables = [_table(panel, rows) for panel, rows in panels.items()]
    return "\n\n".join([f"## {word}", command.help or "", f"```text\n{usage}\n```", *tables])


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"| {title} | |", "|---|---|"]
    for name, text in rows:
        plain = text.replace("\\[", "[").replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{name}` | {plain} |")
    return "\n".join(lines)
