"""All CPU figures of README.md and scripts/README.md, one benchmark after the other; run it on an idle machine.

`--keep` stores every table. `--json` also writes those of this run to one file, which `scripts/bench compare` takes.
"""

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from bench import comparison, figures

QUICK = ("step", "program", "start", "refine", "stream")
"""Benchmarks of minutes that need no data."""
LONG = ("memory", "load", "pipeline", "soak")
"""Benchmarks of up to an hour."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--video", type=Path, help="a phone video: times of start and refinement, too")
    parser.add_argument("--sequences", type=Path, help="folder of four sequences: scenes an hour, too")
    parser.add_argument("--keep", action="store_true", help="store each table in figures.json")
    parser.add_argument("--json", type=Path, help="file for the tables of this run")


def run(options: Namespace) -> None:
    runs = {name: [name] for name in (QUICK if options.quick else QUICK + LONG)}
    if options.video is not None:
        runs["start phone"] = ["start", str(options.video)]
    if options.sequences is not None:
        runs["batch"] = ["batch", str(options.sequences), "--workers", "2"]
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for key, arguments in runs.items():
        print(f"\n{key}", flush=True)
        command = [sys.executable, str(Path(__file__).parent), *arguments]
        lines = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                lines.append(line)
        rows = figures.parse_rows("".join(lines))
        if process.returncode or not rows:
            failed.append(key)
            continue
        entry = figures.entry(key, rows, ["python", "scripts/bench", *arguments])
        print(comparison.report(key, rows, entry["machine"]), flush=True)
        found[key] = entry
        if options.keep:
            figures.record(key, "".join(lines), ["python", "scripts/bench", *arguments])
        if options.json is not None:
            options.json.write_text(figures.to_json(found))
    if failed:
        raise SystemExit(f"bench: no figures of {', '.join(failed)}")
