#!/usr/bin/env python3
"""Compares weights by what `stream-recon eval` wrote for them: a fixed rule says which ones to ship.

scripts/weights/compare_weights.py BEFORE AFTER

Both are folders of JSON files of `stream-recon eval --json`, one file for each way of taking frames, of equal names.
AFTER is better if the geometric mean of its figures over those of BEFORE is below 1, and no single figure is worse by
more than 15 %. Figures: ATE over the path's length, rotation a step, AbsRel, and by how much the field of view is off,
of every sequence. Exit code 0 if it is better, 1 if it is not, 2 if the folders cannot be compared.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

FIGURES = ("ate_over_path", "rpe_rot_deg", "absrel", "fov_error_deg")
WORSE_AT_MOST = 1.15


class NotComparableError(Exception):
    pass


@dataclass(frozen=True)
class Ratio:
    file: str
    sequence: str
    figure: str
    before: float
    after: float

    @property
    def value(self) -> float:
        return self.after / self.before


def read(folder: Path) -> dict[tuple[str, str, str], float]:
    """Figures by file, sequence and name; what a sequence's truth does not tell is left out."""
    figures = {}
    for path in sorted(folder.glob("*.json")):
        for sequence, record in json.loads(path.read_text())["sequences"].items():
            for name in FIGURES:
                if record.get(name):
                    figures[path.stem, sequence, name] = float(record[name])
    if not figures:
        raise NotComparableError(f"{folder} holds no figures: write them with stream-recon eval --json")
    return figures


def compare(before: Path, after: Path) -> list[Ratio]:
    old, new = read(before), read(after)
    if old.keys() != new.keys():
        odd = ", ".join("/".join(key) for key in sorted(old.keys() ^ new.keys()))
        raise NotComparableError(f"{before} and {after} hold different figures: {odd}")
    return [Ratio(*key, old[key], new[key]) for key in old]


def mean(ratios: Iterable[Ratio]) -> float:
    """Geometric."""
    logs = [math.log(ratio.value) for ratio in ratios]
    return math.exp(sum(logs) / len(logs))


def is_better(ratios: list[Ratio]) -> bool:
    return mean(ratios) < 1 and max(ratio.value for ratio in ratios) <= WORSE_AT_MOST


def report(ratios: list[Ratio]) -> str:
    rows = list(dict.fromkeys((ratio.file, ratio.sequence) for ratio in ratios))
    cells = {(r.file, r.sequence, r.figure): f"{r.before:.4g} {r.after:.4g} x{r.value:.2f}" for r in ratios}
    lines = [f"{'':30}" + "".join(f"{name:>24}" for name in FIGURES)]
    lines += [f"{' '.join(row):30}" + "".join(f"{cells.get((*row, f), ''):>24}" for f in FIGURES) for row in rows]
    means = [mean(r for r in ratios if r.figure == f) if any(r.figure == f for r in ratios) else 1.0 for f in FIGURES]
    lines.append(f"{'geometric mean':30}" + "".join(f"{f'x{m:.3f}':>24}" for m in means))
    worst = max(ratios, key=lambda ratio: ratio.value)
    verdict = "better" if is_better(ratios) else "not better"
    lines.append(
        f"{verdict}: x{mean(ratios):.3f} over all; "
        f"worst x{worst.value:.2f}, {worst.figure} of {worst.sequence} ({worst.file})"
    )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="folder of the weights that ship")
    parser.add_argument("after", type=Path, help="folder of the weights to judge")
    options = parser.parse_args()
    try:
        ratios = compare(options.before, options.after)
    except (NotComparableError, OSError, ValueError, KeyError) as error:
        print(f"compare_weights: {error}", file=sys.stderr)
        return 2
    print(report(ratios))
    return 0 if is_better(ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
