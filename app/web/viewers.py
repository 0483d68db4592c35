"""Viewers of finished results: processes of ``stream-recon view`` on loopback, opened on demand, closed when idle."""

import asyncio
import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from stream_recon.app.core.platform import INTERRUPT, child_options
from stream_recon.app.core.progress_file import VARIABLE, read_progress
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import LANES, WebJob
from stream_recon.app.web.limits import MissingError, WebLimits
from stream_recon.app.web.runner import NICENESS, JobRunner
from stream_recon.configs.errors import ResourceError

START_SECONDS = 60.0
POLL_SECONDS = 0.05
"""Time between two looks at what a viewer that starts has written."""


@dataclass
class _Viewer:
    process: asyncio.subprocess.Process
    port: int
    pages: int
    used: float


class Viewers:
    """Gives the port of a result's viewer: that of its run, or else one that is started for it."""

    def __init__(self, runner: JobRunner, data: DataFolder, limits: WebLimits) -> None:
        self._runner, self._data, self._limits = runner, data, limits
        self._viewers: dict[str, _Viewer] = {}
        self._starting: dict[str, asyncio.Lock] = {}
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()

    async def port(self, name: str) -> int:
        """Port on loopback; ``name``: of a result, or of a job's.

        Raises MissingError where there is neither, ResourceError where no viewer can be started.
        """
        if not self._runner.knows(name) and self._data.result(name) is None:
            raise MissingError("there is no such result")
        async with self._starting.setdefault(name, asyncio.Lock()):
            live = self._runner.viewer_port(name)
            if live is not None:
                return live
            viewer = self._viewers.get(name)
            if viewer is None or viewer.process.returncode is not None:
                if self._data.result(name) is None:
                    raise ResourceError("its viewer opens with the first frames")
                await self._make_room()
                viewer = self._viewers[name] = await self._start(self._data.path / name)
            viewer.used = time.monotonic()
            return viewer.port

    def note_end(self, job: WebJob) -> None:
        """Close the viewer of a result that a job has changed; its pages connect again by themselves."""
        if job.kind not in LANES["export"]:
            task = asyncio.create_task(self.close(job.name))
            self._tasks.add(task)  # the event loop alone would not keep it
            task.add_done_callback(self._tasks.discard)

    def count(self, name: str, change: int) -> None:
        """Note that a page opened (1) or left (-1) a viewer."""
        viewer = self._viewers.get(name)
        if viewer is not None:
            viewer.pages, viewer.used = viewer.pages + change, time.monotonic()

    async def close_idle(self) -> None:
        """Close the viewers that no page has used for a while."""
        for name, viewer in list(self._viewers.items()):
            is_idle = viewer.pages <= 0 and time.monotonic() - viewer.used > self._limits.viewer_idle_s
            if is_idle or viewer.process.returncode is not None:
                await self.close(name)

    async def close(self, name: str) -> None:
        """Close a result's viewer, such as before the result is removed."""
        viewer = self._viewers.pop(name, None)
        if viewer is not None and viewer.process.returncode is None:
            with suppress(ProcessLookupError):
                viewer.process.send_signal(INTERRUPT)
            try:
                await asyncio.wait_for(viewer.process.wait(), 5)
            except TimeoutError:
                viewer.process.kill()

    async def close_all(self) -> None:
        await asyncio.gather(*map(self.close, list(self._viewers)))

    async def _make_room(self) -> None:
        await self.close_idle()
        while len(self._viewers) >= self._limits.viewers:
            unused = [(viewer.used, name) for name, viewer in self._viewers.items() if viewer.pages <= 0]
            if not unused:
                raise ResourceError(f"{self._limits.viewers} viewers are open: close one of their pages first")
            await self.close(min(unused)[1])

    async def _start(self, folder: Path) -> _Viewer:
        file = self._data.jobs / f"view-{next(self._numbers)}.json"
        file.unlink(missing_ok=True)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stream_recon", "view", str(folder), "--port", "0"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            **child_options(NICENESS),
            env={**os.environ, VARIABLE: str(file)},
        )
        ends = time.monotonic() + START_SECONDS
        try:
            while "port" not in (state := read_progress(file)):
                if process.returncode is not None:
                    raise ResourceError(f"its viewer cannot be opened: {state.get('error', 'see stream-recon view')}")
                if time.monotonic() > ends:
                    process.kill()
                    raise ResourceError("its viewer did not open in time")
                await asyncio.sleep(POLL_SECONDS)
        finally:
            file.unlink(missing_ok=True)
        return _Viewer(process, int(state["port"]), 0, time.monotonic())
