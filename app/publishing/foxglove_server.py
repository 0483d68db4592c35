"""Server for Foxglove and programs that speak its WebSocket protocol (github.com/foxglove/ws-protocol)."""

import asyncio
import base64
import hmac
import json
import logging
import ssl
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from stream_recon.app.publishing.client_queue import ClientQueue
from stream_recon.app.publishing.foxglove_messages import FoxgloveEncoder, channels
from stream_recon.app.publishing.messages import NODE, Message, Topic, Transforms
from stream_recon.app.viewer.guard import MAX_CLIENTS, is_loopback, new_token, shown_host
from stream_recon.configs.errors import PortInUseError, ResourceError

log = logging.getLogger(__name__)

DEFAULT_PORT = 8765
SUBPROTOCOLS = [Subprotocol("foxglove.sdk.v1"), Subprotocol("foxglove.websocket.v1")]
"""Names of the protocol, of which clients know one or both."""
MESSAGE_DATA = 1
"""Opcode of a message."""
MAX_REQUEST_BYTES = 2**16
"""Bound of a client's message; a subscription has some hundred bytes."""
MAX_SUBSCRIPTIONS = 1000
"""Most subscriptions of a client."""
FOXGLOVE_ORIGIN = "https://app.foxglove.dev"
"""Origin of Foxglove's web page, which may connect to this machine."""
SEND_BUFFER = 2**16
"""Bytes that the connection itself holds back for a slow client."""
START_SECONDS, STOP_SECONDS = 60.0, 5.0
SILENT = logging.getLogger(f"{__name__}.websockets")
SILENT.setLevel(logging.CRITICAL + 1)
"""Logger of the web server, which would write a traceback for each malformed connection."""


@dataclass(eq=False)
class _FoxgloveClient:
    queue: ClientQueue = field(default_factory=ClientQueue)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    subscriptions: dict[int, Topic] = field(default_factory=dict)
    """Topics by the client's numbers."""


class FoxgloveSink:
    """Foxglove server; a client that does not keep up misses messages, and no other waits for it.

    Access is as for the viewer: on loopback, names of this machine without a token; else a token in the address.
    """

    lossless = False

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        token: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """
        Args:
            port: 0: any free port.
            token: where other machines can reach the server, require a token.
            tls: certificate and key; None: no encryption.

        Raises ResourceError: the port is in use, the host cannot be listened on, or the library is missing.
        """
        self._encoder, self._channels = FoxgloveEncoder(), channels()
        self.is_open = not is_loopback(host)
        """Whether other machines can reach the server."""
        self._token = new_token() if token and self.is_open else None
        self._clients: set[_FoxgloveClient] = set()
        self._subscribed: frozenset[Topic] = frozenset()
        self._joined: set[Topic] = set()
        self._wake: Callable[[], None] = lambda: None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="foxglove", daemon=True)
        self._thread.start()
        self._host = host
        try:
            self._server = self._call(self._serve(host, port, tls)).result(START_SECONDS)
        except TimeoutError as error:
            raise ResourceError("the server for Foxglove does not start: this machine is too busy") from error
        except OSError as error:
            self._stop_loop()
            if "in use" in str(error):
                where = "choose another with --publish foxglove://HOST:PORT"
                raise PortInUseError(f"port {port} is in use: {where}") from error
            raise ResourceError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
        self.port = int(next(iter(self._server.sockets)).getsockname()[1])
        self.url = f"{'ws' if tls is None else 'wss'}://{shown_host(host)}:{self.port}"
        if self._token is not None:
            self.url += f"/?token={self._token}"

    @property
    def address(self) -> str:
        return f"Foxglove, {self.url}"

    @property
    def clients(self) -> int:
        """Number of connected clients."""
        return len(self._clients)

    def start(self, wake: Callable[[], None]) -> None:
        self._wake = wake

    def wants(self, topic: Topic) -> bool:
        return topic in self._subscribed or topic is Topic.TF_STATIC

    def joined(self) -> frozenset[Topic]:
        topics = frozenset(self._joined)
        self._joined -= topics
        return topics

    def send(self, topic: Topic, message: Message) -> None:
        data = self._encoder(message)
        if not (isinstance(message, Transforms) and message.static):
            self._loop.call_soon_threadsafe(self._distribute, topic, message.stamp_ns, data)

    def close(self) -> None:
        if self._thread.is_alive():
            self._subscribed = frozenset()
            with suppress(TimeoutError):  # on a busy machine
                self._call(self._end()).result(STOP_SECONDS)
            self._stop_loop()

    # All below runs in the server's thread, except `_call` and `_stop_loop`.

    def _call(self, coroutine: Any) -> "Future[Any]":
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():
            self._loop.close()

    async def _serve(self, host: str, port: int, tls: ssl.SSLContext | None) -> Server:
        return await serve(
            self._handle, host or None, port, ssl=tls, subprotocols=SUBPROTOCOLS, process_request=self._refuse,
            max_size=MAX_REQUEST_BYTES, write_limit=SEND_BUFFER, compression=None, logger=SILENT,
        )  # fmt: skip

    async def _end(self) -> None:
        self._server.close(close_connections=True)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await asyncio.wait(tasks, timeout=0.5) if tasks else None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _refuse(self, connection: ServerConnection, request: Request) -> Response | None:
        """The response that refuses a request, or None."""
        if self._token is not None:
            tokens = parse_qs(urlsplit(request.path).query).get("token", [])[:8]
            if not any(hmac.compare_digest(each.encode(errors="replace"), self._token.encode()) for each in tokens):
                return connection.respond(HTTPStatus.FORBIDDEN, "Use the printed address, with its token.\n")
            return None
        if self.is_open:
            return None
        # A browser lets any page connect to this machine, also under another name that leads to it.
        host = urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
        origin = request.headers.get("Origin")
        if host not in ("localhost", "127.0.0.1", "::1", self._host.lower()):
            return connection.respond(HTTPStatus.FORBIDDEN, "Not a name of this machine.\n")
        origin_host = urlsplit(origin or "").hostname
        if origin is not None and origin != FOXGLOVE_ORIGIN and origin_host not in ("localhost", "127.0.0.1", "::1"):
            return connection.respond(HTTPStatus.FORBIDDEN, "Web pages of other origins have no access.\n")
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        if len(self._clients) >= MAX_CLIENTS or connection.subprotocol is None:
            await connection.close(1013 if connection.subprotocol else 1002, "not accepted")
            return
        client = _FoxgloveClient()
        self._clients.add(client)
        sender = asyncio.ensure_future(self._send_all(connection, client))
        try:
            await connection.send(json.dumps(self._server_info()))
            await connection.send(json.dumps({"op": "advertise", "channels": self._advertised()}))
            async for request in connection:
                self._take_request(client, request)
        except ConnectionClosed:
            pass
        finally:
            sender.cancel()
            self._clients.discard(client)
            self._count()

    async def _send_all(self, connection: ServerConnection, client: _FoxgloveClient) -> None:
        """Send what waits for a client, one message at a time, as fast as it takes them."""
        while True:
            await client.ready.wait()
            client.ready.clear()
            while (item := client.queue.take()) is not None:
                topic, stamp_ns, data = item
                for number, subscribed in list(client.subscriptions.items()):
                    if subscribed is topic:
                        await connection.send(struct.pack("<BIQ", MESSAGE_DATA, number, stamp_ns) + data)

    def _distribute(self, topic: Topic, stamp_ns: int, data: bytes) -> None:
        for client in self._clients:
            if topic in client.subscriptions.values():
                client.queue.put(topic, stamp_ns, data)
                client.ready.set()

    def _take_request(self, client: _FoxgloveClient, request: str | bytes) -> None:
        """Take a subscription or its end; all else is ignored."""
        try:
            message = json.loads(request)
            if message.get("op") == "subscribe":
                for each in message["subscriptions"][:MAX_SUBSCRIPTIONS]:
                    topic = self._channels[int(each["channelId"]) - 1].topic
                    if len(client.subscriptions) < MAX_SUBSCRIPTIONS and 0 <= int(each["id"]) < 2**32:
                        client.subscriptions[int(each["id"])] = topic
                        self._joined.add(topic)
                self._count()
                self._wake()
            elif message.get("op") == "unsubscribe":
                for number in message["subscriptionIds"]:
                    client.subscriptions.pop(int(number), None)
                self._count()
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            log.debug("a client of Foxglove sent a message that is not understood")

    def _count(self) -> None:
        self._subscribed = frozenset(topic for client in self._clients for topic in client.subscriptions.values())

    def _server_info(self) -> dict[str, Any]:
        return {"op": "serverInfo", "name": NODE, "capabilities": [], "metadata": {}, "sessionId": str(id(self))}

    def _advertised(self) -> list[dict[str, Any]]:
        return [
            {
                "id": number,
                "topic": each.topic.value,
                "encoding": each.encoding,
                "schemaName": each.schema_name,
                "schemaEncoding": each.schema_encoding,
                "schema": base64.b64encode(each.schema).decode()
                if each.schema_encoding == "protobuf"
                else each.schema.decode(),
            }
            for number, each in enumerate(self._channels, start=1)
        ]
