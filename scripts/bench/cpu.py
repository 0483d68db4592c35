"""All CPU figures of README.md and those of scripts/README.md that take minutes; run it on an idle machine.

Without options it takes about five minutes on two cores. `--keep` stores every table, also in README.md.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench.measured import run_and_compare

MINUTES = {
    "step": ["step"],
    "program": ["program"],
    "start": ["start"],
    "refine short": ["refine", "--frames", "1000"],
    "stream short": ["stream", "--frames", "1500"],
}
"""Benchmarks of at most a minute or two that need no data, with their arguments."""
LONG = {name: [name] for name in ("refine", "stream", "memory", "soak")}
"""Benchmarks of up to an hour."""


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--long", action="store_true", help=f"also {', '.join(LONG)}, which take up to an hour each")
    parser.add_argument("--sequences", type=Path, help="folder of four sequences: scenes an hour, too")
    parser.add_argument("--only", nargs="+", choices=[*MINUTES, *LONG], help="these alone")
    parser.add_argument("--keep", action="store_true", help="store each table in figures.json and both pages")


def run(options: Namespace) -> None:
    runs = MINUTES | LONG if options.long or options.only else dict(MINUTES)
    if options.sequences is not None:
        runs["batch"] = ["batch", str(options.sequences), "--workers", "2"]
    failed: list[str] = []
    for key in options.only or runs:
        print(f"\n{key}", flush=True)
        try:
            run_and_compare(key, runs[key], record=options.keep)
        except SystemExit:
            failed.append(key)
    if failed:
        raise SystemExit(f"bench: no figures of {', '.join(failed)}")
