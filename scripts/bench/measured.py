"""A benchmark in a process of its own: its output is shown, compared with the last recorded one, and recorded."""

import os
import subprocess
import sys
from pathlib import Path

from bench import comparison, figures

INNER = "STREAM_RECON_BENCH"
"""Environment variable of the process that measures; the other one shows, compares and records."""


def run_and_compare(key: str, arguments: list[str], *, record: bool) -> None:
    """Raises SystemExit with the benchmark's exit code if it fails."""
    lines = []
    command = [sys.executable, str(Path(__file__).parent), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, INNER: "1"}) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise SystemExit(process.returncode)
    text = "".join(lines)
    rows = figures.parse_rows(text)
    if rows:
        print(comparison.report(key, rows, figures.machine()), flush=True)
    if record:
        shown = (Path(part).name if part.startswith("/") else part for part in arguments)
        figures.record(key, text, ["python", "scripts/bench", *shown])
