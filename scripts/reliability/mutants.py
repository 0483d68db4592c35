#!/usr/bin/env python3
"""Change the program in one place, run the nearest tests, and see whether they notice; again and again.

    scripts/reliability/mutants.py [--count 80] [--seed 1] [--jobs 2] [--only app/web] [--seconds 900]

A function of app, cache or models is drawn, long ones more often, and a change in it. Up to six files of tests run in a
copy of the repository: the mirrored ones, then those with the fewest imports between them and the file; no slow tests,
none for GPUs or browsers, and none that fail without the change, too. One whose tests take more than the seconds is
killed. The exit code is 1 if a mutant survives.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from structure import PRODUCT, files_of, functions, name_of, nodes, python_files  # noqa: E402

LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "site", "*_cache", "shared", "dist")
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-xq", "-n0", "-rfE", "-m", "not (gpu or slow or browser)")
# Calls that say something or wait.
FOR_PEOPLE = r"(^|\.)(log|logger|console|warnings|time)\.\w+$|(^|[._])(print|echo|say|tell|warn|sleep|wait|join)$"
SYMMETRIC = r"(^|\.)(min|max|maximum|minimum|isinstance|issubclass|hypot|allclose|array_equal|gcd|dot)$"
OTHERS = {
    "Lt": "GtE LtE", "LtE": "Gt Lt", "Gt": "LtE GtE", "GtE": "Lt Gt", "Eq": "NotEq", "NotEq": "Eq", "In": "NotIn",
    "NotIn": "In", "And": "Or", "Or": "And", "Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult",
    "FloorDiv": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd", "LShift": "RShift", "RShift": "LShift",
}  # fmt: skip
MAX_TESTS, TINY = 6, 1e-4  # smaller numbers keep quotients finite
Mutant = tuple[Path, str, str, bytes]  # a file, a function in it, a line about the change, the file with it


def changes(node: ast.AST) -> Iterator[tuple[Any, ast.AST]]:
    """Nodes and what they may become; no messages, types, assertions, `strict=`, and no inner functions."""
    operator = getattr(node, "op", None) or getattr(node, "ops", [None])[0]
    others = [getattr(ast, name)() for name in OTHERS.get(type(operator).__name__, "").split()]
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.FunctionDef() | ast.ClassDef() | ast.keyword(arg="strict"):
            return
        case ast.Call(func=func) | ast.Expr(ast.Call(func=func)) if re.search(FOR_PEOPLE, ast.unparse(func)):
            return
        case ast.Compare(left=left, ops=[_, *ops], comparators=rest):
            yield from ((node, ast.Compare(left, [other, *ops], rest)) for other in others)
        case ast.BinOp(left=left, op=op, right=right):
            yield from ((node, ast.BinOp(left, other, right)) for other in others)
            yield from [(node, ast.BinOp(right, op, left))] * isinstance(op, ast.MatMult)
        case ast.BoolOp(values=values):
            yield from ((node, ast.BoolOp(other, values)) for other in others)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            yield node, operand
        case ast.Constant(value=bool() as value):
            yield node, ast.Constant(not value)
        case ast.Constant(value=int() | float() as value) if not 0 < abs(value) < TINY:
            yield node, ast.Constant(value + 1 if isinstance(value, int) else 2 * value or 1.0)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, ast.UnaryOp(ast.Not(), test)
        case ast.Call(func=func, args=[a, b, *rest]) if not re.search(SYMMETRIC, ast.unparse(func)):
            yield node, ast.Call(func, [b, a, *rest], node.keywords)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield node, ast.Return(ast.Constant(None))
        case ast.Assign([ast.Attribute() | ast.Subscript()]) | ast.Expr(ast.Call()) | ast.AugAssign() | ast.Delete():
            yield node, ast.Pass()
        case ast.Raise() | ast.Continue() | ast.Break():
            yield node, ast.Pass()
    for child in () if isinstance(node, ast.Raise) else ast.iter_child_nodes(node):
        if child is not getattr(node, "annotation", None):
            yield from changes(child)


def mutants(only: str, count: int, draw: random.Random) -> Iterator[Mutant]:
    chosen = [(path, each) for path in python_files("app", "cache", "models") for each in functions(path)]
    chosen = [(path, each) for path, each in chosen if each.name != "__repr__" and name_of(path).startswith(only)]
    weights = [sum(isinstance(node, ast.stmt) for node in ast.walk(each)) for _, each in chosen]
    while count:
        path, function = draw.choices(chosen, weights)[0]
        found = [change for statement in function.body for change in changes(statement)]
        if found:
            kind = draw.choice(sorted({type(old).__name__ for old, _ in found}))
            old, new = draw.choice([change for change in found if type(change[0]).__name__ == kind])
            rows, text = path.read_bytes().splitlines(keepends=True), ast.unparse(new)
            line = f"{name_of(path)}:{old.lineno} {function.name}: {ast.unparse(old)}  ->  {text}"
            text = f"({text})" if isinstance(old, ast.expr) else text
            rest = rows[old.end_lineno - 1][old.end_col_offset :]
            rows[old.lineno - 1 : old.end_lineno] = [rows[old.lineno - 1][: old.col_offset], text.encode(), rest]
            yield path, function.name, line, b"".join(rows)
            count -= 1


@cache
def importers() -> dict[str, set[str]]:
    """The files that import each file of the product and the tests, anywhere in them."""
    found = {name_of(path): set[str]() for path in python_files(*PRODUCT, "tests")}
    for path in python_files(*PRODUCT, "tests"):
        imports = (node for node in nodes(path) if isinstance(node, ast.ImportFrom))
        for other in {file for node in imports for file in files_of(node, found)}:
            found[other].add(name_of(path))
    return found


def nearest_tests(path: Path, function: str) -> list[str]:
    distance, waiting = {name_of(path): 0}, [name_of(path)]
    for name in waiting:
        new = importers()[name] - distance.keys()
        distance |= dict.fromkeys(new, distance[name] + 1)
        waiting += sorted(new)

    def order(name: str) -> tuple[object, ...]:
        folder, text = f"tests/{name_of(path.parent)}/", (ROOT / name).read_text()
        is_own = re.match(f"{folder}test_{path.stem.strip('_')}[_.]", name) is not None
        return not is_own, distance[name], function not in text, not name.startswith(folder), len(text), name

    tests = (name for name in distance if "/test_" in name and not re.search("_(gpu|browser)", name))
    return sorted(tests, key=order)[:MAX_TESTS]


def run(root: Path, scratch: str, tests: list[str], seconds: float) -> tuple[int, list[str]]:
    """Exit code of pytest in a copy of the repository, and what failed."""
    own = {"PYTHONPATH": f"{root}/.package", "TMPDIR": scratch, "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["timeout", "--signal=KILL", str(seconds), sys.executable, *PYTEST, *tests]
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run(words, cwd=root, env=os.environ | own, stdout=out, stderr=out)
        out.seek(0)
        return done.returncode, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", out.read(), re.MULTILINE)


def verdict(whole: Path, mutant: Mutant, seconds: float) -> tuple[str, list[str]]:
    """How a mutant ends, and the tests that say so. ``whole``: a copy of the repository without a change."""
    path, function, _, content = mutant
    tests, left_out = nearest_tests(path, function), list[str]()
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as scratch:
        root = Path(shutil.copytree(whole, Path(scratch) / "copy", symlinks=True, copy_function=os.link))
        (root / name_of(path)).unlink()
        (root / name_of(path)).write_bytes(content)
        while tests:
            code, failed = run(root, scratch, [*tests, *left_out], seconds)
            if code in (0, 5):
                break
            if run(whole, scratch, [*(failed or tests), *left_out], seconds)[0] == 0:
                return "killed" if failed else "timed out", failed or tests
            if not failed:
                return "unknown", tests
            tests = [name for name in tests if name not in failed]
            left_out += [f"--deselect={name}" for name in failed]
    return "SURVIVED", tests


def main() -> int:
    """Print how each mutant ends, and how many were killed; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("count", 80), ("seed", 1), ("jobs", 2), ("only", ""), ("seconds", 900)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    ends = Counter[str]()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(options.jobs) as pool:
        whole = Path(shutil.copytree(ROOT, Path(scratch) / "whole", symlinks=True, ignore=LEFT_OUT))
        subprocess.run([sys.executable, "-m", "compileall", "-q", *PRODUCT, "tests"], cwd=whole, check=True)
        chosen = mutants(options.only, options.count, random.Random(options.seed))
        pending = {pool.submit(verdict, whole, mutant, options.seconds): mutant[2] for mutant in chosen}
        for done in as_completed(pending):
            end, tests = done.result()
            ends[end] += 1
            print(f"{end:9} {pending[done]}  [{' '.join(tests)}]", flush=True)
    killed, known = ends["killed"] + ends["timed out"], options.count - ends["unknown"]
    print(f"seed {options.seed}: {dict(ends)}; {killed} of {known} killed")
    return int(killed < known)


if __name__ == "__main__":
    sys.exit(main())
