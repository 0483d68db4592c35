"""The process that computes streams of frames, for all sessions: see `stream_recon.app.api.session_engine`."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from stream_recon.app.core.platform import child_options

Message = dict[str, Any]
ENGINE = (sys.executable, "-m", "stream_recon.app.api.session_engine")
"""The command that runs it."""
MAX_LINE = 2**27
"""Bytes of a message, such as a revision of all frames."""
KILL_SECONDS = 10.0
"""Time for a killed process to end."""
FAILED = "the engine has ended, perhaps out of memory"


class EngineProcess:
    """Starts with the first session, and ends when there has been none for a while."""

    def __init__(
        self, program: Sequence[str], hear: Callable[[Message], None], lose: Callable[[str, bool], None]
    ) -> None:
        """``hear`` gets each message; ``lose`` is told in a line why the process has ended, and whether it worked."""
        self._program, self._hear, self._lose = program, hear, lose
        self._process: asyncio.subprocess.Process | None = None
        self._starting = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self._used = time.monotonic()
        self._has_worked, self.heard = False, 0.0
        """Whether it said anything of a session, and when it last did."""

    @property
    def pid(self) -> int | None:
        """None: it does not run."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start it where it does not run. Raises OSError."""
        async with self._starting:
            if self._process is None:
                self._has_worked = False
                self._process = await asyncio.create_subprocess_exec(
                    *self._program,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    limit=MAX_LINE,
                    **child_options(0),
                )
                self._reader = asyncio.create_task(self._read(self._process))

    def send(self, message: Message) -> None:
        """Pass a message on. What waits is bounded by the sessions: each has one frame under way."""
        self._used = time.monotonic()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(msgspec.json.encode(message) + b"\n")

    async def close_idle(self, limit_s: float) -> None:
        """End it if it got no message for ``limit_s``."""
        if time.monotonic() - self._used > limit_s:
            await self.close()

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await _kill(process)

    def give_up(self, reason: str) -> None:
        """Kill it as one that has died, without waiting for its end."""
        process, self._process = self._process, None
        if process is not None and self._reader is not None:
            self._reader.cancel()
            with suppress(ProcessLookupError):
                process.kill()
            self._lose(reason, self._has_worked)

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        reason = FAILED
        with suppress(ValueError, msgspec.MsgspecError):  # no message, or too long a one
            while line := await process.stdout.readline():
                message = msgspec.json.decode(line)
                if "session" in message:
                    self._has_worked, self.heard = True, time.monotonic()
                    self._hear(message)
                else:
                    reason = message["message"]
        if self._process is process:
            self._process = None
            self._lose(reason, self._has_worked)
            await _kill(process)


async def _kill(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):  # a driver may hold it
        await asyncio.wait_for(process.wait(), KILL_SECONDS)
