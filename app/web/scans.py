"""Scans: sessions of ``/v1/stream`` whose frames are kept in a folder, which a job reconstructs as it grows.

To sessions they are an engine: what goes to a run is written to its folder, and what the run says is read there.
"""

import asyncio
import base64
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stream_recon.app.core.input_file import read_file
from stream_recon.app.core.output_file import open_again, replacing, write_new
from stream_recon.app.core.platform import write_at
from stream_recon.app.sources.images import checked_time
from stream_recon.app.sources.scan_folder import FEEDBACK_NAME, FRAMES_NAME
from stream_recon.app.web.commands import checked_title
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.engine_process import Message
from stream_recon.app.web.jobs import JobStore, WebJob
from stream_recon.app.web.limits import BusyError, NoRoomError, WebLimits
from stream_recon.app.web.runner import JobRunner
from stream_recon.app.web.threads import in_thread
from stream_recon.configs.errors import ConfigError, InputError, OutputError, ResourceError, StreamReconError

MAX_FRAME_BYTES = 2_000_000
"""Bound of a frame; 1280x720 has 0.1 to 0.3 MB."""
MAX_SIDE, MIN_SIDE = 4096, 64
POLL_SECONDS, PUSH_SECONDS = 0.005, 0.1
"""Time between two looks at what the run says, while a frame waits and between frames."""
CHECK_SECONDS = 0.5
"""Time between two looks whether the run goes on."""
MAX_AHEAD = 1
"""Frames on their way through the run, beyond which the next one, which is here, waits: more would only add delay."""
AHEAD_SECONDS, GUIDED_SECONDS = 3.0, 0.1
"""Longest such wait, and the longest while a line is shown: black frames never get a pose."""
TURNED = "Turn the phone back: all pictures of a scan are taken the same way up"


@dataclass
class Scan:
    """A scan in progress."""

    session: str
    hear: Callable[[Message], None]
    """Takes what the session is told."""
    job: WebJob
    folder: Path
    messages: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)
    """What its session sends."""
    task: asyncio.Task[None] | None = None
    numbers: list[int] = field(default_factory=list)
    """The client's number of each frame."""
    size: tuple[int, int] | None = None
    seconds: float | None = None
    """Time of the last frame."""
    segment: int = 0
    given: float = 0.0
    """When the last frame came from the session."""
    checked: float = 0.0
    taken: int = -1
    posed: int = -1
    is_guided: bool = False
    is_ended: bool = False
    """No frame follows."""
    is_over: bool = False
    """The run has told the last of it."""
    read_bytes: int = 0
    """Of what the run has said."""

    def say(self, message: Message) -> None:
        self.hear({**message, "session": self.session})

    def tell_news(self) -> None:
        """Tell the session what the run has said since the last call."""
        with suppress(OSError), (self.folder / FEEDBACK_NAME).open("rb") as file:
            file.seek(self.read_bytes)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.read_bytes += len(line)
                with suppress(ValueError, TypeError, LookupError):
                    self._note(json.loads(line))

    def _note(self, message: Message) -> None:
        match message["type"]:
            case "taken":
                self.taken = message["frame"]
                return
            case "result":
                self.posed = message["frame"]
                message["frame"] = self.numbers[self.posed]
            case "guidance":
                self.is_guided = bool(message["text"])
            case "session.done":
                self.is_over = True
        self.say(message)

    def may_go_on(self, taken_at: float) -> bool:
        """Whether few frames are on their way through the run, which took the last one at ``taken_at``."""
        longest_s = GUIDED_SECONDS if self.is_guided else AHEAD_SECONDS
        is_late = time.monotonic() - taken_at > longest_s
        return self.posed < 0 or len(self.numbers) - 1 - self.posed <= MAX_AHEAD or is_late


class Scans:
    """All scans of the server. Used from its event loop."""

    def __init__(self, store: JobStore, runner: JobRunner, data: DataFolder, limits: WebLimits) -> None:
        self._store, self._runner, self._data, self._limits = store, runner, data, limits
        self._scans: dict[str, Scan] = {}
        """By their sessions' ids."""
        for folder in data.scans.iterdir():  # of a server that was killed
            _end_file(folder)

    async def begin(self, session: str, config: Message, hear: Callable[[Message], None]) -> Message:
        """Begin a session's scan and its run; gives ``job`` and ``name`` of the result.

        Raises ConfigError, BusyError, NoRoomError, ResourceError, OSError.
        """
        checked_config(config, ("keep",))
        title = checked_title(config["keep"])
        if len(self._scans) >= self._limits.scans:
            raise BusyError(f"{self._limits.scans} scans are open: stop one first")
        self._data.check_quota()
        name = self._data.free_name(title or time.strftime("scan-%Y-%m-%d-%H%M"), self._store.names())
        folder = self._data.scans / f"{name.removesuffix('-recon')}-{session[:6]}"
        folder.mkdir(mode=0o700)
        write_new(folder / FRAMES_NAME, b"", 0o600)
        job = self._store.add("scan", name, str(folder), {})
        scan = self._scans[session] = Scan(session, hear, job, folder)
        await self._store.save_or(
            lambda: self._store.remove(job.id),
            lambda: self._scans.pop(session),
            lambda: shutil.rmtree(folder, ignore_errors=True),
        )
        self._runner.start()
        scan.task = asyncio.create_task(self._run(scan))
        return {"job": job.id, "name": name}

    def send(self, message: Message) -> None:
        """Pass a session's message on."""
        if (scan := self._scans.get(message["session"])) is not None:
            scan.messages.put_nowait(message)

    def end(self, job: int) -> bool:
        """End the scan of a job, whose run ends by itself then; False: there is none, or it has no frames."""
        scan = next((each for each in self._scans.values() if each.job.id == job and each.numbers), None)
        if scan is not None:
            scan.messages.put_nowait({"type": "video.done"})
        return scan is not None

    def close(self) -> None:
        """Forget all scans; the next start ends them."""
        for scan in self._scans.values():
            if scan.task is not None:
                scan.task.cancel()

    async def _run(self, scan: Scan) -> None:
        """Carry out what a session sends, and tell it what the run says, until one of them ends it."""
        error: Message = {"type": "error", "code": "engine_failed"}
        try:
            scan.say({"type": "ready"})
            while not scan.is_over:
                message: Message = {"type": ""}
                with suppress(TimeoutError):
                    message = await asyncio.wait_for(scan.messages.get(), PUSH_SECONDS)
                if message["type"] == "video.frame":
                    await self._take(scan, message)
                elif message["type"] and not scan.numbers:
                    await self._runner.stop(scan.job.id)
                    scan.say({"type": "session.done"})
                    break
                elif message["type"] == "session.close":
                    break
                elif message["type"] == "video.done":
                    scan.is_ended = True
                    _end_file(scan.folder)
                self._look(scan)
        except NoRoomError as reason:
            scan.say({**error, "code": "no_room", "message": str(reason)})
        except (StreamReconError, OSError) as reason:
            scan.say({**error, "message": str(reason)})
        finally:
            _end_file(scan.folder)
            self._scans.pop(scan.session, None)

    async def _take(self, scan: Scan, message: Message) -> None:
        """Store a frame and wait until the run asks for the next one. Raises NoRoomError, OutputError."""
        try:
            await self._store_frame(scan, message)
        except (InputError, ResourceError, OSError) as error:
            line = f"the frame cannot be stored: {error.strerror}" if isinstance(error, OSError) else str(error)
            scan.say({"type": "error", "code": "invalid_frame", "frame": message["frame"], "message": line})
        else:
            taken_at = 0.0
            while scan.messages.empty() and not scan.is_over:  # an end does not wait
                self._look(scan)
                if scan.taken >= len(scan.numbers) - 1:
                    taken_at = taken_at or time.monotonic()
                    if scan.may_go_on(taken_at):
                        break
                await asyncio.sleep(POLL_SECONDS)
        scan.say({"type": "ready"})

    def _look(self, scan: Scan) -> None:
        """Tell a session what its run says. Raises OutputError where the run has ended without an end."""
        now, job = time.monotonic(), scan.job
        is_due = now - scan.checked > CHECK_SECONDS
        if is_due:
            scan.checked, found = now, self._store.get(job.id)
            job = found or job
        scan.tell_news()
        if is_due and not scan.is_over and (found is None or not job.is_open):
            raise OutputError(job.error or "its run has ended")

    async def _store_frame(self, scan: Scan, message: Message) -> None:
        """Write a frame; a gap begins a new segment. Raises InputError, NoRoomError, OSError."""
        if scan.is_ended:
            raise InputError("the scan was ended: begin another one")
        jpeg = frame_data(message)
        if message.get("format", "jpeg") != "jpeg":
            raise InputError("frames that are kept are of the format jpeg")
        size, seconds = jpeg_size(jpeg), checked_time(message.get("time"), scan.seconds)
        if size != (scan.size or size):
            raise InputError(TURNED)
        if await in_thread(self._data.free_bytes) <= 0:
            raise NoRoomError("the disk is full: the scan was ended")
        # While the run loads, or is slow, no frame is asked for: only the client's own silence is a gap.
        silence_s = min(message["came"] - scan.given, seconds - (seconds if scan.seconds is None else scan.seconds))
        segment = scan.segment + (silence_s > self._limits.scan_pause_s)
        scan.given = time.monotonic()
        entry = {"index": len(scan.numbers), "time": seconds, "segment": segment}
        await in_thread(_store, scan.folder, entry, jpeg)
        scan.size, scan.seconds, scan.segment = size, seconds, segment
        scan.numbers.append(message["frame"])


def checked_config(config: Message, keys: Collection[str]) -> None:
    """Raises ConfigError where a session's configuration has other keys."""
    if unknown := sorted(config.keys() - {"type", *keys}):
        raise ConfigError(f"session.config has {', '.join(unknown)[:200]}: use {', '.join(keys)}")


def frame_data(message: Message) -> bytes:
    """The bytes of a frame. Raises InputError."""
    try:
        return base64.b64decode(message["data"], validate=True)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError("a frame has data in base64") from error


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
