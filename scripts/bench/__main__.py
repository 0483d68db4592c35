#!/usr/bin/env python3
"""Run a benchmark, or print the recorded figures: python scripts/bench NAME [--help] [--record]

--record stores the printed table in scripts/bench/figures.json, with date, commit and machine. Each run is compared
with the last recorded one on the same kind of machine, and what fell by more than 15 % is named at the end.
"""

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The first entry is this folder, whose modules must not be importable by their bare names. Tests hold the fake engine.
sys.path[:1] = [str(ROOT / "scripts"), str(ROOT)]

BENCHMARKS = {
    "step": "network step on the CPU, compared with its matrix work",
    "cpu": "all CPU figures of README.md and of scripts/README.md",
    "start": "seconds until first line, first pose and first points, and refinement after a stream",
    "program": "whole command on the sample",
    "memory": "host memory of the whole command up to 2,000 frames",
    "soak": "resources of a run of 100,000 frames without a network",
    "sessions": "delay of acknowledgements and memory of one server with 64 streams of frames",
    "stream": "cost per frame and memory of the online back end over 5,000 frames",
    "refine": "refinement of synthetic walks of 1,000 to 10,000 frames",
    "stereo": "metres of pairs of cameras on rendered walks, and the error that is stated",
    "localization": "errors of single images in the map of a sequence, and accepted images of other places",
    "batch": "scenes an hour by the number of workers",
    "split": "one video uncut and in chunks",
    "ablation": "errors and CPU time without each mechanism of mapping and stereo",
    "judgement": "whether refinement keeps the better side on generated videos, by kind",
    "colmap": "poses of the same frames by COLMAP's structure from motion and by the program",
    "mesh": "held-out keyframes drawn from the textured mesh of results",
    "splat": "Gaussian splats trained from our exports and from structure from motion",
    "gpu": "network on a GPU: full-size steps, batched streams, memory budgets",
}


def main() -> None:
    listed = "\n".join(f"  {name:12} {purpose}" for name, purpose in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="python scripts/bench",
        description=__doc__,
        epilog=f"benchmarks:\n{listed}\n  {'table':12} print the tables of scripts/README.md from figures.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[*BENCHMARKS, "table"], metavar="NAME")
    name = parser.parse_args(sys.argv[1:2] or ["--help"]).name
    if name == "table":
        from bench import figures

        print(figures.tables(), end="")
        return
    from bench.measured import INNER, run_and_compare

    module = import_module(f"bench.{name}")
    own = argparse.ArgumentParser(prog=f"python scripts/bench {name}", description=module.__doc__)
    module.add_options(own)
    own.add_argument("--record", metavar="KEY", nargs="?", const=name, help="store the printed table under this key")
    options = own.parse_args(sys.argv[2:])
    if os.environ.get(INNER) or name == "cpu":
        module.run(options)
    else:
        key = options.record or name
        arguments = sys.argv[1:] if options.record is None else without_record(sys.argv[1:], options.record)
        run_and_compare(key, arguments, record=options.record is not None)


def without_record(arguments: list[str], key: str) -> list[str]:
    """The arguments without --record and its key."""
    position = next(n for n, argument in enumerate(arguments) if argument.startswith("--record"))
    follows = arguments[position : position + 2] == ["--record", key]
    return arguments[:position] + arguments[position + (2 if follows else 1) :]


if __name__ == "__main__":
    main()
