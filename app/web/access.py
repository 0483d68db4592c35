"""Access control of the server: own host and origin, the token as a cookie, and bounds on what one client may hold."""

import asyncio
import html
import ipaddress
import re
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.responses import HTMLResponse, PlainTextResponse
from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeaderValue
from websockets.http11 import Request

from stream_recon.app.viewer.guard import SECURITY_HEADERS, RequestGuard, own_sockets
from stream_recon.app.web.limits import RETRY, USER
from stream_recon.app.web.monitoring import ServerMetrics
from stream_recon.configs.errors import ConfigError

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

REQUEST_HEADER = b"x-stream-recon"
"""Header of every request that changes something: pages of other origins cannot send it."""
RECEIVE_SECONDS = 30.0
"""Time for the next part of a request's body."""
MIN_BYTES_PER_S = 1000
"""Rate at which a body has to come, after these seconds."""
CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' blob: data:; media-src 'self' blob:; connect-src 'self' {sockets}; "
    "frame-ancestors 'self'; base-uri 'none'; form-action 'none'; object-src 'none'"
)
"""Content security policy of the server's own pages, which have no inline scripts."""
VIEWER_POLICY = "default-src 'none'; frame-ancestors 'self'"
"""Policy of what a viewer sends without one of its own: its page has one, which names its scripts."""
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
PROBES = ("/healthz", "/readyz")
"""Paths that tell nothing of the results: a cluster asks for them by any name, and without the token."""

HEADER_VARIABLE, PROXIES_VARIABLE = "STREAM_RECON_USER_HEADER", "STREAM_RECON_PROXIES"
"""Environment variables that switch the login of a proxy on."""


@dataclass(frozen=True)
class ProxyUsers:
    """Users that a proxy has logged in and names in a header."""

    header: str
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
    """Addresses from which the header is believed."""

    @staticmethod
    def of(environment: Mapping[str, str]) -> "ProxyUsers | None":
        """What the environment switches on; None: nothing. Raises ConfigError."""
        header, addresses = (environment.get(name, "").strip() for name in (HEADER_VARIABLE, PROXIES_VARIABLE))
        if not header and not addresses:
            return None
        try:
            networks = tuple(ipaddress.ip_network(each.strip()) for each in addresses.split(","))
        except ValueError as error:
            raise ConfigError(f"{PROXIES_VARIABLE}: {error}; use 127.0.0.1 or 10.0.0.0/24, with commas") from error
        if public := next((network for network in networks if not network.is_private), None):
            raise ConfigError(f"{PROXIES_VARIABLE}: {public} is not of this machine or a private network")
        if not re.fullmatch("[A-Za-z0-9-]{1,64}", header):
            raise ConfigError(f"{HEADER_VARIABLE} {header!r}: use the name of a header, such as X-Forwarded-User")
        return ProxyUsers(header, networks)

    def user(self, headers: Headers, peer: str) -> str:
        """The user of a request; empty: it names none. Raises ConfigError where it is not to be believed."""
        names = headers.get_all(self.header)
        if names and not self._is_proxy(peer):
            raise ConfigError(f"{self.header} comes from the proxy alone.")
        # A comma joins what a client sent with what the proxy added.
        if names and (len(names) > 1 or not re.fullmatch(r"(?! )[^,\x00-\x1f\x7f-\x9f]{1,200}(?<! )", names[0])):
            raise ConfigError(f"{self.header} is not one name.")
        return names[0] if names else ""

    def _is_proxy(self, peer: str) -> bool:
        with suppress(ValueError):
            address = ipaddress.ip_address(peer.removeprefix("::ffff:"))
            return any(address in network for network in self.proxies)
        return False


@dataclass(frozen=True)
class AccessPolicy:
    """Who may use the application, and at which address."""

    host: str = "127.0.0.1"
    """Address that the server listens on."""
    token: str | None = None
    """None: names of this machine are enough."""
    tls: bool = False
    public: str | None = None
    """Address at which a reverse proxy shows the server; None: there is none."""
    users: ProxyUsers | None = None
    """Who needs no token; None: nobody."""

    @property
    def prefix(self) -> str:
        """Path of the pages, with a slash at the end."""
        return f"{urlsplit(self.public or '').path.rstrip('/')}/"

    @property
    def secure(self) -> bool:
        """Whether browsers reach the pages by HTTPS."""
        return self.tls if self.public is None else self.public.lower().startswith("https:")


class Access:
    """ASGI middleware that admits or refuses each request and web socket."""

    def __init__(self, app: Any, policy: AccessPolicy, max_sockets: int, metrics: ServerMetrics) -> None:
        self._max_sockets, self._metrics = max_sockets, metrics
        self._app, self._token, self._secure, self._prefix = app, policy.token, policy.secure, policy.prefix
        self._guard = RequestGuard(policy.host, "", policy.token, policy.public)
        self._users, self._user_guard = policy.users, RequestGuard(policy.host, "", None, policy.public)
        self._sockets = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        self._strip_prefix(scope)
        if scope["type"] == "websocket":
            await self._web_socket(scope, receive, send)
            return
        send = self._with_headers(scope, send)
        query = scope.get("query_string", b"").decode("latin-1")
        refusal = None if scope["path"] in PROBES else self._refusal(scope, query)
        if refusal is not None:
            await PlainTextResponse(f"{refusal}\n", 403)(scope, receive, send)
        elif scope["method"] in SAFE_METHODS and "token" in dict(parse_qsl(query)) and not USER.get():
            await self._enter(scope, query)(scope, receive, send)
        elif scope["method"] not in SAFE_METHODS and not any(k == REQUEST_HEADER for k, _ in scope["headers"]):
            await PlainTextResponse("Requests that change something come from the server's own page.\n", 403)(
                scope, receive, send
            )
        else:
            await self._app(scope, bounded_receive(receive), send)

    async def _web_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope, scope.get("query_string", b"").decode("latin-1"))
        if refusal is not None or self._sockets >= self._max_sockets:
            self._metrics.count("refusals_total", code=403 if refusal else 429)
            await receive()
            if refusal:
                await send({"type": "websocket.close", "code": 1008})
            else:
                await PlainTextResponse("too many web sockets are open\n", 429, RETRY)(scope, receive, send)
            return
        self._sockets += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._sockets -= 1

    def _refusal(self, scope: Scope, query: str) -> str | None:
        """Why a request is refused; None if it is admitted, and `USER` is set then."""
        guard, user = self._guard, ""
        try:
            headers = _headers(scope)
        except InvalidHeaderValue:
            return "A header has control characters."
        if self._users is not None:
            try:
                user = self._users.user(headers, (scope.get("client") or ("",))[0])
            except ConfigError as error:
                return str(error)
            guard = self._user_guard if user else guard
            if not user and self._token is None:
                return "The proxy names no user."
        USER.set(user)
        plain = Headers([(name, value) for name, value in headers.raw_items() if name.lower() != "upgrade"])
        refused = guard.refuse(Request(f"/?{query}", plain))
        return None if refused is None else bytes(refused.body or b"").decode().partition(": ")[2].strip()

    def _enter(self, scope: Scope, query: str) -> HTMLResponse:
        """A page that sets the cookie and leads to the same address without the token.

        It is no redirect: the browser would count that as a request of the page that held the link, and would not send
        a cookie that is strictly of this site.
        """
        parameters = urlencode([(key, value) for key, value in parse_qsl(query) if key != "token"])
        name = scope["path"].rpartition("/")[2]
        target = html.escape(f"./{name if name.isalnum() else ''}{'?' + parameters if parameters else ''}", quote=True)
        response = HTMLResponse(
            f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url={target}">'
            f'<title>stream-recon</title><a href="{target}">stream-recon</a>'
        )
        if self._token is not None:
            name = self._guard.cookie_name(_headers(scope))
            cookie = f"{name}={self._token}; HttpOnly; SameSite=Strict; Path={self._prefix}"
            response.headers["Set-Cookie"] = cookie + ("; Secure" if self._secure else "")
        return response

    def _strip_prefix(self, scope: Scope) -> None:
        """Take the proxy's path away where the proxy did not."""
        if self._prefix != "/" and scope["path"].startswith(self._prefix):
            scope["path"] = "/" + scope["path"][len(self._prefix) :]
            raw = scope.get("raw_path") or b""
            if raw.startswith(self._prefix.encode()):
                scope["raw_path"] = b"/" + raw[len(self._prefix) :]

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name.lower().encode(): value.encode() for name, value in SECURITY_HEADERS.items()}
                host = next((value for name, value in scope["headers"] if name == b"host"), b"")
                sockets = own_sockets(host.decode("latin-1"))
                policy = VIEWER_POLICY if scope["path"].startswith("/view/") else CONTENT_POLICY.format(sockets=sockets)
                if message["status"] >= 400:
                    self._metrics.count("refusals_total", code=message["status"])
                own[b"content-security-policy"] = policy.encode()
                present = {name.lower() for name, _ in message["headers"]}
                own.setdefault(b"cache-control", b"no-store")
                added = [(name, value) for name, value in own.items() if name not in present]
                message["headers"] = [*message["headers"], *added]
            await send(message)

        return send_with_headers


def _headers(scope: Scope) -> Headers:
    """Raises InvalidHeaderValue."""
    return Headers([(key.decode("latin-1"), value.decode("latin-1")) for key, value in scope["headers"]])


def bounded_receive(receive: Receive, clock: Callable[[], float] = time.monotonic) -> Receive:
    """Give up on a body that stalls or trickles. After the body, it waits for the client's end without a bound."""
    complete, received, began = False, 0, clock()

    async def bounded() -> Message:
        nonlocal complete, received
        if complete:
            return await receive()
        left = began + RECEIVE_SECONDS + received / MIN_BYTES_PER_S - clock()
        try:
            message = await asyncio.wait_for(receive(), min(left, RECEIVE_SECONDS))
        except TimeoutError:
            complete = True
            return {"type": "http.disconnect"}
        received += len(message.get("body", b""))
        complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return bounded
