"""Marks in a copy of the program, by which each block of statements says which test reaches it; see `reach`."""

import ast
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Any

import structure
from structure import PRODUCT, ROOT, Function, functions, is_kernel, name_of, own_nodes, python_files

Record = list[tuple[str, float, set[str]]]
"""Tests, their seconds, and the blocks that they reach."""
MAX_SECONDS = 30.0
"""Of the tests that are chosen for a block."""


def blocks(function: Function) -> list[list[ast.stmt]]:
    """Lists of statements in a function, without its docstring and those of functions inside it; none of a kernel."""
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    if is_kernel(function) or not body or ast.unparse(body[0]) == "...":
        return []
    found = [body]
    for node in own_nodes(function):
        for name in () if isinstance(node, Function | ast.ClassDef) else ("body", "orelse", "finalbody"):
            part = getattr(node, name, None)
            is_elif = isinstance(node, ast.If) and name == "orelse" and part and part[0].col_offset == node.col_offset
            found += [part] if isinstance(part, list) and part and not is_elif else []
    return found


def first_line(block: list[ast.stmt]) -> int:
    decorators: list[ast.expr] = getattr(block[0], "decorator_list", [])
    return min([block[0].lineno, *(each.lineno for each in decorators)])


def block_of(path: Path, function: Function, node: Any) -> str:
    """The name of the innermost block that a node is in; of all blocks of the file in kernels."""
    lines = [(first_line(each), number, each[-1].end_lineno or 0) for number, each in enumerate(blocks(function))]
    inside = [(first, number) for first, number, last in lines if first <= node.lineno <= last]
    return f"{name_of(path)}:{function.name}:{max(inside)[1]}" if inside else f"{name_of(path)}:"


def mark_blocks(root: Path) -> None:
    """Have each block of the product say that it is reached, in a copy of the repository."""
    for path in python_files(*PRODUCT):
        rows, marks = path.read_text().splitlines(keepends=True), []
        for function in functions(path):
            for number, each in enumerate(blocks(function)):
                call = f'__import__("reach").reach("{name_of(path)}:{function.name}:{number}")\n'
                marks.append((first_line(each) - 1, " " * each[0].col_offset + call))
        for line, row in sorted(marks, reverse=True):
            rows.insert(line, row)
        replace(root / name_of(path), "".join(rows).encode())
    shutil.copy(ROOT / "scripts/reliability/reach.py", root / ".package/reach.py")


@cache
def kernels_of(file: str) -> list[str]:
    """Files that a file imports and that no mark shows to be reached: kernels alone."""
    alone = {name_of(path) for path in python_files(*PRODUCT) if not any(map(blocks, functions(path)))}
    nodes = structure.imported(ROOT / file) if file.endswith(".py") else ()
    return [name for node in nodes for name in structure.files_of(node, alone)]


def replace(path: Path, content: bytes) -> None:
    """Give a file of a copy other content; the files of copies are links."""
    path.unlink()
    path.write_bytes(content)


def read_record(rows: Iterable[str], file: str) -> Record:
    """The record from what `reach` wrote while the tests of a file ran; those that cannot run take endless seconds."""
    reached, times = defaultdict[str, set[str]](set), dict[str, float]()
    for row in rows:
        block, _, test = row.rstrip("\n").partition(" ")
        name = block.partition(":")[0]
        reached[test] |= {block, *(f"{each}:" for each in (name, *kernels_of(name)))}
        times |= {test: float(block.replace("-", "inf"))} if block[0] in "+-" else {}
    return [(test, time, reached[test] | reached[file]) for test, time in times.items()]


def chosen_tests(record: Record, block: str) -> list[str]:
    """Tests that reach a block: one of each function first, those that reach little else first, as time allows."""
    number, ranked = Counter[str](), list[tuple[int, float, str]]()
    for test, time, reached in sorted(record, key=lambda row: len(row[2])):
        if block in reached and time < inf:
            number[test.partition("[")[0]] += 1
            ranked.append((number[test.partition("[")[0]], time, test))
    ranked.sort(key=lambda row: row[0])
    until = accumulate(time for _, time, _ in ranked)
    return [test for (_, time, test), end in zip(ranked, until, strict=True) if end <= max(MAX_SECONDS, time)]
