"""Who may talk to the viewer, and what a page may say: everything else ends here, before viser sees it.

A browser lets any web page open a websocket to any address, this machine's included, and a name of the attacker's may
be made to point here (DNS rebinding). So a page has to come from the very address that it talks to, under a name that
is surely this machine's, or else with the token that only the printed address has.
"""

import hmac
import http
import ipaddress
import logging
import math
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

log = logging.getLogger(__name__)

EVERYWHERE = ("", "0.0.0.0", "::")
LARGEST_MESSAGE_BYTES = 2**16
"""From a page. Its camera and its controls take some hundred bytes."""
MESSAGES_PER_S = 240.0
"""From a page, on the long run; a page that says more is read more slowly."""
MESSAGE_BURST = 960.0
BAD_MESSAGES = 20
"""After so many a connection is closed."""
PAGES = 64
"""Connected at the same time."""
LARGEST_NUMBER = 1e9
LARGEST_SIDE_PIXELS = 2**15
SECURITY_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on ``host``."""
    try:
        found = {str(entry[4][0]) for entry in socket.getaddrinfo(host or "0.0.0.0", None)}
        return bool(found) and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)
    except (OSError, ValueError):
        return False


def outward_address(host: str) -> str:
    """The address by which other machines most likely reach what listens on all of this machine's."""
    family, anywhere = (socket.AF_INET6, "2001:db8::1") if host == "::" else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))  # sends nothing, but asks for the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def new_token() -> str:
    """For one run, too long to be guessed."""
    return secrets.token_urlsafe(16)


class OnceFilter:
    """Writes one line of each kind to the log, however often it happens."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, kind: str, line: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.warning("viewer: %s (said once)", line)


class RequestGuard:
    """Lets requests in, or gives the answer that refuses them."""

    def __init__(self, host: str, subprotocol: str, token: str | None) -> None:
        """``token``: what the address has to have; None: whoever reaches the port under a name of this machine."""
        self._names = {"localhost", "127.0.0.1", "::1", host.lower()} - {""}
        self._open = not is_loopback(host)
        if self._open:
            self._names |= {
                socket.gethostname().lower(),
                socket.getfqdn().lower(),
                f"{socket.gethostname()}.local".lower(),
            }
        self._subprotocol = subprotocol
        self._token = token
        self.say = OnceFilter()

    def refuse(self, request: Request) -> Response | None:
        """An answer that says no, or None for a request that may pass."""
        headers = request.headers
        host = _only(headers, "Host")
        origin = _only(headers, "Origin") if "Origin" in headers else None
        if host is None or ("Origin" in headers and origin is None):
            return _answer(http.HTTPStatus.FORBIDDEN, "One Host and at most one Origin are wanted.")
        if self._token is None and not self._is_ours(host):
            self.say("host", f"a page that calls this machine {host[:100]!r} was refused")
            return _answer(http.HTTPStatus.FORBIDDEN, "This is not a name of the machine that the viewer runs on.")
        if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
            self.say("origin", f"a page of {origin[:100]!r} wanted to use the viewer and was refused")
            return _answer(http.HTTPStatus.FORBIDDEN, "Pages of other origins are not let in.")
        if self._token is not None and not self._has_token(request):
            return _answer(http.HTTPStatus.FORBIDDEN, "Open the address that the program printed, with its token.")
        if _is_websocket(headers) and self._subprotocol not in _words(headers, "Sec-WebSocket-Protocol"):
            return _answer(http.HTTPStatus.BAD_REQUEST, "The page is of another version: load it again.")
        return None

    def dress(self, request: Request, response: Response) -> Response:
        """The answer to a request that passed, with what keeps browsers from sharing it with other pages."""
        for name, value in SECURITY_HEADERS.items():
            response.headers[name] = value
        if self._token is not None:
            cookie = f"{self._cookie(request.headers)}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            response.headers["Set-Cookie"] = cookie
        return response

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self._names or (self._open and _is_address(name))

    def _has_token(self, request: Request) -> bool:
        assert self._token is not None
        given = parse_qs(urlsplit(request.path).query).get("token", [])
        name = self._cookie(request.headers)
        for header in request.headers.get_all("Cookie"):
            for part in header.split(";"):
                key, _, value = part.strip().partition("=")
                if key == name:
                    given.append(value)
        return any(hmac.compare_digest(value.encode(errors="replace"), self._token.encode()) for value in given[:8])

    def _cookie(self, headers: Headers) -> str:
        """Cookies know no ports: two viewers of one machine need two names."""
        digits = "".join(c for c in headers["Host"].rpartition(":")[2] if c.isdecimal())
        return f"stream-recon-{digits}"


class MessageGuard:
    """Lets through what a page has to say: where its camera is, and new values of the controls that there are."""

    def __init__(self) -> None:
        self.find_control: Callable[[str], Any] = lambda _: None
        """A control of viser's by its uuid, or None."""

    def allows(self, raw: str | bytes) -> bool:
        """Whether a message as it came may be handed on."""
        if not isinstance(raw, bytes):
            return False
        try:
            message = msgspec.msgpack.decode(raw)
        except (ValueError, RecursionError):
            return False
        if not isinstance(message, dict):
            return False
        kind = message.pop("type", None)
        if kind == "ViewerCameraMessage":
            return _is_camera(message)
        return kind == "GuiUpdateMessage" and self._is_update(message)

    def _is_update(self, message: Mapping[str, Any]) -> bool:
        if set(message) != {"uuid", "updates"} or not isinstance(message["uuid"], str):
            return False
        control, updates = self.find_control(message["uuid"]), message["updates"]
        if control is None or not isinstance(updates, dict) or set(updates) != {"value"}:
            return False
        value, now = updates["value"], control.value
        if isinstance(now, bool):
            return isinstance(value, bool)
        if isinstance(now, int | float):
            low, high = getattr(control, "min", -LARGEST_NUMBER), getattr(control, "max", LARGEST_NUMBER)
            return _is_number(value) and low <= value <= high
        return False


class RateLimiter:
    """So many messages a second, and more for a moment (a token bucket)."""

    def __init__(self, per_s: float = MESSAGES_PER_S, burst: float = MESSAGE_BURST) -> None:
        self._per_s, self._burst = per_s, burst
        self._left, self._at = burst, time.monotonic()

    def next_wait_s(self) -> float:
        """Take one; how long to wait before the next."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - 1
        self._at = now
        return max(0.0, -self._left / self._per_s)


CAMERA_FIELDS = {
    "wxyz": 4, "position": 3, "look_at": 3, "up_direction": 3,
    "fov": 0, "near": 0, "far": 0, "image_height": 0, "image_width": 0,
}  # fmt: skip
"""Numbers in each field; 0: not a list."""


def _is_camera(message: Mapping[str, Any]) -> bool:
    if set(message) != set(CAMERA_FIELDS):
        return False
    for name, count in CAMERA_FIELDS.items():
        value = message[name]
        numbers = [value] if count == 0 else value
        if not isinstance(numbers, list) or len(numbers) != max(count, 1) or not all(map(_is_number, numbers)):
            return False
    sides = message["image_height"], message["image_width"]
    return all(isinstance(side, int) and 0 <= side <= LARGEST_SIDE_PIXELS for side in sides)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) <= LARGEST_NUMBER


def _is_address(name: str) -> bool:
    """A name that nobody can register."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_websocket(headers: Headers) -> bool:
    return "websocket" in {word.lower() for word in _words(headers, "Upgrade")}


def _words(headers: Headers, name: str) -> list[str]:
    return [word.strip() for header in headers.get_all(name) for word in header.split(",")]


def _only(headers: Headers, name: str) -> str | None:
    values = headers.get_all(name)
    return values[0].strip() if len(values) == 1 else None


def _answer(status: http.HTTPStatus, text: str) -> Response:
    body = f"{status.phrase}: {text}\n".encode()
    headers = Headers(
        {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), **SECURITY_HEADERS}
    )
    return Response(status.value, status.phrase, headers, body)
