"""The queue: jobs in an SQLite file, which survives restarts and kills."""

import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["reconstruct", "scan", "refine", "export"]
State = Literal["queued", "running", "stopped", "done", "failed"]
LANES: dict[str, tuple[Kind, ...]] = {"work": ("reconstruct", "refine"), "export": ("export",), "scan": ("scan",)}
"""Kinds of jobs that wait for one another. A short export does not wait for a long run, and a scan never waits."""
LARGEST_ID = 2**63 - 1
"""Largest number that SQLite takes."""
KEPT_JOBS = 500
"""Ended jobs that are kept."""
SCHEMA = """
create table if not exists jobs(
    id integer primary key autoincrement, kind text not null, name text not null, source text not null,
    options text not null, state text not null, error text not null default '', created real not null,
    started real, ended real
);
create table if not exists uploads(
    id text primary key, title text not null, size integer not null, options text not null, created real not null,
    sha256 text, path text, name text
);
"""


@dataclass(frozen=True)
class WebJob:
    """One entry of the queue."""

    id: int
    kind: Kind
    name: str
    """Name of its result folder."""
    source: str
    """Path or address that is reconstructed; format of an export."""
    options: dict[str, Any]
    state: State
    error: str
    """One line, where it failed."""
    created: float
    started: float | None
    ended: float | None

    @property
    def is_open(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ("queued", "running")


class JobStore:
    """Jobs on disk. Used from one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or create the file. Jobs that a killed server left running are queued again."""
        self.connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self.connection.execute("pragma busy_timeout=5000")
        self.connection.executescript(SCHEMA)
        self.connection.execute("update jobs set state='queued' where state='running'")
        self.version = 0
        """Raised at each change."""

    def close(self) -> None:
        self.connection.close()

    def add(self, kind: Kind, name: str, source: str, options: dict[str, Any]) -> WebJob:
        """Queue a job."""
        self.version += 1
        cursor = self.connection.execute(
            "insert into jobs(kind, name, source, options, state, created) values(?, ?, ?, ?, 'queued', ?)",
            (kind, name, source, json.dumps(options), time.time()),
        )
        self.connection.execute(
            "delete from jobs where state not in ('queued', 'running') and id not in "
            "(select id from jobs order by id desc limit ?)",
            (KEPT_JOBS,),
        )
        assert cursor.lastrowid is not None
        job = self.get(cursor.lastrowid)
        assert job is not None
        return job

    def get(self, number: int) -> WebJob | None:
        if number > LARGEST_ID:
            return None
        return next(iter(self._select("where id=?", (number,))), None)

    def all(self) -> list[WebJob]:
        """All jobs, the newest first."""
        return self._select("order by id desc", ())

    def next_queued(self, lane: str) -> WebJob | None:
        """The oldest job of a lane that waits."""
        marks = ",".join("?" * len(LANES[lane]))
        jobs = self._select(f"where state='queued' and kind in ({marks}) order by id limit 1", LANES[lane])
        return next(iter(jobs), None)

    def of_result(self, name: str) -> list[WebJob]:
        """Jobs of a result, the newest first."""
        return self._select("where name=? order by id desc", (name,))

    def stopped_because(self, reason: str) -> list[WebJob]:
        """Jobs that were stopped for a reason."""
        return self._select("where state='stopped' and error=?", (reason,))

    def names(self) -> set[str]:
        """Names of results that jobs have or will have."""
        return {str(row[0]) for row in self.connection.execute("select distinct name from jobs")}

    def set_state(self, number: int, state: State, error: str = "") -> None:
        """Record a new state with its time."""
        self.version += 1
        now = time.time()
        started = now if state == "running" else None
        ended = None if state in ("queued", "running") else now
        self.connection.execute(
            "update jobs set state=?, error=?, started=coalesce(?, started), ended=? where id=?",
            (state, error, started, ended, number),
        )

    def rename(self, old: str, new: str) -> None:
        """Let the jobs of a result follow its new name."""
        self.version += 1
        self.connection.execute("update jobs set name=? where name=?", (new, old))

    def remove(self, number: int) -> None:
        self.version += 1
        self.connection.execute("delete from jobs where id=?", (number,))

    def _select(self, condition: str, values: Iterable[Any]) -> list[WebJob]:
        columns = "id, kind, name, source, options, state, error, created, started, ended"
        rows = self.connection.execute(f"select {columns} from jobs {condition}", tuple(values))
        return [WebJob(*row[:4], json.loads(row[4]), *row[5:]) for row in rows]  # type: ignore[call-arg]
