#!/usr/bin/env python3
"""Figures of the code base with their bars: sizes, branches, circles of imports, constants, names, tests' reach.

scripts/structure.py [--check] [--list [PART]]

--check ends with exit code 1 where a figure is over its bar; --list names the places behind the figures, or behind
those whose name contains PART. A bar that is above its aim is lowered as the code comes nearer to the aim.

Branches are McCabe's number: 1 for a function, and 1 for each if, elif, conditional expression, loop, except, case of a
match, and loop or condition of a comprehension; `and` and `or` count 1 for each further operand. A circle consists of
files that import one another at their top level; imports inside functions and for type checking alone do not count.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("app", "models", "cache", "configs")
TUNED = ("app/slam/", "app/mesh/", "app/result/verdict.py")
"""Where constants are tuned, so that they belong into dataclasses of options."""
PACKAGE = "stream_recon."
SMALL, MANY_PARAMETERS = 40, 7
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")
OPTIONS = ("typer.Option", "option", "shared.option")
"""Calls that declare an option of the command line."""
Function = ast.FunctionDef | ast.AsyncFunctionDef
Place = tuple[int, str]
"""A figure and where it is."""


@dataclass(frozen=True)
class Measure:
    """What is measured, and how much of it there may be."""

    title: str
    places: Callable[[], Iterable[Place]]
    bar: int
    aim: int | None = None
    """Where the bar has still to go; None: it is there."""
    is_largest: bool = False
    """Whether the largest place counts, not the sum of all."""


@cache
def python_files(*folders: str) -> tuple[Path, ...]:
    return tuple(path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def bytes_of(name: str) -> list[Place]:
    """Size of a page."""
    return [((ROOT / name).stat().st_size, name)]


def line_counts(*folders: str) -> list[Place]:
    """Lines of each Python file, comments and blank ones included."""
    return [(lines(path), name_of(path)) for path in python_files(*folders)]


def small_files() -> Iterator[Place]:
    """Files of the product of at most `SMALL` lines; an __init__.py does not count."""
    for path in python_files(*PRODUCT):
        if path.name != "__init__.py" and lines(path) <= SMALL:
            yield 1, f"{name_of(path)}: {lines(path)} lines"


def functions(path: Path) -> Iterator[Function]:
    return (node for node in nodes(path) if isinstance(node, Function))


def own_nodes(function: Function) -> Iterator[ast.AST]:
    """Nodes of a function's body, without those of functions and classes inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def branches(function: Function) -> int:
    """McCabe's number."""
    count = 1
    for node in own_nodes(function):
        if isinstance(
            node, ast.If | ast.IfExp | ast.For | ast.AsyncFor | ast.While | ast.ExceptHandler | ast.match_case
        ):
            count += 1
        elif isinstance(node, ast.comprehension):
            count += 1 + len(node.ifs)
        elif isinstance(node, ast.BoolOp):
            count += len(node.values) - 1
    return count


def branch_counts() -> Iterator[Place]:
    """McCabe's number of each function of the product outside kernels."""
    for path in python_files(*PRODUCT):
        if "kernels" not in path.parts:
            yield from ((branches(f), f"{name_of(path)}:{f.lineno} {f.name}") for f in functions(path))


def is_kernel(function: Function) -> bool:
    """Whether Triton compiles a function: its arguments are pointers and strides."""
    return any("jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def wide_functions() -> Iterator[Place]:
    """Functions of many parameters, without self and cls, outside kernels and the command line."""
    for path in python_files(*PRODUCT):
        if name_of(path).startswith("app/cli/"):
            continue
        for function in functions(path):
            if is_kernel(function) or "kernels" in path.parts:
                continue
            a = function.args
            names = [each.arg for each in (*a.posonlyargs, *a.args, *a.kwonlyargs) if each.arg not in ("self", "cls")]
            if len(names) >= MANY_PARAMETERS:
                yield 1, f"{name_of(path)}:{function.lineno} {function.name}: {len(names)}"


def is_of_project(node: ast.ImportFrom) -> bool:
    return (node.module or "").startswith(PACKAGE)


def imported(path: Path) -> Iterator[ast.ImportFrom]:
    """Imports of the project that are run with the file."""
    for statement in tree(path).body:
        for node in _run_with_the_file(statement):
            if isinstance(node, ast.ImportFrom) and is_of_project(node):
                yield node


def _run_with_the_file(node: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    yield node
    if isinstance(node, ast.If | ast.Try):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from _run_with_the_file(child)


def import_counts() -> Iterator[Place]:
    """Modules of the project that each file imports, also inside functions and for type checking."""
    for path in python_files(*PRODUCT):
        every = (node for node in nodes(path) if isinstance(node, ast.ImportFrom))
        yield len({node.module for node in every if is_of_project(node)}), name_of(path)


def files_of(node: ast.ImportFrom, known: Collection[str]) -> Iterator[str]:
    """Files that an import runs: a module, or modules of a package."""
    base = (node.module or "").removeprefix(PACKAGE).replace(".", "/")
    for alias in node.names:
        candidates = (f"{base}/{alias.name}.py", f"{base}.py", f"{base}/__init__.py")
        yield from [name for name in candidates if name in known][:1]


def circles() -> Iterator[Place]:
    """Files that reach themselves by top-level imports."""
    known = {name_of(path) for path in python_files(*PRODUCT)}
    graph = {
        name_of(path): {name for node in imported(path) for name in files_of(node, known)}
        for path in python_files(*PRODUCT)
    }
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            name = waiting.pop()
            if name not in seen:
                seen.add(name)
                waiting += graph[name]
        if start in seen:
            yield 1, start


def is_number(node: ast.expr | None) -> bool:
    """Whether an expression is of numbers alone, or a tuple of such."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float) and not isinstance(node.value, bool)
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(map(is_number, node.elts))
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.BinOp) and is_number(node.left) and is_number(node.right)


def tuned_constants() -> Iterator[Place]:
    """Module constants of `TUNED` that are numbers or tuples of numbers."""
    for path in python_files("app"):
        if not name_of(path).startswith(TUNED):
            continue
        for node in tree(path).body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
                yield from ((1, f"{name_of(path)}:{node.lineno} {name}") for name in names if CONSTANT.fullmatch(name))


def tests_with(is_found: Callable[[ast.AST], bool]) -> Iterator[Place]:
    """Functions of tests, helpers and fixtures included, in which something occurs."""
    for path in python_files("tests"):
        for function in functions(path):
            if any(map(is_found, own_nodes(function))):
                yield 1, f"{name_of(path)}:{function.lineno} {function.name}"


def patches_constant(node: ast.AST) -> bool:
    """Whether a call sets an attribute whose name is that of a constant, as monkeypatch and mock.patch do."""
    if not isinstance(node, ast.Call) or not re.search(r"\b(setattr|patch(\.object)?)$", ast.unparse(node.func)):
        return False
    named = [each.value for each in node.args[:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return any(CONSTANT.fullmatch(name.rpartition(".")[2]) for name in named)


def reads_private(node: ast.AST) -> bool:
    """Whether an attribute with one leading underscore of another object than self is read or set."""
    if not isinstance(node, ast.Attribute) or not re.match(r"_[^_]", node.attr):
        return False
    return not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))


def repeated_classes() -> Iterator[Place]:
    """Names that several classes of the product have."""
    definitions: dict[str, list[str]] = defaultdict(list)
    for path in python_files(*PRODUCT):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                definitions[node.name].append(f"{name_of(path)}:{node.lineno}")
    return ((1, f"{name}: {', '.join(where)}") for name, where in sorted(definitions.items()) if len(where) > 1)


def unclear_limits() -> Iterator[Place]:
    """Constants that are called MOST_ or LEAST_ in place of MAX_ or MIN_."""
    for path in python_files(*PRODUCT):
        names = Counter(node.id for node in nodes(path) if isinstance(node, ast.Name))
        yield from ((1, f"{name_of(path)} {name}") for name in names if re.match(r"_?(MOST|LEAST)_", name))


def command_line_options() -> Iterator[Place]:
    """Options that the command line declares; one that several commands share counts once."""
    for path in python_files("app/cli"):
        calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
        yield sum(ast.unparse(call.func) in OPTIONS for call in calls), name_of(path)


def unchecked_scripts() -> Iterator[Place]:
    """Python scripts without a suffix, which ruff and mypy do not see."""
    for path in (ROOT / "scripts").rglob("*"):
        if path.is_file() and not path.suffix and "python" in path.read_text().partition("\n")[0]:
            yield 1, name_of(path)


MEASURES = (
    Measure("README.md, bytes", lambda: bytes_of("README.md"), 12_288),
    Measure("model card, bytes", lambda: bytes_of("models/README.md"), 12_288),
    Measure("lines of Python in the product", lambda: line_counts(*PRODUCT), 78_995, 66_500),
    Measure("lines of Python in scripts", lambda: line_counts("scripts"), 15_737, 15_500),
    Measure("lines of the longest file", lambda: line_counts(*PRODUCT), 408, 400, is_largest=True),
    Measure(f"files of {SMALL} lines or fewer", small_files, 6),
    Measure("branches of one function", branch_counts, 15, is_largest=True),
    Measure(f"functions of {MANY_PARAMETERS} or more parameters", wide_functions, 13),
    Measure("project imports of one file", import_counts, 16, is_largest=True),
    Measure("files in circles of imports", circles, 0),
    Measure("tuned constants outside options", tuned_constants, 60),
    Measure("class names used twice", repeated_classes, 0),
    Measure("constants called MOST_ or LEAST_", unclear_limits, 0),
    Measure("options of the command line", command_line_options, 104),
    Measure("tests that patch constants", lambda: tests_with(patches_constant), 10),
    Measure("tests that read private attributes", lambda: tests_with(reads_private), 40),
    Measure("Python scripts that ruff and mypy do not see", unchecked_scripts, 0),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit code 1 where a figure is over its bar")
    parser.add_argument("--list", metavar="PART", nargs="?", const="", help="also the places behind the figures")
    options = parser.parse_args()
    over = []
    print("| measure | figure | bar | aim |\n|---|---|---|---|")
    for measure in MEASURES:
        places = sorted(measure.places(), key=lambda place: (-place[0], place[1]))
        counts = [count for count, _ in places]
        figure = max(counts, default=0) if measure.is_largest else sum(counts)
        print(f"| {measure.title} | {figure:,} | {measure.bar:,} | {'' if measure.aim is None else measure.aim} |")
        is_over = figure > measure.bar
        over += [f"{measure.title}: {figure:,}, and the bar is {measure.bar:,}"] * is_over
        if options.list is not None and options.list in measure.title:
            least = measure.aim if measure.aim is not None else measure.bar
            shown = [place for place in places if place[0] > least] if measure.is_largest else places
            for count, place in shown:
                print(f"    {place}" if count == 1 else f"    {place}: {count}")
    if over and options.check:
        print("\n".join(("structure: over the bar:", *over, "name the places: scripts/structure.py --list PART")))
    return 1 if over and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
