"""Comparison of a benchmark's table with the last recorded one of the same kind of machine.

`runs.json` holds for each key and kind of machine the last recorded table: {key: {kind: {date, commit, rows}}}. Figures
are compared where their unit says whether more is better. Those of one cell are matched by row, column and position.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("runs.json")
LOSS = 0.15
"""Share by which a figure has to be worse to be named."""
LESS_IS_BETTER = ("ms", "s", "seconds", "us", "MiB", "MB", "GB", "GiB", "KB")
MORE_IS_BETTER = ("frames/s", "fps", "scenes/hour", "scenes/h", "dB", "TFLOP/s", "times as fast")
UNITS = sorted((*LESS_IS_BETTER, *MORE_IS_BETTER), key=len, reverse=True)
ONE_UNIT = "|".join(map(re.escape, UNITS))
FIGURE = re.compile(rf"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(?:\s*({ONE_UNIT})(?![\w/]))?")
UNIT_WORD = re.compile(rf"(?<![\w/])({ONE_UNIT})(?![\w/])")
Row = list[str]
Cell = tuple[str, str, int]
"""Row, column, and position within the cell."""


def kind_of(machine: str) -> str:
    """A machine without its versions of software, which change more often."""
    return ", ".join(part for part in machine.split(", ") if not part.startswith("torch "))


def figures_of(rows: list[Row]) -> dict[Cell, tuple[float, str]]:
    """All figures with a known unit: in the cell, else in the column's header, else in the row's label."""
    header, *body = rows
    figures: dict[Cell, tuple[float, str]] = {}
    for label, *cells in body:
        for column, cell in zip(header[1:], cells, strict=False):
            general = UNIT_WORD.search(column) or UNIT_WORD.search(label)
            for position, (number, unit) in enumerate(_numbers(cell)):
                # A second number without a unit is a spread or a percentile.
                unit = unit or (general[1] if general and position == 0 else "")
                if unit:
                    figures[label, column, position] = number, unit
    return figures


def _numbers(cell: str) -> Iterator[tuple[float, str]]:
    for number, unit in FIGURE.findall(cell):
        yield float(number.replace(",", "")), unit


def losses(before: list[Row], now: list[Row]) -> list[str]:
    """A line for each figure that is worse by more than `LOSS`."""
    earlier, lines = figures_of(before), []
    for cell, (value, unit) in figures_of(now).items():
        old, old_unit = earlier.get(cell, (0.0, unit))
        if old_unit != unit or not old or not value:
            continue
        ratio = value / old if unit in LESS_IS_BETTER else old / value
        if ratio > 1 / (1 - LOSS):
            row, column, _ = cell
            lines.append(f"{row}, {column}: {old:g} {unit} before, {value:g} {unit} now")
    return lines


def report(key: str, rows: list[Row], machine: str, file: Path = FILE) -> str:
    """What to print after a run: the losses since the last recorded run of this key on such a machine."""
    kind = kind_of(machine)
    before = read(file).get(key, {}).get(kind)
    if before is None:
        return f"no recorded run of {key!r} on {kind}: --record stores this one"
    since = f"{before['date']}, {before['commit']}"
    worse = losses(before["rows"], rows)
    if not worse:
        return f"nothing fell by more than {LOSS:.0%} since {since}"
    return "\n".join([f"fell by more than {LOSS:.0%} since {since}:", *(f"  {line}" for line in worse)])


def store(key: str, entry: Mapping[str, Any], file: Path = FILE) -> None:
    """Keep a recorded run, an entry of `figures.json`, as the last one of its kind of machine."""
    runs = read(file)
    runs.setdefault(key, {})[kind_of(entry["machine"])] = {name: entry[name] for name in ("date", "commit", "rows")}
    file.write_text(json.dumps(runs, ensure_ascii=False, indent=1) + "\n")


def read(file: Path = FILE) -> dict[str, dict[str, Any]]:
    """All recorded runs; none without a file."""
    runs: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else {}
    return runs
