"""All CPU figures of README.md and those of scripts/README.md that take minutes; run it on an idle machine.

`--keep` stores every table, also in README.md. `--json` writes those of this run to one file, which
`scripts/bench compare` takes. Without options it takes about five minutes on two cores.
"""

import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from bench import comparison, figures

MINUTES = {
    "step": ["step"],
    "program": ["program"],
    "start": ["start"],
    "refine short": ["refine", "--frames", "1000"],
    "stream short": ["stream", "--frames", "1500"],
}
"""Benchmarks of at most a minute or two that need no data, with their arguments."""
LONG = {name: [name] for name in ("refine", "stream", "memory", "load", "pipeline", "soak")}
"""Benchmarks of up to an hour."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--long", action="store_true", help=f"also {', '.join(LONG)}, which take up to an hour each")
    parser.add_argument("--video", type=Path, help="a phone video: times of start and refinement, too")
    parser.add_argument("--sequences", type=Path, help="folder of four sequences: scenes an hour, too")
    parser.add_argument("--only", help=f"of {', '.join(MINUTES)}, separated by commas")
    parser.add_argument("--keep", action="store_true", help="store each table in figures.json and both pages")
    parser.add_argument("--json", type=Path, help="file for the tables of this run")


def run(options: Namespace) -> None:
    runs = MINUTES | LONG if options.long else dict(MINUTES)
    if options.only:
        unknown = set(options.only.split(",")) - runs.keys()
        if unknown:
            raise SystemExit(f"bench: no benchmark {', '.join(sorted(unknown))} among {', '.join(runs)}")
        runs = {key: runs[key] for key in options.only.split(",")}
    if options.video is not None:
        runs["start phone"] = ["start", str(options.video), "--frames", "120"]
    if options.sequences is not None:
        runs["batch"] = ["batch", str(options.sequences), "--workers", "2"]
    found: dict[str, dict[str, Any]] = {}
    failed: list[str] = []
    for key, arguments in runs.items():
        print(f"\n{key}", flush=True)
        begin = time.monotonic()
        text, code = _output_of([sys.executable, str(Path(__file__).parent), *arguments])
        print(f"{key}: {time.monotonic() - begin:.0f} s", flush=True)
        rows = figures.parse_rows(text)
        if code or not rows:
            failed.append(key)
            continue
        shown = ["python", "scripts/bench", *(Path(part).name if "/" in part else part for part in arguments)]
        entry = figures.entry(key, rows, shown)
        print(comparison.report(key, rows, entry["machine"]), flush=True)
        found[key] = entry
        if options.keep:
            figures.record(key, text, shown)
        if options.json is not None:
            options.json.write_text(figures.to_json(found))
    if failed:
        raise SystemExit(f"bench: no figures of {', '.join(failed)}")


def _output_of(command: list[str]) -> tuple[str, int]:
    """Output of a command, which is also shown, and its exit code."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    return "".join(lines), process.returncode
