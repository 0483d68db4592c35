"""A quick, seeded part of the fuzzer; scripts/reliability/fuzz.py --minutes 30 is the real one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "reliability" / "fuzz.py"), *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.slow
def test_broken_inputs_of_all_kinds_are_read_or_refused() -> None:
    from fuzzing.cases import CASES

    done = fuzz("--cases", str(2 * len(CASES)), "--seed", "11", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    rows = re.findall(r"^(\w+) +2 +(\d+) +(\d+) +0 ", done.stdout, re.MULTILINE)
    assert [kind for kind, _, _ in rows] == list(CASES)
    assert all(int(read) + int(refused) == 2 for _, read, refused in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "kind", "cases"), [("markup", "markup", 2), ("size", "serve", 8), ("tags", "tag", 4)]
)
def test_a_mended_fault_is_found_when_it_is_put_back(fault: str, kind: str, cases: int) -> None:
    done = fuzz("--fault", fault, "--kind", kind, "--cases", str(cases), "--seed", "1")
    assert done.returncode == 1 and f"traceback: fuzz.py --kind {kind} --seed 1 --case " in done.stdout


def test_what_goes_wrong_is_found_and_can_be_had_again(tmp_path: Path) -> None:
    from fuzzing.processes import run

    def bad(folder: Path) -> None:
        (folder / "input").write_text("x")
        raise KeyError("nobody thought of it")

    def hangs(folder: Path) -> None:
        while True:
            pass

    verdict = run(bad, "page", 0, tmp_path / "kept", limit_s=60)
    assert verdict.failed and verdict.outcome == "traceback" and "nobody thought of it" in verdict.detail
    assert (tmp_path / "kept" / "case" / "input").exists()
    assert run(hangs, "image", 0, tmp_path / "other", limit_s=0.3).outcome == "hang"
