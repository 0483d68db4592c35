"""Recorded figures: the file that holds them, and the tables of scripts/README.md made from it.

The file maps a key to {title, command, date, commit, machine, note, rows}. `rows` are those of the printed table, cell
by cell, the header first. README.md holds the tables between two marker lines.
"""

import datetime
import json
import platform
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import ROOT, comparison


@dataclass(frozen=True)
class Pages:
    """Where figures are kept and shown."""

    figures: Path
    runs: Path
    readme: Path
    front: Path
    """The page that shows a few of the CPU figures, between the same kind of marker lines."""


PAGES = Pages(
    Path(__file__).with_name("figures.json"), comparison.FILE, ROOT / "scripts" / "README.md", ROOT / "README.md"
)
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
TITLES = {
    "stereo": "Metres of pairs of cameras, ten rendered walks of 24 frames",
    "start": "Start of the program, sample",
    "refine short": "Refinement of a synthetic walk of 1,000 frames, features given",
    "stream short": "Online back end over 1,500 frames",
}
"""Of tables that were never recorded."""
ON_FRONT = {
    "step": {"step at ": "a network step at "},
    "start": {"first pose": "command to first pose", "refinement, a frame": "refinement after the stream, a frame"},
    "program": {"stream of ": "stream of ", "whole command, ": "the same, "},
}
"""Beginnings of the rows that the front page shows, and what it puts for them."""
Row = list[str]


def record(key: str, text: str, arguments: list[str], pages: Pages = PAGES) -> None:
    """Store the table rows among the lines of a benchmark's output, and bring README.md up to date."""
    rows = parse_rows(text)
    if not rows:
        raise SystemExit(f"bench: nothing recorded under {key!r}: the benchmark printed no table")
    figures = read(pages)
    title = figures.get(key, {}).get("title", TITLES.get(key, key))
    figures[key] = entry(title, rows, arguments)
    pages.figures.write_text(to_json(figures))
    comparison.store(key, figures[key], pages.runs)
    _replace(pages.readme, tables(pages))
    _replace(pages.front, front_table(pages))


def _replace(page: Path, text: str) -> None:
    """Put a text between the marker lines of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    if begin:
        page.write_text(before + BEGIN + text + END + rest.partition(END)[2])


def front_table(pages: Pages = PAGES) -> str:
    """The rows of `ON_FRONT` of recorded figures in Markdown, under their machine; empty without any."""
    known, rows, machines = read(pages), [], []
    for key, shown in ON_FRONT.items():
        for label, *cells in known.get(key, {}).get("rows", [])[1:]:
            for beginning, instead in shown.items():
                if label.startswith(beginning) and cells:
                    machines.append(known[key]["machine"])
                    rows.append(f"| {instead}{label.removeprefix(beginning)} | {cells[0].partition(' (')[0]} |")
    if not rows:
        return ""
    return f"\n{', '.join(dict.fromkeys(machines))}:\n\n| what | figure |\n|---|---|\n" + "\n".join(rows) + "\n\n"


def entry(title: str, rows: list[Row], arguments: list[str]) -> dict[str, Any]:
    """A table of now with its origin, as the file holds it."""
    return {
        "title": title,
        "command": shlex.join(arguments),
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "rows": rows,
    }


def to_json(figures: dict[str, dict[str, Any]]) -> str:
    """JSON with one line per table row."""

    def text(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    entries = []
    for key, entry in figures.items():
        lines = [f"  {text(name)}: {text(value)}" for name, value in entry.items() if name != "rows"]
        rows = ",\n".join(f"   {text(row)}" for row in entry["rows"])
        entries.append(f" {text(key)}: {{\n" + ",\n".join([*lines, f'  "rows": [\n{rows}\n  ]']) + "\n }")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def parse_rows(text: str) -> list[Row]:
    """Cells of all table rows, with a general header where the output begins without one."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    has_header = len(lines) > 1 and is_rule(lines[1])
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines if not is_rule(line)]
    return rows if has_header or not rows else [["what", "figure"], *rows]


def is_rule(line: str) -> bool:
    """Whether the line is the one between a table's header and its body."""
    return re.fullmatch(r"\|(\s*:?-+:?\s*\|)+", line) is not None


def read(pages: Pages = PAGES) -> dict[str, dict[str, Any]]:
    figures: dict[str, dict[str, Any]] = json.loads(pages.figures.read_text())
    return figures


def tables(pages: Pages = PAGES) -> str:
    """All recorded tables in Markdown."""
    return "\n".join(_table(entry) for entry in read(pages).values())


def _table(entry: dict[str, Any]) -> str:
    header, *body = entry["rows"]
    width = max(len(row) for row in entry["rows"])
    rows = [row + [""] * (width - len(row)) for row in (header, *body)]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" * width)
    command = f"`{entry['command']}`. " if entry.get("command") else ""
    origin = f"{command}{entry['machine']}; {entry['date']}, {entry['commit']}."
    note = f"\n{entry['note']}\n" if entry.get("note") else ""
    return f"### {entry['title']}\n\n{origin}\n\n" + "\n".join(lines) + f"\n{note}"


def commit() -> str:
    """Short hash of the checkout's commit, with a plus sign where files differ from it."""
    described = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return described.stdout.strip() or "unknown"


def machine() -> str:
    """Processor with its number of cores in use, and the GPU if there is one."""
    import torch

    info = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*:\s*(.+)", info.read_text()) if info.is_file() else []
    processor = names[0] if names else platform.processor() or platform.machine()
    parts = [f"{processor}, {torch.get_num_threads()} threads"]
    if torch.cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    return ", ".join([*parts, f"torch {torch.__version__}"])
