"""Scans with a phone: frames come in one at a time and are acknowledged when the run takes them."""

import asyncio
import json
import os
import re
import secrets
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_recon.app.core.input_file import read_file
from stream_recon.app.core.output_file import open_again, replacing, write_new
from stream_recon.app.core.platform import write_at
from stream_recon.app.sources.scan_folder import FEEDBACK_NAME, FRAMES_NAME
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import JobStore, WebJob
from stream_recon.app.web.limits import BusyError, MissingError, NoRoomError, WebLimits
from stream_recon.app.web.runner import JobRunner
from stream_recon.app.web.threads import in_thread
from stream_recon.configs.errors import InputError, OutputError

MAX_FRAME_BYTES = 2_000_000
"""Bound of a frame; 1280x720 has 0.1 to 0.3 MB."""
MAX_SIDE, MIN_SIDE = 4096, 64
POLL_SECONDS = 0.005
"""Time between two looks at the run's feedback while a frame waits."""
TAKE_SECONDS = 120.0
"""Time for the run to take a frame; the first one waits until the network is loaded."""
MAX_AHEAD = 2
"""Frames on their way through the run, beyond which the next one waits: more would only add delay."""
AHEAD_SECONDS, GUIDED_SECONDS = 3.0, 0.1
"""Longest such wait, and the longest while a line is shown: black frames never get a pose."""
LONGEST_STEP_SECONDS = 3600.0
"""Largest step of the phone's clock that is believed."""
TURNED = "Turn the phone back: all pictures of a scan are taken the same way up"


@dataclass
class Scan:
    """A scan in progress."""

    id: str
    job: WebJob
    folder: Path
    count: int = 0
    size: tuple[int, int] | None = None
    seconds: float = 0.0
    """Time of the last frame."""
    captured_ms: float = 0.0
    segment: int = 0
    came: float = field(default_factory=time.monotonic)
    taken: int = -1
    posed: int = -1
    say: str = ""
    ended: bool = False
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    feedback_read: int = 0
    unread: bytes = b""

    def read_feedback(self) -> None:
        """Read what the run has reported since the last call."""
        path = self.folder / FEEDBACK_NAME
        try:
            if os.stat(path).st_size <= self.feedback_read:  # noqa: PTH116  # 200 times a second
                return
            with path.open("rb") as file:
                file.seek(self.feedback_read)
                data = file.read()
        except OSError:
            return
        self.feedback_read += len(data)
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            with suppress(ValueError, TypeError, AttributeError):
                entry = json.loads(line)
                self.taken = max(self.taken, entry.get("taken", -1))
                self.posed = max(self.posed, entry.get("posed", -1))
                self.say = entry.get("say", self.say)


class Scans:
    """All scans of the server. Used from its event loop."""

    def __init__(self, store: JobStore, runner: JobRunner, data: DataFolder, limits: WebLimits) -> None:
        self.store, self._runner, self._data, self._limits = store, runner, data, limits
        self._scans: dict[str, Scan] = {}
        for folder in data.scans.iterdir():  # of a server that was killed
            _end_file(folder)

    async def create(self, title: str) -> Scan:
        """Begin a scan and its run. Raises BusyError, NoRoomError, OSError."""
        if sum(1 for scan in self._scans.values() if not scan.ended) >= self._limits.scans:
            raise BusyError(f"{self._limits.scans} scans are open: stop one first")
        self._data.check_quota()
        number = secrets.token_hex(8)
        named = title or time.strftime("scan-%Y-%m-%d-%H%M")
        name = self._data.free_name(named, self.store.names())
        folder = self._data.scans / f"{name.removesuffix('-recon')}-{number[:6]}"
        folder.mkdir(mode=0o700)
        write_new(folder / FRAMES_NAME, b"", 0o600)
        job = self.store.add("scan", name, str(folder), {})
        await self.store.save_or(lambda: self.store.remove(job.id), lambda: shutil.rmtree(folder, ignore_errors=True))
        scan = self._scans[number] = Scan(number, job, folder)
        self._runner.start()
        return scan

    def get(self, number: str) -> Scan:
        """A scan that goes on. Raises MissingError."""
        scan = self._scans.get(number)
        if scan is None or scan.ended:
            raise MissingError("this scan has ended: begin another one")
        return scan

    def of_job(self, number: int) -> Scan | None:
        """The open scan of a job."""
        return next((scan for scan in self._scans.values() if scan.job.id == number), None)

    async def add(self, scan: Scan, jpeg: bytes, captured_ms: float) -> dict[str, Any]:
        """Store a frame and wait until the run takes it; returns the acknowledgement.

        ``captured_ms``: time of capture by the phone's clock. A gap begins a new segment. Raises InputError where it is
        no JPEG, or another frame is on its way; OutputError where the run has ended.
        """
        if scan.busy.locked():
            raise InputError("one frame at a time: wait for the acknowledgement")
        async with scan.busy:
            size = jpeg_size(jpeg)
            scan.size = scan.size or size
            if size != scan.size:
                return {"ack": scan.count - 1, "say": TURNED}
            if await in_thread(self._data.free_bytes) <= 0:
                self.end(scan)
                raise NoRoomError("the disk is full: the scan was ended")
            self._note_time(scan, captured_ms)
            number = scan.count
            entry = {"index": number, "time": round(scan.seconds, 4), "segment": scan.segment}
            await in_thread(_store, scan.folder, entry, jpeg)
            scan.count += 1
            await self._wait_until_taken(scan, number)
            return {"ack": number, "posed": scan.posed, "say": scan.say}

    def end(self, scan: Scan) -> None:
        """End a scan; its run refines the result and ends then."""
        if not scan.ended:
            scan.ended = True
            _end_file(scan.folder)
            self._scans.pop(scan.id, None)

    def close_idle(self) -> None:
        """End the scans to which no frame has come for a long time, and those whose run has ended."""
        for scan in list(self._scans.values()):
            job = self.store.get(scan.job.id)
            if time.monotonic() - scan.came > self._limits.scan_idle_s or job is None or not job.is_open:
                self.end(scan)

    def _note_time(self, scan: Scan, captured_ms: float) -> None:
        """Advance the scan's clock by the phone's, or by this machine's where the phone's jumps."""
        now = time.monotonic()
        step, silence = (captured_ms - scan.captured_ms) / 1000, now - scan.came
        if not 0 < step < LONGEST_STEP_SECONDS:
            step = max(silence, 0.001)
        if scan.count:
            scan.seconds += step
            # While the run loads, or is slow, no frame is asked for: only the phone's own silence is a gap.
            if min(silence, step) > self._limits.scan_pause_s:
                scan.segment += 1
        scan.captured_ms, scan.came = captured_ms, now

    async def _wait_until_taken(self, scan: Scan, number: int) -> None:
        """Raises OutputError where the run ended, or does not take the frame."""
        deadline, checked, taken_at = time.monotonic() + TAKE_SECONDS, 0.0, 0.0
        while True:
            scan.read_feedback()
            now = time.monotonic()
            if scan.taken >= number:
                taken_at = taken_at or now
                longest = GUIDED_SECONDS if scan.say else AHEAD_SECONDS
                if scan.posed < 0 or number - scan.posed <= MAX_AHEAD or now - taken_at > longest:
                    scan.came = now
                    return
            if now - checked > 0.5:
                checked = now
                job = self.store.get(scan.job.id)
                if job is None or not job.is_open or scan.ended:
                    raise OutputError((job.error if job else "") or "this scan has ended")
            if now > deadline:
                raise OutputError("the run does not take frames: stop the scan and begin another one")
            await asyncio.sleep(POLL_SECONDS)


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Width and height of a JPEG picture. Raises InputError for other data, and for sizes of no camera."""
    if not data.startswith(b"\xff\xd8") or len(data) > MAX_FRAME_BYTES:
        raise InputError("a frame is a JPEG picture of at most 2 MB")
    at = 2
    while match := re.compile(rb"\xff+([\x01-\xfe])", re.DOTALL).match(data, at):
        kind, at = match.group(1)[0], match.end()
        if kind == 0x01 or 0xD0 <= kind <= 0xD7:
            continue
        length = int.from_bytes(data[at : at + 2], "big")
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = (int.from_bytes(data[at + 3 + 2 * i : at + 5 + 2 * i], "big") for i in (0, 1))
            if all(MIN_SIDE <= side <= MAX_SIDE for side in (width, height)):
                return width, height
            break
        if kind == 0xDA or length < 2:
            break
        at += length
    raise InputError("a frame is a JPEG picture with sides of 64 to 4096 pixels")


def _store(folder: Path, entry: dict[str, Any], jpeg: bytes) -> None:
    """Write a frame, and then its line. Raises OSError."""
    with replacing(folder / f"{entry['index']:06d}.jpg", 0o600) as file:  # a full disk may have left it without a line
        file.write(jpeg)
    with open_again(folder / FRAMES_NAME) as file:
        end = file.seek(0, os.SEEK_END)
        try:
            write_at(file.fileno(), json.dumps(entry).encode() + b"\n", end)
        except OSError:
            os.ftruncate(file.fileno(), end)
            raise


def _end_file(folder: Path) -> None:
    """Mark a scan's folder as complete, if it is not."""
    frames = folder / FRAMES_NAME
    with suppress(OSError):
        data = read_file(frames)
        if b'"end"' in data[-200:]:
            return
        complete = data.rpartition(b"\n")[0]
        with open_again(frames) as file:  # a kill may have cut the last line
            file.seek(len(complete) + (1 if complete else 0))
            file.truncate()
            file.write(b'{"end": true}\n')
