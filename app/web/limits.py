"""Bounds of what clients may hold of the server at a time, and its times."""

from contextvars import ContextVar
from dataclasses import dataclass

from stream_recon.app.sources.live import LIVE_LIMITS
from stream_recon.configs.errors import OutputError


@dataclass(frozen=True)
class WebLimits:
    """Bounds and times of one server."""

    sockets: int = 64
    """Web sockets; each viewer, scan and session has one."""
    sessions: int = 16
    """Sessions of ``/v1/stream``."""
    resume_s: float = 30.0
    """Time within which a cut session can be resumed."""
    unread: int = 1000
    """Messages that a session keeps for its client; with more it takes no frames of it."""
    unread_bytes: int = 32_000_000
    engine_s: float = 60.0
    """Longest silence of the sessions' engine at work; `SLOW_START` times that while it loads, and for one session."""
    waiting_jobs: int = 200
    scans: int = 4
    """Scans, of which most are being refined: a phone does not wait for that."""
    viewers: int = 4
    """Viewers of finished results; each holds a result in memory."""
    zip_files: int = 50_000
    """Files of a ZIP file; a longer capture is a video."""
    housekeeping_s: float = 15.0
    """Time between two looks for idle viewers, scans and uploads."""
    stall_s: float = 120.0
    """Time without a byte after which the job of an upload that comes is stopped, so that others get their turn."""
    loading_s: float = 1200.0
    """The same for a run that has reconstructed nothing."""
    viewer_idle_s: float = 120.0
    """Time without a page after which a viewer is closed."""
    scan_idle_s: float = 600.0
    """Time without frames after which a scan is ended."""
    scan_pause_s: float = LIVE_LIMITS.pause_s
    """Longest pause between frames of a scan; a longer one begins a new segment."""


SLOW_START = 5
RETRY = {"Retry-After": "5"}
"""Header of answers to what a limit refuses, in seconds."""


class BusyError(OutputError):
    """A limit is reached: the same request may be carried out later."""


class ConflictError(OutputError):
    """A request does not go with the present state."""


class MissingError(OutputError):
    """What a request names is not there."""


class NoRoomError(OutputError):
    """What a request would store has no room."""


USER: ContextVar[str] = ContextVar("user", default="")
"""Whom a proxy names as the user of a request or web socket; empty: nobody."""
USER_SHARE = 4
"""One user may have this part of each bound."""


def check_share(held: int, limit: int, what: str) -> None:
    """Raises BusyError where the present user has all that one user may have of a bound."""
    share = max(1, limit // USER_SHARE)
    if USER.get() and held >= share:
        raise BusyError(f"one user may have {share} {what} at a time")


DEFAULT_LIMITS = WebLimits()
