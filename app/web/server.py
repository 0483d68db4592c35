"""The server around the application: its address, TLS, limits of connections, and what it prints."""

import asyncio
import errno
import io
import logging
import os
import socket
import ssl
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from stream_recon.app.core.input_file import read_file
from stream_recon.app.core.output_file import replacing
from stream_recon.app.result.files import output_errors
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.viewer.guard import bound_socket, checked_public, is_loopback, new_token, shown_host
from stream_recon.app.web.access import AccessPolicy, ProxyUsers
from stream_recon.app.web.app import make_app
from stream_recon.app.web.certificate import own_certificate
from stream_recon.app.web.commands import store_pattern
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.scans import MAX_FRAME_BYTES
from stream_recon.configs.errors import ConfigError, OutputError, PortInUseError

DEFAULT_PORT = 8080
PORTS_TRIED = 100
MAX_CONNECTIONS = 256
"""Connections at a time; browsers open six for one page."""
HEAD_SECONDS = 15.0
"""Time for the handshake of TLS and a request's head to arrive."""
STALL_SECONDS = 30.0
"""Time for a client to take some of what waits for it."""
FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""Errors at which the system accepts no connection for a while."""
MAX_HEAD_BYTES = 32_768
STOP_SECONDS = 3
"""Time that open requests get at the end."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeOptions:
    """Choices of ``stream-recon serve``."""

    data: Path
    host: str = "127.0.0.1"
    port: int | None = None
    """None: `DEFAULT_PORT`, or the next free one."""
    jobs: int = 1
    tls: bool = False
    cert: Path | None = None
    key: Path | None = None
    token: bool = True
    quota: int | None = None
    """Bytes that the data folder may have; None: what the disk has."""
    public: str | None = None
    """Address at which a reverse proxy shows the server; None: there is none."""


class _StallGuard(asyncio.Protocol):
    """Closes connections whose client does not take what is sent."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stall_limit: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_limit = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stall_limit)

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._stall_limit)
        super().connection_lost(exc)


class GuardedProtocol(_StallGuard, H11Protocol):
    """Closes connections beyond `MAX_CONNECTIONS`, and those that neither send their request nor take the answer."""

    _head_limit: asyncio.TimerHandle | None = None
    _handshake: asyncio.Task[None] | None = None
    """Until the connection is encrypted."""
    _is_lost = False

    def __init__(self, *arguments: Any, tls: ssl.SSLContext | None = None, **named: Any) -> None:
        """``tls``: encrypts connections, here and not in the loop, which tells of them after the handshake alone."""
        super().__init__(*arguments, **named)
        self._tls, self._early = tls, b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._watch()
        if self._tls is not None:
            self._handshake = self.loop.create_task(self._encrypt(transport, self._tls))

    async def _encrypt(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        encrypted, failure = None, None
        try:
            encrypted = await self.loop.start_tls(
                transport, self, tls, server_side=True, ssl_handshake_timeout=HEAD_SECONDS
            )
        except OSError as error:  # no client of TLS, or too slow a one
            failure = error
        self._handshake = None
        if encrypted is None:
            self.connection_lost(failure)
        elif not self._is_lost:
            super().connection_made(encrypted)
            if self._early:
                self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if self._handshake is not None:
            self._early += data
            return
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._head_limit)
        if not self._is_lost:
            self._is_lost = True
            super().connection_lost(exc)

    @property
    def _is_answered(self) -> bool:
        """Whether there is a request that is not answered completely."""
        return self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY)

    def _watch(self) -> None:
        """Limit the time of a connection without a request, such as one that sends its head, or an unwanted body."""
        if self._is_answered:
            _cancel(self._head_limit)
            self._head_limit = None
        elif self._head_limit is None:
            self._head_limit = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self._head_limit = None
        if not self._is_answered:
            self.transport.abort()


class GuardedSocketProtocol(_StallGuard, WebSocketsSansIOProtocol):
    """Closes web sockets whose client does not take what is sent."""


class AcceptErrors:
    """Handler of the loop's errors, which tells once that the system accepts no more connections."""

    def __init__(self) -> None:
        self._is_told = False

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in FULL and "socket" in context):
            loop.default_exception_handler(context)
        elif not self._is_told:
            self._is_told = True
            log.warning("the system accepts no more connections for now: %s", error.strerror)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


class _QuietServer(uvicorn.Server):
    """Looks once a second whether it should end, in place of ten times."""

    async def main_loop(self) -> None:
        asyncio.get_running_loop().set_exception_handler(AcceptErrors())
        ticks = 0
        while not await self.on_tick(ticks):
            ticks = (ticks + 10) % 864_000
            await asyncio.sleep(1)


class Server:
    """A server that listens; `run` serves until Ctrl-C or SIGTERM."""

    def __init__(self, options: ServeOptions) -> None:
        """Bind the port and lock the data folder.

        Raises ConfigError, OutputError where another server uses the folder, ResourceError where the port cannot be
        listened on.
        """
        self._data = data = DataFolder(options.data, options.quota)
        try:
            data.make()
            data.measure()
        except OSError as error:
            raise OutputError(f"{options.data} cannot be used: {error.strerror}; choose another --data") from error
        self._lock = FolderLock(data.state, "server", "server.lock")
        try:
            self._open(options, data)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, options: ServeOptions, data: DataFolder) -> None:
        address = None if options.public is None else checked_public(options.public)
        self.is_open = not is_loopback(options.host) or address is not None
        """Whether other machines can reach the server."""
        tls = _certificate(options, data)
        self.has_tls = tls is not None
        self.users = ProxyUsers.of(os.environ)
        store_pattern()  # refuses a setting that is none
        token = _kept_token(data) if options.token and (self.is_open or self.users) else None
        self._socket = _listen(options.host, options.port)
        self.port = int(self._socket.getsockname()[1])
        base = address or f"{'https' if tls else 'http'}://{shown_host(options.host)}:{self.port}/"
        self.url = base + (f"?token={token}" if token else "")
        application = make_app(data, AccessPolicy(options.host, token, self.has_tls, address, self.users), options.jobs)
        logger = logging.getLogger("uvicorn.error")
        logger.setLevel(logging.ERROR)
        # Told of each web socket that is refused.
        logger.addFilter(lambda record: "without completing handshake" not in record.getMessage())
        config = uvicorn.Config(
            application,  # type: ignore[arg-type]
            loop="asyncio",  # uvloop upgrades no connection of ours to TLS
            http=partial(GuardedProtocol, tls=tls),  # type: ignore[arg-type]
            ws=GuardedSocketProtocol,
            ws_max_size=3 * MAX_FRAME_BYTES // 2,  # frames of sessions are in base64
            ws_max_queue=4,
            ws_per_message_deflate=False,
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        )
        self._server = _QuietServer(config)

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM. Jobs that run are interrupted and go on at the next start."""
        try:
            with suppress(KeyboardInterrupt):
                self._server.run(sockets=[self._socket])
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening, and let other servers use the data folder."""
        self._socket.close()
        self._lock.release()


def qr_code(url: str) -> str | None:
    """The address as a QR code of characters; None without the library."""
    try:
        import segno
    except ImportError:
        return None
    out = io.StringIO()
    segno.make(url, error="l").terminal(out, compact=True, border=2)
    return out.getvalue()


def _certificate(options: ServeOptions, data: DataFolder) -> ssl.SSLContext | None:
    """The certificate and key of the server; None: it does not encrypt. Raises ConfigError, OutputError."""
    if (options.cert is None) != (options.key is None):
        raise ConfigError("use --cert and --key together")
    if options.cert is None and not options.tls:
        return None
    cert = options.cert or own_certificate(data.secrets(), options.host)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        for path in filter(None, (cert, options.key)):
            read_file(path)  # a pipe would be waited for
        tls.load_cert_chain(cert, options.key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--cert and --key cannot be used: {error}") from error
    return tls


def _kept_token(data: DataFolder) -> str:
    """The data folder's token, which stays the same, so that phones and bookmarks keep their access."""
    path = data.secrets() / "token"
    with suppress(OSError, UnicodeDecodeError):
        if len(token := read_file(path).decode("ascii").strip()) >= 20:
            return token
    token = new_token()
    with output_errors(path), replacing(path, 0o600, durable=True) as file:
        file.write(token.encode())
    return token


def _listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens. Raises ResourceError."""
    for number in range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED) if port is None else ():
        with suppress(PortInUseError):
            return bound_socket(host, number)
    return bound_socket(host, DEFAULT_PORT if port is None else port)
