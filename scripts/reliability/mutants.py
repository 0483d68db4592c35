#!/usr/bin/env python3
"""Change the program in one place, run the nearest tests, and see whether they notice; again and again.

    scripts/reliability/mutants.py [--count 80] [--seed 1] [--jobs 2] [--only app/web] [--tests tests] [--seconds 900]

A function of app, cache or models is drawn, long ones more often, and a change in it. First, files of tests run with
marks in the product, to learn which test reaches which block of statements; this stays in .pytest_cache/reach until a
file of tests changes, and is to be deleted after larger changes of the product. Tests of half a minute run with each
change: those that reach its block, and least else; none that need a GPU or browser, or fail without it. One that takes
more than the seconds is killed. The exit code is 1 if a mutant survives; no test reaches those UNREACHED. Those "not
run" do not count: in kernels, or UNREACHED, where tests of their folder cannot run on this machine.

Left out is what changes nothing that a test could see: words of messages, `assert`, types, hints for speed, how long
something waits, `del` of a name, the order of exceptions, which of two signs a number of a continuous scale has at its
very limit.
"""

import argparse
import ast
import hashlib
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from math import inf
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]
from marks import Record, block_of, chosen_tests, mark_blocks, read_record, replace  # noqa: E402
from structure import PRODUCT, functions, name_of, python_files  # noqa: E402

LEFT_OUT = ignore_patterns(".git", ".venv", "site", "*_cache", "shared", "dist")
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "-q", "-n0", "-rfE", "-m", "not (gpu or browser)")
# Calls that say something, wait, or change only how fast something goes.
FOR_PEOPLE = (
    r"(^|\.)(log|logger|console|warnings|time|gc)\.\w+$"
    r"|(^|[._])(print|echo|say|tell|warn|sleep|wait|join|empty_cache|synchronize|nice|set_num_threads)$"
)
HINTS = r"strict|copy|seed|[ar]tol|flush|non_blocking|pin_memory|buffering|compresslevel|markup|soft_wrap|\w*timeout\w*"
# Whether such a number is less than a limit or equal to it makes no difference: it is never equal.
CONTINUOUS = r"\d\.\d|\de-\d|[a-z](_px|_m|_s|_deg|_rad)\b|(share|ratio|sigma|error)\w*\b|\.mean\(|norm\(|monotonic\("
SYMMETRIC = (
    r"(^|\.)(min|max|\w+imum|isinstance|issubclass|suppress|hypot|\w*close|array_equal|gcd|dot|gather|logical_\w+)$"
)
OTHERS = {
    "Lt": "GtE LtE", "LtE": "Gt Lt", "Gt": "LtE GtE", "GtE": "Lt Gt", "Eq": "NotEq", "NotEq": "Eq", "In": "NotIn",
    "NotIn": "In", "And": "Or", "Or": "And", "Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult",
    "FloorDiv": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd", "LShift": "RShift", "RShift": "LShift",
}  # fmt: skip
FILES, UNTRIED = r"/test_\w+(?<!_gpu)(?<!_browser)\.py$", r"^test_\w+_(gpu|browser)\.py$"
TINY, TIMED_OUT = 1e-4, 137  # smaller numbers keep quotients finite
KEPT = ROOT / ".pytest_cache" / "reach"
Mutant = tuple[Path, str, str, bytes]  # file, block in it, line about the change, the file with it


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
            yield path, block_of(path, function, old), line, b"".join(rows)
            count -= 1


def reached_by(marked: Path, name: str, seconds: float) -> Record:
    """The record of a file of tests."""
    kept = KEPT / hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    if not kept.exists():
        with tempfile.TemporaryDirectory(prefix="reach-", ignore_cleanup_errors=True) as scratch:
            run(marked, scratch, ["-p", "reach", name], seconds)
            found = Path(scratch) / "reach"
            kept.write_text("".join(sorted(set(found.open()) if found.exists() else ())))
    return read_record(kept.open(), name)


def run(root: Path, scratch: str, words: list[str], seconds: float) -> tuple[int, list[str]]:
    """Exit code of pytest in a copy of the repository, and what failed."""
    own = {"PYTHONPATH": f"{root}/.package", "TMPDIR": scratch, "REACH": f"{scratch}/reach"}
    words = ["timeout", "--signal=KILL", str(seconds), sys.executable, *PYTEST, *words]
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run(words, cwd=root, env=os.environ | own, stdout=out, stderr=out)
        out.seek(0)
        return done.returncode, re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", out.read(), re.MULTILINE)


def verdict(whole: Path, record: Record, mutant: Mutant, seconds: float) -> tuple[str, list[str]]:
    """How a mutant ends, and the tests that say so. ``whole``: a copy of the repository without a change."""
    all_tests = tests = chosen_tests(record, mutant[1])
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as scratch:
        root = Path(copytree(whole, f"{scratch}/copy", symlinks=True, copy_function=os.link))
        replace(root / name_of(mutant[0]), mutant[3])
        while tests:
            code, failed = run(root, scratch, ["-x", *tests], seconds)
            if code in (0, 5):
                break
            failed = [name for name in failed if name in tests] or tests
            if run(whole, scratch, failed, seconds)[0] == 0:
                return "timed out" if code == TIMED_OUT else "killed", failed
            tests = [name for name in tests if name not in failed]
    folder = next(each.as_posix() for each in Path("tests", mutant[1]).parents if (ROOT / each).is_dir())
    untried = [test for test, time, _ in record if time == inf and test.startswith(f"{folder}/")]
    if untried and (not all_tests or mutant[1].endswith(":")):
        return "not run", untried
    return "SURVIVED" if all_tests else "UNREACHED", tests


def main() -> int:
    """Print how each mutant ends, and how many were killed; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("count", 80), ("seed", 1), ("jobs", 2), ("only", ""), ("tests", "tests"), ("seconds", 900)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    ends = Counter[str]()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(options.jobs) as pool:
        whole = Path(copytree(ROOT, f"{scratch}/whole", symlinks=True, ignore=LEFT_OUT))
        subprocess.run([sys.executable, "-m", "compileall", "-q", *PRODUCT, "tests"], cwd=whole, check=True)
        marked = Path(copytree(whole, f"{scratch}/marked", symlinks=True, copy_function=os.link))
        mark_blocks(marked)
        KEPT.mkdir(parents=True, exist_ok=True)
        files = [name for name in map(name_of, python_files(options.tests)) if re.search(FILES, name)]
        record = [row for rows in pool.map(partial(reached_by, marked, seconds=options.seconds), files) for row in rows]
        record += [(name_of(path), inf, set()) for path in python_files("tests") if re.search(UNTRIED, path.name)]
        chosen = mutants(options.only, options.count, random.Random(options.seed))
        pending = {pool.submit(verdict, whole, record, mutant, options.seconds): mutant[2] for mutant in chosen}
        for done in as_completed(pending):
            end, tests = done.result()
            ends[end] += 1
            print(f"{end:9} {pending[done]}  [{len(tests)}: {' '.join(tests[:3])}]", flush=True)
    killed, tried = ends["killed"] + ends["timed out"], options.count - ends["not run"]
    print(f"seed {options.seed}: {dict(ends)}; {killed} of {tried} killed")
    return int(killed < tried)


if __name__ == "__main__":
    sys.exit(main())
