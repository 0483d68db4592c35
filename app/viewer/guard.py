"""Access control of the viewer: checks requests and client messages before viser sees them.

A browser lets any web page open a websocket to any address, also of this machine, and an attacker's host name may
resolve to it (DNS rebinding). So a request must have the viewer's own origin and a name of this machine, or else the
token of the printed address.
"""

import errno
import hmac
import http
import ipaddress
import logging
import math
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard
from urllib.parse import parse_qs, urlsplit

import msgspec
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from stream_recon.configs.errors import ConfigError, PortInUseError, ResourceError

log = logging.getLogger(__name__)

EVERYWHERE = ("", "0.0.0.0", "::")
MAX_MESSAGE_BYTES = 2**16
"""Bound of a client's message; its camera and controls take some hundred bytes."""
MESSAGES_PER_S = 240.0
"""Mean rate at which a client's messages are read: four per frame of a 60 Hz display."""
MESSAGE_BURST = 960.0
"""Messages read at once: four seconds at the mean rate."""
MAX_BAD_MESSAGES = 20
"""Messages refused before a connection is closed."""
MAX_CLIENTS = 64
"""Clients connected at the same time; each costs memory and sending time."""
LARGEST_NUMBER = 1e9
"""Bound of numbers in messages, far above any coordinate."""
LARGEST_SIDE_PIXELS = 2**15
"""Bound of a client's window size."""
HINT = "open the printed address, or start the viewer with --public-address behind a proxy"
"""What to do about a refused request, as the page shows it."""
SECURITY_HEADERS = {
    "Content-Security-Policy": "frame-ancestors 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

PUBLIC = re.compile(r"https?://[^/?#@\s]+(/[\w./~-]*)?", re.IGNORECASE)
"""Form of an address at which a proxy shows a server."""
HOST = re.compile(r"[A-Za-z0-9.\-]{1,255}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?")


def own_sockets(host: str) -> str:
    """Web sockets of a page's own address, for its policy: not all browsers count them as of the same origin."""
    return f"ws://{host} wss://{host}" if HOST.fullmatch(host) else ""


def checked_public(address: str) -> str:
    """The address at which a proxy shows a server, with a slash at the end. Raises ConfigError."""
    if not PUBLIC.fullmatch(address):
        usual = "use https://HOST or https://HOST/PATH, of letters, digits, dashes and dots"
        raise ConfigError(f"--public-address {address}: {usual}")
    return f"{address.rstrip('/')}/"


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; port 0: any free one. Raises PortInUseError, ResourceError."""
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(128)
    except (OSError, OverflowError) as error:
        made.close()
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            raise port_in_use(port) from error
        raise ResourceError(f"cannot listen on {host} port {port} ({error}); choose with --host and --port") from error
    return made


def port_in_use(port: int) -> PortInUseError:
    """Error of a port that another program has."""
    return PortInUseError(f"port {port} is in use; choose another with --port")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on ``host``."""
    try:
        addresses = {str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host or "0.0.0.0", None)}
        return bool(addresses) and all(ipaddress.ip_address(address).is_loopback for address in addresses)
    except (OSError, ValueError):
        return False


def outward_address(host: str) -> str:
    """The address of this machine that other machines most likely reach, for a server on all addresses."""
    family, anywhere = (socket.AF_INET6, "2001:db8::1") if host == "::" else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((anywhere, 9))  # sends nothing, but asks for the route
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def shown_host(host: str) -> str:
    """The name in the address of a server that listens on ``host``."""
    name = outward_address(host) if host in EVERYWHERE else host
    return f"[{name}]" if ":" in name else name


def new_token() -> str:
    """A random token for one run: 128 bits."""
    return secrets.token_urlsafe(16)


class OnceFilter:
    """Logs the first warning of each kind."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def __call__(self, kind: str, line: str) -> None:
        if kind not in self._logged:
            self._logged.add(kind)
            log.warning("viewer: %s (logged once)", line)


class RequestGuard:
    """Admits requests, or gives the response that refuses them."""

    def __init__(self, host: str, subprotocol: str, token: str | None, public: str | None = None) -> None:
        """
        Args:
            token: required in the address; None: a name of this machine as the host is enough.
            public: address (http or https) at which a proxy shows the viewer.
        """
        parts = urlsplit(public or "")
        self._public = f"{parts.scheme}://{parts.netloc}".lower() if public else None
        self._names = {"localhost", "127.0.0.1", "::1", host.lower()} - {""}
        self._open = not is_loopback(host)
        if self._open:
            self._names |= {
                socket.gethostname().lower(),
                socket.getfqdn().lower(),
                f"{socket.gethostname()}.local".lower(),
            }
        self._names |= {parts.hostname} if parts.hostname else set()
        self._subprotocol = subprotocol
        self._token = token
        self.log_once = OnceFilter()

    def refuse(self, request: Request) -> Response | None:
        """The response that refuses a request, or None if it is admitted."""
        headers = request.headers
        host = _only(headers, "Host")
        origin = _only(headers, "Origin") if "Origin" in headers else None
        if host is None or ("Origin" in headers and origin is None):
            return _answer(http.HTTPStatus.FORBIDDEN, "Exactly one Host and at most one Origin are required.")
        if self._token is None and not self._is_ours(host):
            self.log_once("host", f"a request for the host name {host[:100]!r} was refused: open the printed address")
            return _answer(http.HTTPStatus.FORBIDDEN, f"Not a name of the viewer's machine: {HINT}.")
        own = (f"http://{host}".lower(), f"https://{host}".lower(), self._public)
        if origin is not None and origin.lower() not in own:
            self.log_once("origin", f"a web page of {origin[:100]!r} was refused access to the viewer")
            return _answer(http.HTTPStatus.FORBIDDEN, f"Web pages of other origins have no access: {HINT}.")
        if self._token is not None and not self._has_token(request):
            return _answer(http.HTTPStatus.FORBIDDEN, "Open the address that the program printed, with its token.")
        is_websocket = "websocket" in map(str.lower, _words(headers, "Upgrade"))
        if is_websocket and self._subprotocol not in _words(headers, "Sec-WebSocket-Protocol"):
            return _answer(http.HTTPStatus.BAD_REQUEST, "The web client is of another version: reload it.")
        return None

    def add_headers(self, request: Request, response: Response) -> Response:
        """The response with headers that keep it from other web pages, and with the token's cookie."""
        for name, value in SECURITY_HEADERS.items():
            response.headers[name] = value
        if self._token is not None:
            cookie = f"{self.cookie_name(request.headers)}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            if self._public is not None and self._public.startswith("https:"):
                cookie += "; Secure"
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
        tokens = parse_qs(urlsplit(request.path).query).get("token", [])
        name = self.cookie_name(request.headers)
        bearer = request.headers.get_all("Authorization")
        tokens += [value[7:] for value in bearer if value.startswith("Bearer ")]
        for header in request.headers.get_all("Cookie"):
            for part in header.split(";"):
                key, _, value = part.strip().partition("=")
                if key == name:
                    tokens.append(value)
        return any(hmac.compare_digest(value.encode(errors="replace"), self._token.encode()) for value in tokens[:8])

    def cookie_name(self, headers: Headers) -> str:
        """Name of the cookie. Cookies ignore ports, so each viewer of a machine needs its own name."""
        digits = "".join(c for c in headers["Host"].rpartition(":")[2] if c.isdecimal())
        return f"stream-recon-{digits}"


class MessageGuard:
    """Admits a client's messages: its camera, clicks on the scene, and new values of existing controls."""

    def __init__(self) -> None:
        self.find_control: Callable[[str], Any] = lambda _: None
        """Gives viser's control with a uuid, or None."""

    def allows(self, raw: str | bytes) -> bool:
        """Whether to pass a raw message on."""
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
        if kind == "ScenePointerMessage":
            return _is_click(message)
        return kind == "GuiUpdateMessage" and self._is_update(message)

    def _is_update(self, message: Mapping[str, Any]) -> bool:
        if set(message) != {"uuid", "updates"} or not isinstance(message["uuid"], str):
            return False
        control, updates = self.find_control(message["uuid"]), message["updates"]
        if control is None or not isinstance(updates, dict) or set(updates) != {"value"}:
            return False
        return _is_value_of(control, updates["value"])


class RateLimiter:
    """Token bucket: a mean rate with bursts."""

    def __init__(self, per_s: float = MESSAGES_PER_S, burst: float = MESSAGE_BURST) -> None:
        self._per_s, self._burst = per_s, burst
        self._left, self._at = burst, time.monotonic()

    def next_wait_s(self) -> float:
        """Count one message; gives the time to wait before the next."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._at) * self._per_s) - 1
        self._at = now
        return max(0.0, -self._left / self._per_s)


CAMERA_FIELDS = {
    "wxyz": 4, "position": 3, "look_at": 3, "up_direction": 3,
    "fov": 0, "near": 0, "far": 0, "image_height": 0, "image_width": 0,
}  # fmt: skip
"""Length of each field's list; 0: a single number."""


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


def _is_click(message: Mapping[str, Any]) -> bool:
    """Whether a message is a click on the scene, as its ray in the world."""
    if set(message) != {"event_type", "ray_origin", "ray_direction", "screen_pos", "modifier"}:
        return False
    if message["event_type"] != "click" or message["modifier"] is not None:
        return False
    positions = message["screen_pos"]
    if not isinstance(positions, list) or len(positions) != 1:
        return False
    lists = [(message["ray_origin"], 3), (message["ray_direction"], 3), (positions[0], 2)]
    return all(isinstance(v, list) and len(v) == count and all(map(_is_number, v)) for v, count in lists)


def _is_value_of(control: Any, value: object) -> bool:
    """Whether a control of viser can have a value."""
    current = control.value
    if isinstance(current, bool):
        return isinstance(value, bool)
    low, high = getattr(control, "min", -LARGEST_NUMBER), getattr(control, "max", LARGEST_NUMBER)
    if isinstance(current, int | float):
        return _is_number(value) and low <= value <= high
    if isinstance(current, tuple | list) and hasattr(control, "min"):
        if not isinstance(value, list) or len(value) != len(current) or not all(map(_is_number, value)):
            return False
        return all(low <= number <= high for number in value) and sorted(value) == value
    return isinstance(value, str) and value in getattr(control, "options", ())


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and abs(value) <= LARGEST_NUMBER


def _is_address(name: str) -> bool:
    """Whether a host name is an IP address, which no attacker can register."""
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


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
