"""The queue: jobs and uploads in memory, and in an SQLite file, which survives restarts and kills.

The file is only read at the start, and replaced as a whole: a full disk, a lock of another program or a damaged file
never keep the server from working. What could not be stored is tried again.
"""

import asyncio
import json
import logging
import math
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from stream_recon.app.core.input_file import parse_json
from stream_recon.app.core.output_file import replacing
from stream_recon.app.result.files import output_errors
from stream_recon.app.web.limits import USER
from stream_recon.app.web.threads import in_thread
from stream_recon.configs.errors import OutputError, ResourceError, StreamReconError

Kind = Literal["reconstruct", "scan", "refine", "export", "store"]
State = Literal["queued", "running", "stopped", "done", "failed"]
LANES: dict[str, tuple[Kind, ...]] = {
    "work": ("reconstruct", "refine"), "export": ("export", "store"), "scan": ("scan",),
}  # fmt: skip
"""Kinds of jobs that wait for one another. A short export does not wait for a long run, and a scan never waits."""
LARGEST_ID = 2**53
"""Largest number of a job that is read; after SQLite's own largest one, no job could be added."""
UPLOAD_ID = re.compile("[0-9a-f]{16}")
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
create table if not exists made(name text not null, source text not null, unique(name, source));
create table if not exists owners(name text primary key, user text not null);
"""
NUMBER, TIME = int | float, int | float | None
COLUMNS: dict[str, dict[str, Any]] = {
    "jobs": {"id": int, "kind": str, "name": str, "source": str, "options": str, "state": str, "error": str}
    | {"created": NUMBER, "started": TIME, "ended": TIME},
    "uploads": {"id": str, "title": str, "size": int, "options": str, "created": NUMBER}
    | {"sha256": str | None, "path": str | None},
    "made": {"name": str, "source": str},
    "owners": {"name": str, "user": str},
}
"""Columns that are read of each table, and their types. ``made`` has what the jobs of a result were given, also of
jobs that are gone, and ``owners`` whose a result is."""
LOCK_SECONDS = 5.0
"""Time to wait at the start for a program that has locked the file."""
RETRY_SECONDS = 5.0
"""Time after which the file is tried again."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WebJob:
    """One entry of the queue."""

    id: int
    kind: Kind
    name: str
    """Name of its result folder."""
    source: str
    """Path or address that is reconstructed; format of an export; address to which a result is copied."""
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
    """Jobs, uploads and what results were made of. Used from one thread at a time."""

    def __init__(self, path: Path, lock_s: float = LOCK_SECONDS) -> None:
        """Read the file as far as it can be read. Jobs that a killed server left running are queued again.

        A damaged file is kept under another name. Raises OutputError where it cannot be read or kept.
        """
        self._path, self._saving, self._changed = path, asyncio.Lock(), asyncio.Event()
        self.users: dict[int, str] = {}
        """Who queued each job since the start."""
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.connection.executescript(SCHEMA)
        if os.path.lexists(path):
            self._read(lock_s)
        self._saved = self.connection.total_changes if os.path.lexists(path) else -1
        self.connection.execute("update jobs set state='queued' where state='running'")
        made = "select name, source from jobs where kind in ('reconstruct', 'scan')"
        self.connection.execute(f"insert or ignore into made {made}")

    def _read(self, lock_s: float) -> None:
        skipped, damage = 0, ""
        try:
            with closing(sqlite3.connect(self._path, lock_s)) as file:
                file.text_factory = lambda data: data.decode(errors="replace")
                tables = {str(row[0]) for row in file.execute("select name from sqlite_master")}
                for table in COLUMNS.keys() & tables:
                    names = ",".join(COLUMNS[table])
                    add = f"insert or ignore into {table}({names}) values({','.join('?' * len(COLUMNS[table]))})"
                    for row in file.execute(f"select {names} from {table}"):
                        if self._is_readable(dict(zip(COLUMNS[table], row, strict=True)), COLUMNS[table]):
                            self.connection.execute(add, row)
                        else:
                            skipped += 1
                if "sqlite_sequence" in tables:  # numbers name folders: none is given again
                    self.connection.execute("delete from sqlite_sequence")
                    for row in file.execute("select name, seq from sqlite_sequence where seq < ?", (LARGEST_ID,)):
                        self.connection.execute("insert into sqlite_sequence values(?, ?)", row)
        # SQLite quotes damaged bytes in its message, which the binding cannot decode.
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                raise OutputError(f"{self._path} cannot be read: {error}") from error
            damage = str(error)
        if damage or skipped:
            kept = self._path.with_name(f"{self._path.name}.damaged-{time.time_ns()}")
            with output_errors(kept):
                self._path.rename(kept)
            reason = damage or f"{skipped} entries"
            log.warning(
                "the queue was damaged or moved (%s): what can be read goes on; the file is kept as %s", reason, kept
            )

    async def save(self) -> None:
        """Write what has changed to the file. Raises OSError or ResourceError; it is kept in memory then."""
        async with self._saving:
            changes = self.connection.total_changes
            if changes != self._saved:
                await in_thread(self._write, self.connection.serialize())
                self._saved = changes

    def _write(self, content: bytes) -> None:
        for suffix in ("-journal", "-wal", "-shm"):  # of the file that is replaced
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        with replacing(self._path, 0o600, durable=True) as file:
            file.write(content)

    async def save_or(self, *undo: Callable[[], object]) -> None:
        """Write what has changed, or undo the change. Raises OSError, ResourceError."""
        try:
            await self.save()
        except (OSError, ResourceError):
            for each in undo:
                each()
            raise

    async def keep_saved(self) -> None:
        """Write each change, until it is cancelled. What cannot be written is tried again, and told once."""
        is_told = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self.save()
                is_told = False
            except (OSError, StreamReconError) as error:
                if not is_told:
                    log.warning("the queue cannot be stored, and is tried again: %s", error)
                is_told = True
                await asyncio.sleep(RETRY_SECONDS)
                self._changed.set()

    def close(self) -> None:
        """Write what has changed, and end."""
        try:
            if self.connection.total_changes != self._saved:
                self._write(self.connection.serialize())
        except OSError as error:
            log.warning("the last changes of the queue are lost: %s", error)
        self.connection.close()

    def add(self, kind: Kind, name: str, source: str, options: dict[str, Any]) -> WebJob:
        """Queue a job."""
        self._changed.set()
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
        if kind in ("reconstruct", "scan"):
            self.connection.execute("insert or ignore into made values(?, ?)", (name, source))
            if USER.get():
                self.connection.execute("insert or replace into owners values(?, ?)", (name, USER.get()))
        self.users[cursor.lastrowid] = USER.get()
        job = self.get(cursor.lastrowid)
        assert job is not None
        return job

    def get(self, number: int) -> WebJob | None:
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

    def names(self) -> set[str]:
        """Names of results that jobs have or will have."""
        return {str(row[0]) for row in self.connection.execute("select distinct name from jobs")}

    def set_state(self, number: int, state: State, error: str = "") -> None:
        """Record a new state with its time."""
        self._changed.set()
        now = time.time()
        started = now if state == "running" else None
        ended = None if state in ("queued", "running") else now
        self.connection.execute(
            "update jobs set state=?, error=?, started=coalesce(?, started), ended=? where id=?",
            (state, error, started, ended, number),
        )

    def set_source(self, number: int, source: str) -> None:
        """Let a job, which reconstructs an address, go on with what was fetched from there."""
        self._changed.set()
        self.connection.execute("update jobs set source=? where id=?", (source, number))
        self.connection.execute("insert or ignore into made select name, source from jobs where id=?", (number,))

    def rename(self, old: str, new: str) -> None:
        """Let the jobs of a result follow its new name."""
        self._changed.set()
        self.connection.execute("update jobs set name=? where name=?", (new, old))
        for table in ("made", "owners"):
            self.connection.execute(f"update or replace {table} set name=? where name=?", (new, old))

    def sources(self, name: str) -> set[str]:
        """What the jobs of a result were given, also of jobs that were dismissed."""
        return {str(row[0]) for row in self.connection.execute("select source from made where name=?", (name,))}

    def forget_result(self, name: str) -> None:
        """Forget what a result that is gone was made of."""
        self._changed.set()
        for table in ("made", "owners"):
            self.connection.execute(f"delete from {table} where name=?", (name,))

    def owned(self) -> dict[str, list[tuple[str, str]]]:
        """Results of each user, and what they were made of."""
        found: dict[str, list[tuple[str, str]]] = {}
        for user, name, source in self.connection.execute(
            "select user, name, source from owners join made using(name)"
        ):
            found.setdefault(user, []).append((name, source))
        return found

    def remove(self, number: int) -> None:
        self._changed.set()
        self.connection.execute("delete from jobs where id=?", (number,))

    def _select(self, condition: str, values: Iterable[Any]) -> list[WebJob]:
        rows = self.connection.execute(f"select {','.join(COLUMNS['jobs'])} from jobs {condition}", tuple(values))
        return [WebJob(*row[:4], json.loads(row[4]), *row[5:]) for row in rows]  # type: ignore[call-arg]

    def _is_readable(self, row: dict[str, Any], types: dict[str, Any]) -> bool:
        """Whether a row of the file has values that a server of this version writes, of files of its own."""
        if not all(isinstance(value, types[column]) for column, value in row.items()):
            return False
        uploads = self._path.parent / "uploads"
        with suppress(ValueError, OSError, RuntimeError):
            name, times = row.get("name", "scene"), [value for value in row.values() if isinstance(value, float)]
            if "sha256" in row:  # what is removed with an upload is in a folder of its own
                path = Path(row["path"] or uploads / "1" / "1").resolve()
                known = UPLOAD_ID.fullmatch(row["id"]) is not None and uploads in path.parent.parents
            else:
                known = row.get("kind", "scan") in get_args(Kind) and row.get("state", "done") in get_args(State)
                known = known and 0 < row.get("id", 1) < LARGEST_ID
            is_name = Path(name).name == name and not name.startswith(".") and all(map(math.isfinite, times))
            return known and is_name and isinstance(parse_json(row.get("options", "{}")), dict)
        return False
