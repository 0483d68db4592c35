"""The real server: start, idle load, slow and stalled clients, many connections, and a reverse proxy in front."""

import asyncio
import base64
import contextlib
import errno
import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import websockets.sync.client
from cryptography import x509
from websockets.exceptions import WebSocketException

from stream_recon.app.web import certificate, server
from stream_recon.app.web.access import RECEIVE_SECONDS, bounded_receive
from stream_recon.app.web.certificate import own_certificate
from stream_recon.app.web.commands import export_file
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import JobStore
from stream_recon.app.web.limits import DEFAULT_LIMITS
from stream_recon.app.web.server import MAX_CONNECTIONS, ServeOptions, Server, qr_code
from stream_recon.configs.errors import ConfigError, OutputError
from tests.app.result.test_writer import write_run
from tests.app.web.browsing import ServerProcess, until
from tests.app.web.serving import ENGINE, HEADER
from tests.app.web.test_scans import jpeg

IDLE_SECONDS = 3
PACE = 20


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    data = tmp_path_factory.mktemp("served") / "data"
    with ServerProcess(data) as process:
        yield process


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose limits of time come `PACE` times sooner."""
    with ServerProcess(tmp_path_factory.mktemp("served") / "data", pace=PACE) as process:
        yield process


def get(running: ServerProcess, path: str = "") -> bytes:
    with urllib.request.urlopen(running.url + path, timeout=20) as answer:
        return bytes(answer.read())


@pytest.mark.slow
def test_it_starts_fast_and_costs_nothing_while_idle(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as process:
        assert b"stream-recon" in get(process)
        print(f"start to page: {time.monotonic() - process.began:.2f} s")
        own = Path(f"/proc/{process.process.pid}")
        until(lambda: get(process, "api/state"))

        def processor_seconds() -> float:
            fields = (own / "stat").read_text().rpartition(") ")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        started = processor_seconds()
        before = processor_seconds()
        time.sleep(IDLE_SECONDS)
        used = processor_seconds() - before
        resident = int((own / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        print(f"processor time to the page {started:.2f} s; idle: {100 * used / IDLE_SECONDS:.2f} %, {resident:.0f} MB")
        assert started < 2.0 and used / IDLE_SECONDS < 0.02 and resident < 250


def test_pages_answer_while_silent_clients_hold_connections(running: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
        for _ in range(20):
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", running.port)))
            slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1")
        assert b"stream-recon" in get(running)


def test_connections_are_bounded(running: ServerProcess) -> None:
    with contextlib.ExitStack() as stack:
        ends = []
        for _ in range(MAX_CONNECTIONS + 20):
            ends.append(stack.enter_context(socket.create_connection(("127.0.0.1", running.port))))
        ends[-1].settimeout(5)
        with contextlib.suppress(ConnectionError):
            assert ends[-1].recv(1) == b""
    until(lambda: get(running))


def test_a_head_that_does_not_come_ends_the_connection(hasty: ServerProcess) -> None:
    with socket.create_connection(("127.0.0.1", hasty.port)) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        slow.settimeout(server.HEAD_SECONDS)
        with contextlib.suppress(ConnectionError):
            while slow.recv(1000):
                pass


def test_silent_clients_are_counted_and_dropped_before_their_handshake(tmp_path: Path) -> None:
    """With encryption, a connection counts from its accept on, as without."""
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    with ServerProcess(tmp_path / "data", "--tls", pace=PACE) as process, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", process.port)
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(MAX_CONNECTIONS + 20)]
        silent[-1].settimeout(5)
        with contextlib.suppress(ConnectionError):
            assert silent[-1].recv(1) == b""

        def page() -> bytes:
            with tls.wrap_socket(socket.create_connection(address, timeout=5)) as client:
                # With the end of the handshake, as browsers send it.
                client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                return b"".join(iter(lambda: client.recv(65536), b""))

        until(lambda: b"stream-recon" in page())
        silent[150].settimeout(server.HEAD_SECONDS)
        with contextlib.suppress(ConnectionError):
            assert silent[150].recv(1) == b""


def test_a_body_that_nobody_wants_does_not_hold_a_connection(hasty: ServerProcess) -> None:
    """The refusal was sent long before the body ends."""
    with socket.create_connection(("127.0.0.1", hasty.port), timeout=30) as client:
        client.sendall(b"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 30000\r\n\r\n")
        assert b" 403 " in client.recv(100)
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < server.HEAD_SECONDS:
                client.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() - began < server.HEAD_SECONDS


def test_a_body_has_to_come_at_a_rate() -> None:
    """A byte before each limit's end would last for ever."""
    clock = [0.0]

    async def trickle() -> dict[str, Any]:
        clock[0] += 5
        return {"type": "http.request", "body": b"x" * 10, "more_body": True}

    async def run() -> int:
        receive = bounded_receive(trickle, lambda: clock[0])
        for number in range(100):
            if (await receive())["type"] == "http.disconnect":
                return number
        return 100

    assert asyncio.run(run()) <= RECEIVE_SECONDS / 5 + 1


def test_errors_of_accepting_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(server.AcceptErrors())
    with socket.socket() as listening:
        for _ in range(5):
            error = OSError(errno.EMFILE, "Too many open files")
            loop.call_exception_handler({"message": "accept", "exception": error, "socket": listening})
    assert len(caplog.records) == 1 and caplog.records[0].exc_info is None
    loop.call_exception_handler({"message": "another error", "exception": ValueError("x")})
    assert len(caplog.records) == 2
    loop.close()


@pytest.mark.parametrize(
    "head",
    [
        b"POST /api/uploads HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Stream-Recon: 1\r\nContent-Length: 10000000000\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 2_000_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 2_000_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PUT / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
    ],
)
def test_heads_that_mean_harm_are_refused(running: ServerProcess, head: bytes) -> None:
    with (
        socket.create_connection(("127.0.0.1", running.port), timeout=10) as client,
        contextlib.suppress(ConnectionError),
    ):
        client.sendall(head)
        assert client.recv(100).split(b" ")[1:2] in ([b"400"], [b"403"], [b"413"], [b"431"], [])
    assert b"stream-recon" in get(running)


@pytest.mark.slow
def test_five_hundred_connections_are_bounded_and_a_session_goes_on(tmp_path: Path) -> None:
    write_run(tmp_path / "data" / "hall")
    with ServerProcess(tmp_path / "data", engine=ENGINE) as process, contextlib.ExitStack() as stack:
        address = f"ws://127.0.0.1:{process.port}/v1/stream"
        good = stack.enter_context(websockets.sync.client.connect(address))
        ask(good, {"type": "session.config"}, "session.created")
        held = []
        for _ in range(500):
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", process.port)))
            silent.settimeout(20)
            silent.sendall(UPGRADE)
            held.append(silent)
        statuses = Counter(status(silent) for silent in held)
        assert statuses["101"] == DEFAULT_LIMITS.sockets - 1
        assert statuses["101"] + statuses["429"] == MAX_CONNECTIONS - 1 and statuses[""] == 500 - MAX_CONNECTIONS + 1
        delays = [answer_s(good, number) for number in range(20)]
        assert np.percentile(delays, 95) < 0.5
        held[-1].close()
    assert process.process.returncode == 0


@pytest.mark.slow
def test_sessions_that_never_read_are_cut_and_leave_others_unharmed(tmp_path: Path) -> None:
    picture = base64.b64encode(bytes(640 * 480 * 3)).decode()
    with ServerProcess(tmp_path / "data", engine=ENGINE, pace=4) as process, contextlib.ExitStack() as stack:
        good = stack.enter_context(websockets.sync.client.connect(f"ws://127.0.0.1:{process.port}/v1/stream"))
        ask(good, {"type": "session.config"}, "session.created")
        greedy = []
        for _ in range(6):
            silent = stack.enter_context(socket.socket())
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", process.port))
            silent.sendall(UPGRADE)
            assert status(silent) == "101"
            silent.setblocking(False)
            greedy.append(silent)
        config = masked({"type": "session.config", "include": ["depth", "confidence"]})
        left = {silent: config for silent in greedy}
        ends, number, most, delays = time.monotonic() + 60, 0, 0, list[float]()
        while left and time.monotonic() < ends:
            number += 1
            frame = {"type": "video.frame", "frame": number, "data": picture}
            for silent in list(left):
                try:
                    left[silent] = left[silent][silent.send(left[silent]) :] or masked(
                        {**frame, "format": "rgb", "width": 640, "height": 480}
                    )
                except BlockingIOError:
                    pass
                except OSError:
                    del left[silent]
            delays.append(answer_s(good, number))
            most = max(most, int(Path(f"/proc/{process.process.pid}/statm").read_text().split()[1]))
        assert not left, "each was cut"
        assert np.percentile(delays, 95) < 0.5
        assert most * os.sysconf("SC_PAGE_SIZE") < 600e6


UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def status(client: socket.socket) -> str:
    """The status of the answer; empty where the connection was closed without one."""
    with contextlib.suppress(ConnectionError):
        if found := re.match(rb"HTTP/1.1 (\d+)", client.recv(200)):
            return found[1].decode()
    return ""


def masked(message: dict[str, Any]) -> bytes:
    """A text frame of a client."""
    text = json.dumps(message).encode()
    return b"\x81\xff" + len(text).to_bytes(8, "big") + bytes(4) + text


def ask(client: Any, message: dict[str, Any], kind: str) -> dict[str, Any]:
    """The first answer of a kind."""
    client.send(json.dumps(message))
    while (answer := json.loads(client.recv(timeout=20)))["type"] != kind:
        assert answer["type"] != "error", answer
    return dict(answer)


def answer_s(client: Any, number: int) -> float:
    """Seconds from a frame to its result."""
    began = time.monotonic()
    data = base64.b64encode(jpeg()).decode()
    result = ask(client, {"type": "video.frame", "frame": number, "data": data}, "result")
    client.send(json.dumps({"type": "session.received", "received": result["seq"]}))
    return time.monotonic() - began


@pytest.mark.slow
def test_a_page_that_never_reads_is_dropped(tmp_path: Path) -> None:
    places = DataFolder(tmp_path / "data")
    places.make()
    write_run(places.path / "hall")
    store = JobStore(places.queue)
    job = store.add("export", "hall", "points", {})
    store.set_state(job.id, "done")
    store.close()
    file = export_file(job, places)
    file.parent.mkdir()
    file.write_bytes(bytes(80_000_000))
    with ServerProcess(places.path, pace=PACE) as process:
        assert len(get(process, f"api/exports/{job.id}")) == 80_000_000
        with socket.create_connection(("127.0.0.1", process.port)) as client:
            client.sendall(f"GET /api/exports/{job.id} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            time.sleep(server.STALL_SECONDS / PACE + 3)
            assert get(process)  # others are served
            client.settimeout(10)
            received = 0
            with contextlib.suppress(ConnectionError):
                while data := client.recv(2**20):
                    received += len(data)
            assert received < 40_000_000


@pytest.mark.slow
def test_viewer_pages_that_never_read_are_dropped_and_leave_the_viewer_to_others(tmp_path: Path) -> None:
    write_run(tmp_path / "data" / "hall")
    import viser

    protocol = f"viser-v{viser.__version__}"
    with ServerProcess(tmp_path / "data") as process, contextlib.ExitStack() as stack:
        until(lambda: b"stream-recon-page" in get(process, "view/hall/"), 120)
        head = (
            f"GET /view/hall HTTP/1.1\r\nHost: 127.0.0.1:{process.port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            f"Sec-WebSocket-Protocol: {protocol}\r\n\r\n"
        )
        for _ in range(4):
            silent = stack.enter_context(socket.socket())
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", process.port))
            silent.sendall(head.encode())
        time.sleep(2)
        address = f"ws://127.0.0.1:{process.port}/view/hall"
        for _ in range(2):
            with websockets.sync.client.connect(address, subprotocols=[protocol], max_size=None) as page:
                assert len(page.recv(30)) > 0
            assert json.loads(get(process, "api/state"))["results"][0]["name"] == "hall"


@pytest.mark.slow
def test_a_frame_of_ten_megabytes_ends_its_connection_alone(running: ServerProcess) -> None:
    address = running.url.replace("http", "ws") + "v1/stream"
    with websockets.sync.client.connect(address) as other, websockets.sync.client.connect(address) as large:
        with contextlib.suppress(WebSocketException):
            large.send(json.dumps({"type": "session.config", "camera": "x" * 10_000_000}))
        with pytest.raises(WebSocketException):
            large.recv(timeout=20)
        other.send(json.dumps({"type": "video.done"}))
        assert json.loads(other.recv(timeout=20))["code"] == "invalid_message"
    assert json.loads(get(running, "healthz")) == {"status": "ok"}


@pytest.mark.parametrize("beginning", [None, b'{"type": "session.config"'])
def test_a_session_whose_first_message_does_not_come_is_ended(hasty: ServerProcess, beginning: bytes | None) -> None:
    with websockets.sync.client.connect(hasty.url.replace("http", "ws") + "v1/stream") as silent:
        if beginning is not None:
            frame = bytes([1, 0x80 | len(beginning), 0, 0, 0, 0]) + beginning  # text, and more to come
            silent.socket.sendall(frame)
        assert json.loads(silent.recv(timeout=10))["code"] == "timeout"
        with pytest.raises(WebSocketException):
            silent.recv(timeout=10)


def test_a_client_that_goes_away_in_the_middle_leaves_the_rest_unharmed(running: ServerProcess) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)

    def ask(method: str, path: str, body: object = None) -> dict[str, object]:
        connection.request(method, path, json.dumps(body) if body is not None else None, HEADER)
        found: dict[str, object] = json.loads(connection.getresponse().read())
        return found

    number = ask("POST", "/api/uploads", {"name": "a.mp4", "size": 1_000_000})["id"]
    head = (
        f"PATCH /api/uploads/{number}?offset=0 HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        "X-Stream-Recon: 1\r\nContent-Length: 900000\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", running.port)) as gone:
        gone.sendall(head.encode() + b"x" * 5000)
        until(lambda: ask("GET", f"/api/uploads/{number}")["offset"] == 5000, 10)
    assert ask("GET", f"/api/uploads/{number}")["offset"] == 5000
    with websockets.sync.client.connect(f"ws://127.0.0.1:{running.port}/v1/stream") as phone:
        phone.send(json.dumps({"type": "session.config", "keep": ""}))
        job = json.loads(phone.recv())["job"]
        data = base64.b64encode(jpeg()).decode()
        phone.send(json.dumps({"type": "video.frame", "frame": 0, "data": data}))  # and leaves before the answer
    until(lambda: ask("GET", "/api/state")["jobs"])
    ask("POST", f"/api/jobs/{job}/stop")


def test_one_server_for_a_folder(tmp_path: Path) -> None:
    first = Server(ServeOptions(tmp_path, port=0))
    try:
        with pytest.raises(OutputError, match="another server"):
            Server(ServeOptions(tmp_path, port=0))
    finally:
        first.close()


def test_the_token_stays_for_a_folder_and_only_beyond_loopback(tmp_path: Path) -> None:
    found = []
    for _ in range(2):
        process = Server(ServeOptions(tmp_path, host="0.0.0.0", port=0))
        found.append(process.url.partition("?token=")[2])
        process.close()
    assert found[0] == found[1] and len(found[0]) >= 20
    kept = list(Path(os.environ["XDG_STATE_HOME"]).glob("stream-recon/*/token"))
    assert [path.stat().st_mode & 0o077 for path in kept if path.read_text() == found[0]] == [0]
    local = Server(ServeOptions(tmp_path, port=0))
    assert "token" not in local.url
    local.close()


def test_a_strangers_data_folder_brings_neither_token_nor_key(tmp_path: Path) -> None:
    """Who made the folder knows both; not even modes and owner tell, since unpacking makes them the user's."""
    Server(ServeOptions(tmp_path, port=0)).close()
    state = tmp_path / ".stream-recon-serve"
    own_certificate(state, "0.0.0.0")
    (state / "token").write_text("known-to-the-stranger-1234")
    with ServerProcess(tmp_path, "--host", "0.0.0.0", "--tls") as process:
        assert "known-to-the-stranger" not in process.url and "?token=" in process.url
        used = ssl.get_server_certificate(("127.0.0.1", process.port))
    assert used not in (state / "certificate.pem").read_text()


def test_addresses_of_proxies_are_checked(tmp_path: Path) -> None:
    for wrong in (
        "example.org",
        "ftp://a/",
        "https://a/?c",
        "https://a/<b>/",
        "https://a/#b",
        "https:///b",
        "https://a/b c",
    ):
        with pytest.raises(ConfigError):
            Server(ServeOptions(tmp_path, port=0, public=wrong))
    for right in ("https://example.org", "http://example.org:81/", "https://example.org/a_b/c-d.e~/"):
        with contextlib.closing(Server(ServeOptions(tmp_path, port=0, public=right, token=False))) as found:
            assert found.url == right.rstrip("/") + "/" and found.is_open


def test_its_own_certificate_is_kept_and_names_this_machine(tmp_path: Path) -> None:
    path = own_certificate(tmp_path, "0.0.0.0")
    first = path.read_bytes()
    assert own_certificate(tmp_path, "0.0.0.0").read_bytes() == first
    assert path.stat().st_mode & 0o077 == 0 and list(tmp_path.iterdir()) == [path]
    context = ssl.create_default_context(cafile=str(path))
    context.load_cert_chain(path)
    found = x509.load_pem_x509_certificate(first)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "localhost" in names.get_values_for_type(x509.DNSName)
    left = found.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=certificate.RENEW_DAYS) < left <= timedelta(days=825), "phones refuse longer ones"
    assert found.not_valid_before_utc < datetime.now(UTC)
    assert own_certificate(tmp_path, "192.168.7.7").read_bytes() != first, "another address"


@pytest.mark.parametrize("damage", ["cut", "empty", "key of another", "ends soon"])
def test_a_certificate_that_cannot_serve_is_made_again(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = own_certificate(tmp_path, "0.0.0.0").read_bytes()
    path = tmp_path / "certificate.pem"
    if damage == "key of another":
        path.unlink()
        other = own_certificate(tmp_path, "0.0.0.0").read_bytes()
        mark = b"-----BEGIN CERT"
        content = content.partition(mark)[0] + mark + other.partition(mark)[2]
    if damage == "ends soon":
        later = datetime.now(UTC) + timedelta(days=certificate.DAYS - certificate.RENEW_DAYS)
        monkeypatch.setattr(certificate, "datetime", SimpleNamespace(now=lambda _: later))
    path.write_bytes({"cut": content[: len(content) // 2], "empty": b""}.get(damage, content))
    damaged = path.read_bytes()
    assert own_certificate(tmp_path, "0.0.0.0").read_bytes() != damaged
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)


def test_the_address_is_drawn() -> None:
    drawn = qr_code("https://192.168.1.20:8080/scan?token=abcdefghijklmnopqrstuv")
    assert drawn is not None and len(drawn.splitlines()) > 10


NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
events {{ worker_connections 64; }}
http {{
  access_log off; client_max_body_size 40m; proxy_request_buffering off;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  map $http_upgrade $connection_upgrade {{ default upgrade; '' close; }}
  server {{
    listen 127.0.0.1:{port};
    location /lab/recon/ {{
      proxy_pass http://127.0.0.1:{target}{path};
      proxy_http_version 1.1;
      proxy_set_header Host $http_host;
      proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
    }}
  }}
}}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="no nginx here")
@pytest.mark.parametrize("path", ["/", ""])
def test_it_works_behind_a_proxy_with_a_path(tmp_path: Path, path: str) -> None:
    """``path``: the proxy takes its path away, or leaves it."""
    write_run(tmp_path / "data" / "hall")
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as another:
        port, target = free.getsockname()[1], another.getsockname()[1]
    url = f"http://127.0.0.1:{port}/lab/recon/"
    with ServerProcess(tmp_path / "data", "--public-address", url, "--port", str(target)) as process:
        settings = tmp_path / "nginx.conf"
        settings.write_text(NGINX.format(folder=tmp_path, port=port, target=target, path=path))
        proxy = subprocess.Popen(["nginx", "-c", str(settings), "-e", str(tmp_path / "error.log")])
        try:
            token = process.url.partition("?token=")[2]
            until(lambda: socket.create_connection(("127.0.0.1", port)).close() is None, 10)
            entered = urllib.request.urlopen(f"{url}?token={token}")
            cookie = entered.headers["Set-Cookie"].partition(";")[0]
            assert "Path=/lab/recon/" in entered.headers["Set-Cookie"]
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(url)
            headers = {"Cookie": cookie}

            def ask(where: str) -> bytes:
                with urllib.request.urlopen(urllib.request.Request(url + where, headers=headers), timeout=90) as answer:
                    return bytes(answer.read())

            assert b'src="static/home.js"' in ask("")
            assert json.loads(ask("api/state"))["results"][0]["name"] == "hall"
            assert ask("static/home.js") and ask("api/results/hall/picture").startswith(b"\xff\xd8")
            assert b"stream-recon-page" in ask("view/hall/")
            address = url.replace("http", "ws") + "view/hall"
            import viser

            protocol = f"viser-v{viser.__version__}"
            with websockets.sync.client.connect(
                address,
                additional_headers=headers,
                subprotocols=[protocol],
                origin=f"http://127.0.0.1:{port}",
                max_size=None,
            ) as page:
                assert page.subprotocol == protocol and len(page.recv(30)) > 0
        finally:
            proxy.terminate()
            proxy.wait()
