"""Metrics file of a run: one JSON object a line."""

import json
import time
from pathlib import Path
from typing import Any

METRICS_FILE = "metrics.jsonl"


class MetricsFile:
    """Appends lines."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / METRICS_FILE
        self._start = time.monotonic()

    def write(self, event: str, **values: Any) -> None:
        """Add a line: the event, seconds since the start of the run, and the values, floats cut to five digits."""
        line = {"event": event, "seconds": time.monotonic() - self._start, **values}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_short(line)) + "\n")


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _short(entry) for key, entry in value.items()}
    return value
