#!/usr/bin/env python3
"""Print the structure figures of the code base: sizes, small files, repeated class names, imports and parameters.

scripts/structure.py [--list]    with --list also the files, classes and functions behind each figure
"""

import argparse
import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("app", "cache", "configs", "models")
SMALL = 40
"""Lines up to which a file counts as small."""
MANY_PARAMETERS = 7


def wheel_files() -> list[Path]:
    """Python files that are installed."""
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Number of parameters without self and cls."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def is_counted(path: Path) -> bool:
    """Whether functions of this file count: kernels and the command line have many parameters by their nature."""
    parts = path.relative_to(ROOT).parts
    return "kernels" not in parts and parts[:2] != ("app", "cli")


def command_line_options(path: Path) -> int:
    """Options that the command line declares; one that several commands share counts once."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return len([call for call in calls if ast.unparse(call.func) in ("typer.Option", "option", "shared.option")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    listed = parser.parse_args().list
    files = wheel_files()
    classes: dict[str, list[str]] = defaultdict(list)
    imports: dict[str, int] = {}
    many: list[str] = []
    for path in files:
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text())
        modules = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
        imports[name] = len([module for module in modules if module.startswith("stream_recon")])
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_counted(path):
                count = parameters(node)
                if count >= MANY_PARAMETERS:
                    many.append(f"{name}:{node.name} {count}")
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    small = [name for name, count in lines.items() if count <= SMALL and not name.endswith("__init__.py")]
    repeated = [f"{name}: {', '.join(where)}" for name, where in sorted(classes.items()) if len(where) > 1]
    widest = max(imports, key=lambda name: imports[name])
    scripts = [p for p in (ROOT / "scripts").rglob("*") if p.is_file() and not p.suffix]
    unchecked = [p.name for p in scripts if "python" in p.read_text().splitlines()[0]]
    rows: list[tuple[str, object, list[str]]] = [
        ("README.md, bytes", (ROOT / "README.md").stat().st_size, []),
        ("model card, bytes", (ROOT / "models" / "README.md").stat().st_size, []),
        ("Python files in the wheel", len(files), []),
        ("lines in the wheel", sum(lines.values()), []),
        (f"files of {SMALL} lines or fewer", len(small), small),
        ("class names used twice or more", len(repeated), repeated),
        ("project imports of one file", f"{imports[widest]} ({widest})", []),
        (f"functions of {MANY_PARAMETERS} and more parameters", len(many), many),
        ("options of the command line", sum(map(command_line_options, (ROOT / "app" / "cli").glob("*.py"))), []),
        ("models/network.py, lines", lines["models/network.py"], []),
        ("Python scripts that ruff and mypy do not see", len(unchecked), unchecked),
    ]
    for title, figure, behind in rows:
        print(f"| {title} | {figure} |")
        for entry in behind if listed else ():
            print(f"    {entry}")


if __name__ == "__main__":
    main()
