#!/usr/bin/env python3
"""Feed the program thousands of damaged inputs, each in a separate process; see scripts/reliability/fuzzing.

scripts/reliability/fuzz.py --minutes 30              # all kinds in turn, until the time is up
scripts/reliability/fuzz.py --cases 10000 --seed 7 --jobs 16
scripts/reliability/fuzz.py --kind dataset --seed 7 --case 123 --keep DIR    # one case again; keeps its input
scripts/reliability/fuzz.py --cases 2000 --fault rows                        # a mended fault, put back, is found
"""

import argparse
import itertools
import multiprocessing
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from fuzzing.cases import CASES, examples
from fuzzing.faults import PUT_BACK, put_back
from fuzzing.processes import Verdict, run_case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--cases", type=int, help="number of cases, in place of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time; which ones there are stays the same")
    parser.add_argument("--kind", choices=list(CASES), action="append", help="these alone; may be given again")
    parser.add_argument("--case", type=int, help="this one alone, with its traceback")
    parser.add_argument("--keep", type=Path, help="folder for its input")
    parser.add_argument("--fault", choices=list(PUT_BACK), help="put this mended fault back, to see that it is found")
    options = parser.parse_args()
    if options.fault:
        put_back(options.fault)
    kinds = options.kind or list(CASES)
    with tempfile.TemporaryDirectory(prefix="fuzz-examples-") as folder:
        source = Path(folder)
        examples(source)
        if options.case is not None:
            verdict = run_case(kinds[0], options.seed, options.case, source, options.keep)
            print(f"{verdict.outcome}, {verdict.seconds:.1f} s, {verdict.peak_mb:.0f} MB\n{verdict.detail}")
            return int(verdict.failed)
        verdicts = list(run_many(kinds, options.seed, options.cases, options.minutes, source, options.jobs))
    report(verdicts, options.seed)
    return int(any(verdict.failed for verdict in verdicts))


def run_many(
    kinds: list[str], seed: int, cases: int | None, minutes: float, source: Path, jobs: int
) -> Iterator[Verdict]:
    """Run cases of all kinds in turn, ``cases`` of them or for ``minutes``, and ``jobs`` at a time."""
    end = time.monotonic() + 60 * minutes
    chosen = itertools.islice(((number, kind) for number in itertools.count() for kind in kinds), cases)
    # Forks of this process have all imported already.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        pending: set[Future[Verdict]] = set()
        for number, kind in chosen:
            if cases is None and time.monotonic() > end:
                break
            pending.add(pool.submit(run_case, kind, seed, number, source))
            if len(pending) == 2 * jobs:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from _report_failures(done, seed)
        yield from _report_failures(pending, seed)


def _report_failures(done: Iterable[Future[Verdict]], seed: int) -> Iterator[Verdict]:
    for verdict in map(Future.result, done):
        if verdict.failed:
            print(f"{verdict.outcome}: fuzz.py --kind {verdict.kind} --seed {seed} --case {verdict.number}", flush=True)
        yield verdict


def report(verdicts: list[Verdict], seed: int) -> None:
    """A table: how many of each kind were read, refused and failed, and the worst of them."""
    print(f"seed {seed}\n{'kind':12}{'cases':>8}{'read':>8}{'refused':>9}{'failed':>8}{'longest s':>11}{'most MB':>9}")
    for kind in (kind for kind in CASES if any(verdict.kind == kind for verdict in verdicts)):
        own = [verdict for verdict in verdicts if verdict.kind == kind]
        count = Counter("failed" if verdict.failed else verdict.outcome for verdict in own)
        longest, most = max(v.seconds for v in own), max(v.peak_mb for v in own)
        print(
            f"{kind:12}{len(own):8}{count['read']:8}{count['refused']:9}{count['failed']:8}{longest:11.1f}{most:9.0f}"
        )


if __name__ == "__main__":
    sys.exit(main())
