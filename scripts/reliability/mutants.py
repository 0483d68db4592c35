#!/usr/bin/env python3
"""Change the program in one place, run the nearest tests, and see whether they notice; again and again.

    scripts/reliability/mutants.py [--count 80] [--seed 1] [--jobs 2] [--only app/web] [--seconds 900]

A function of app, cache or models is drawn, long ones more often, and a change in it. Files of tests are run once, with
marks in the product, to learn which test reaches which block of statements: the mirrored ones, then those with the
fewest imports between them and the file, until there are tests of a minute; what was learned stays in .pytest_cache/reach
(delete it after larger changes). These tests run with the change: no slow tests, none for GPUs or browsers, and none that
fail without it, too. One that takes more than the seconds is killed. The exit code is 1 if a mutant survives.

Left out is what changes nothing that a test could see: words of messages, `assert`, types, hints for speed, how long
something waits, `del` of a name, which of two signs a number of a continuous scale has at its very limit.
"""

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from structure import PRODUCT, Function, files_of, functions, is_kernel, name_of, nodes, own_nodes, python_files  # noqa: E402

LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "site", "*_cache", "shared", "dist")
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-q", "-n0", "-rfE", "-m", "not (gpu or slow or browser)")
# Calls that say something, wait, or change only how fast something goes.
FOR_PEOPLE = (
    r"(^|\.)(log|logger|console|warnings|time|gc)\.\w+$"
    r"|(^|[._])(print|echo|say|tell|warn|sleep|wait|join|empty_cache|synchronize|nice|set_num_threads)$"
)
HINTS = r"strict|flush|non_blocking|pin_memory|buffering|compresslevel|markup|soft_wrap|\w*timeout\w*"
# Whether such a number is less than a limit or equal to it makes no difference: it is never equal.
CONTINUOUS = r"\d\.\d|\de-\d|[a-z](_px|_m|_s|_deg|_rad)\b|(share|ratio|sigma|error)\w*\b|\.mean\(|norm\(|monotonic\("
SYMMETRIC = r"(^|\.)(min|max|maximum|minimum|isinstance|issubclass|hypot|allclose|array_equal|gcd|dot)$"
OTHERS = {
    "Lt": "GtE LtE", "LtE": "Gt Lt", "Gt": "LtE GtE", "GtE": "Lt Gt", "Eq": "NotEq", "NotEq": "Eq", "In": "NotIn",
    "NotIn": "In", "And": "Or", "Or": "And", "Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult",
    "FloorDiv": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd", "LShift": "RShift", "RShift": "LShift",
}  # fmt: skip
TINY = 1e-4  # smaller numbers keep quotients finite
MAX_TESTS, MAX_FILES, MAX_SECONDS = 6, 16, 60.0  # for a mutant; MAX_TESTS: files, in kernels
TIMED_OUT = 137
LISTS = ("body", "orelse", "finalbody")
KEPT = ROOT / ".pytest_cache" / "reach"
REACH = """
import os
out = os.open(os.environ.get("REACH", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
test, _, phase = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")
test = test if phase == "(call)" else test.partition("::")[0]
seen = set()


def reach(block):
    if block not in seen:
        seen.add(block)
        os.write(out, f"{block} {test}\\n".encode())


def begin(name):
    global test
    test = name
    seen.clear()


def pytest_collectstart(collector):
    begin(collector.nodeid)


def pytest_runtest_logstart(nodeid):  # what fixtures reach counts for all tests of a file
    begin(nodeid.partition("::")[0])


def pytest_runtest_call(item):
    begin(item.nodeid)


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed:
        os.write(out, f"+{report.duration:.3f} {report.nodeid}\\n".encode())
"""
"""A module that writes which test reaches which block, as a plugin of pytest, and in programs that tests start."""
Mutant = tuple[Path, str, str, str, bytes]  # file, function, block in it, line about the change, the file with it


def changes(node: ast.AST) -> Iterator[tuple[Any, ast.AST]]:
    """Nodes and what they may become; no inner functions, and nothing that no test could see (see the top)."""
    operator = getattr(node, "op", None) or getattr(node, "ops", [None])[0]
    others = [getattr(ast, name)() for name in OTHERS.get(type(operator).__name__, "").split()]
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.FunctionDef() | ast.ClassDef() | ast.Delete([ast.Name()]):
            return
        case ast.keyword(arg=str(name)) if re.fullmatch(HINTS, name):
            return
        case ast.Call(func=func) | ast.Expr(ast.Call(func=func)) if re.search(FOR_PEOPLE, ast.unparse(func)):
            return
        case ast.Compare(left=left, ops=[_, *ops], comparators=rest):
            others = others[:1] if re.search(CONTINUOUS, ast.unparse(node)) else others
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
            yield path, function.name, block_of(path, function, old), line, b"".join(rows)
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


def nearest_files(path: Path, function: str) -> list[str]:
    """Files of tests: the mirrored ones, then those with the fewest imports between them and a file."""
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
    return sorted(tests, key=order)


def blocks(function: Function) -> list[list[ast.stmt]]:
    """Lists of statements in a function, without those of functions inside it, and without its docstring."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    is_empty = not body or ast.unparse(body[0]) == "..."
    found = [] if is_empty or is_kernel(function) else [body]
    for node in own_nodes(function) if found else ():
        each = [] if isinstance(node, Function | ast.ClassDef) else [getattr(node, name, None) for name in LISTS]
        found += [part for part in each if isinstance(part, list) and part and not is_elif(node, part)]
    return found


def is_elif(node: ast.AST, part: list[ast.stmt]) -> bool:
    return isinstance(node, ast.If) and part is node.orelse and part[0].col_offset == node.col_offset


def first_line(statement: ast.stmt) -> int:
    return min([statement.lineno, *(each.lineno for each in getattr(statement, "decorator_list", []))])


def block_of(path: Path, function: Function, node: ast.AST) -> str:
    """The name of the innermost block that a node of a function is in; "" in kernels."""
    lines = [(first_line(each[0]), number, each) for number, each in enumerate(blocks(function))]
    inside = [(line, number) for line, number, each in lines if line <= node.lineno <= each[-1].end_lineno]
    return f"{name_of(path)}:{function.name}:{max(inside)[1]}" if inside else ""


def mark_blocks(root: Path) -> None:
    """Have each block of the product, in a copy of the repository, say that it is reached."""
    for path in python_files(*PRODUCT):
        rows = path.read_text().splitlines(keepends=True)
        marks = [
            (first_line(each[0]) - 1, each[0].col_offset, f"{name_of(path)}:{function.name}:{number}")
            for function in functions(path)
            for number, each in enumerate(blocks(function))
        ]
        for line, column, name in sorted(marks, reverse=True):
            rows.insert(line, f'{" " * column}__import__("reach").reach("{name}")\n')
        (root / name_of(path)).unlink()
        (root / name_of(path)).write_text("".join(rows))
    (root / ".package/reach.py").write_text(REACH)


class Record:
    """Which blocks each test reaches, by file of tests; a file is run once, when it is first asked for, and kept."""

    def __init__(self, root: Path, seconds: float) -> None:
        """``root``: a copy of the repository whose blocks say that they are reached."""
        self._root, self._seconds = root, seconds
        self._locks = defaultdict[str, Lock](Lock)

    def of(self, name: str) -> dict[str, tuple[float, set[str]]]:
        """Seconds and blocks of each test of a file that passes."""
        kept = KEPT / f"{hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}.json"
        with self._locks[name]:
            if not kept.exists():
                KEPT.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(prefix="reach-", ignore_cleanup_errors=True) as scratch:
                    run(self._root, scratch, ["-p", "reach", name], self._seconds)
                    rows = sorted(set((Path(scratch) / "reach").read_text().splitlines()))
                    kept.write_text(json.dumps([row.split(" ", 1) for row in rows]))
            rows = json.loads(kept.read_text())
        reached = defaultdict[str, set[str]](set)
        for block, test in rows:
            reached[test].add(block)
        found = {}
        for test in reached:
            passed = [float(block[1:]) for block in reached[test] if block[0] == "+"]
            if passed:
                found[test] = (passed[0], reached[test] | reached[name])
        return found

    def tests(self, path: Path, function: str, block: str) -> list[str]:
        """Tests that reach a block, those that reach little else first, as many as the time allows."""
        files = nearest_files(path, function)
        if not block:
            return files[:MAX_TESTS]
        found = dict[str, tuple[int, float]]()
        for name in files[:MAX_FILES]:
            found |= {test: (len(of), seconds) for test, (seconds, of) in self.of(name).items() if block in of}
            if sum(seconds for _, seconds in found.values()) > MAX_SECONDS:
                break
        chosen, total = list[str](), 0.0
        for test in sorted(found, key=lambda test: found[test]):
            total += found[test][1]
            if chosen and total > MAX_SECONDS:
                break
            chosen.append(test)
        return chosen


def run(root: Path, scratch: str, words: list[str], seconds: float) -> tuple[int, list[str]]:
    """Exit code of pytest in a copy of the repository, and what failed."""
    own = {"PYTHONPATH": f"{root}/.package", "TMPDIR": scratch, "REACH": f"{scratch}/reach"}
    words = ["timeout", "--signal=KILL", str(seconds), sys.executable, *PYTEST, *words]
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run(words, cwd=root, env=os.environ | own, stdout=out, stderr=out)
        out.seek(0)
        return done.returncode, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", out.read(), re.MULTILINE)


def copy_of(whole: Path, scratch: str) -> Path:
    return Path(shutil.copytree(whole, Path(scratch) / "copy", symlinks=True, copy_function=os.link))


def verdict(whole: Path, record: Record, mutant: Mutant, seconds: float) -> tuple[str, list[str]]:
    """How a mutant ends, and the tests that say so. ``whole``: a copy of the repository without a change."""
    path, function, block, _, content = mutant
    tests = record.tests(path, function, block)
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as scratch:
        root = copy_of(whole, scratch)
        (root / name_of(path)).unlink()
        (root / name_of(path)).write_bytes(content)
        while tests:
            code, failed = run(root, scratch, ["-x", *tests], seconds)
            if code in (0, 5):
                break
            failed = [name for name in failed if name in tests] or tests
            if run(whole, scratch, failed, seconds)[0] == 0:
                return "timed out" if code == TIMED_OUT else "killed", failed
            tests = [name for name in tests if name not in failed]
    return "SURVIVED" if tests else "UNREACHED", tests


def main() -> int:
    """Print how each mutant ends, and how many were killed; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("count", 80), ("seed", 1), ("jobs", 2), ("only", ""), ("seconds", 900)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    ends = Counter[str]()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(options.jobs) as pool:
        whole = Path(shutil.copytree(ROOT, Path(scratch) / "whole", symlinks=True, ignore=LEFT_OUT))
        subprocess.run([sys.executable, "-m", "compileall", "-q", *PRODUCT, "tests"], cwd=whole, check=True)
        marked = copy_of(whole, scratch)
        mark_blocks(marked)
        record = Record(marked, options.seconds)
        chosen = mutants(options.only, options.count, random.Random(options.seed))
        pending = {pool.submit(verdict, whole, record, mutant, options.seconds): mutant[3] for mutant in chosen}
        for done in as_completed(pending):
            end, tests = done.result()
            ends[end] += 1
            print(f"{end:9} {pending[done]}  [{' '.join(tests)}]", flush=True)
    killed, known = ends["killed"] + ends["timed out"], options.count - ends["unknown"]
    print(f"seed {options.seed}: {dict(ends)}; {killed} of {known} killed")
    return int(killed < known)


if __name__ == "__main__":
    sys.exit(main())
