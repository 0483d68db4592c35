"""Figures of the server for operators: counts, delays and memory in the text format of Prometheus, and lines of log."""

import json
import logging
import time
from collections import Counter, deque
from pathlib import Path

WINDOW = 1000
"""Latest delays of which percentiles are told."""
PREFIX = "stream_recon_"
HELP = {
    "sessions_total": "sessions of /v1/stream that began",
    "session_resumes_total": "connections that resumed a session",
    "engine_losses_total": "engines of sessions that died",
    "frames_total": "frames of sessions by what became of them",
    "messages_total": "messages that the engine told sessions, by type",
    "refusals_total": "refused requests by status, and refused messages by code",
    "ack_seconds": "from the arrival of a frame to its acknowledgement",
    "result_seconds": "from the arrival of a frame to its result",
    "sessions": "open sessions",
    "waiting_frames": "frames that wait for the engine",
    "jobs": "jobs by state",
    "results": "results by verdict",
    "resident_bytes": "memory of the server and of its engine",
}
"""All metrics, and what they are; their types go by their names."""

Labels = tuple[tuple[str, str], ...]


class ServerMetrics:
    """Counts and delays since the server's start."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Labels]] = Counter()
        self._delays: dict[str, deque[float]] = {}

    def count(self, name: str, **labels: object) -> None:
        """Add 1 to a counter."""
        self._counts[name, tuple((key, str(value)) for key, value in labels.items())] += 1

    def observe(self, name: str, seconds: float) -> None:
        """Note a delay."""
        self._delays.setdefault(name, deque(maxlen=WINDOW)).append(seconds)
        self._counts[f"{name}_count", ()] += 1
        self._counts[f"{name}_sum", ()] += seconds  # type: ignore[assignment]

    def text(self, gauges: dict[tuple[str, Labels], float]) -> str:
        """All figures, with the present values ``gauges``."""
        values: dict[tuple[str, Labels], float] = {**self._counts, **gauges}
        for name, delays in self._delays.items():
            ordered = sorted(delays)
            for share in (0.5, 0.95):
                values[name, (("quantile", str(share)),)] = ordered[int(share * (len(ordered) - 1))]
        lines = []
        for name, purpose in HELP.items():
            kind = "counter" if name.endswith("_total") else "summary" if name.endswith("_seconds") else "gauge"
            lines += [f"# HELP {PREFIX}{name} {purpose}", f"# TYPE {PREFIX}{name} {kind}"]
            for (key, labels), value in values.items():
                if key == name or (kind == "summary" and key in (f"{name}_count", f"{name}_sum")):
                    shown = ",".join(f"{label}={json.dumps(text)}" for label, text in labels)
                    lines.append(f"{PREFIX}{key}{f'{{{shown}}}' if shown else ''} {value:.10g}")
        return "\n".join(lines) + "\n"


def resident_bytes(pid: int | str = "self") -> int:
    """Resident memory of a process; 0 where the system does not tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return 1024 * int((status.partition("VmRSS:")[2].split() or ["0"])[0])


class JsonLines(logging.Formatter):
    """Lines of log as JSON objects, for programs that collect them."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)), "level": record.levelname}
        line |= {"logger": record.name, "message": record.getMessage()}
        line |= {key: value for key in ("session", "user") if (value := getattr(record, key, None))}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_as_json() -> None:
    """Write the server's log to stderr in lines of JSON, with the beginnings and ends of sessions."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(handlers=[handler])
    logging.getLogger("stream_recon.app.web").setLevel(logging.INFO)
