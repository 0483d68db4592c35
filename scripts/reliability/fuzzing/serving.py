"""Cases of the web server: requests, uploads, ZIP files, web sockets and frames of a scan that mean harm."""

import io
import json
import os
import random
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from fuzzing.mutate import WORDS, broken_bytes
from stream_recon.app.batch.summary import Row
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.app.sources import growing
from stream_recon.app.viewer.document import markup, with_page
from stream_recon.app.viewer.panel import SharedPanel
from stream_recon.app.web.access import AccessPolicy
from stream_recon.app.web.app import make_app
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import JobStore
from stream_recon.app.web.scans import jpeg_size
from stream_recon.configs.errors import InputError, OutputError
from tests.app.batch.test_page import page_of

REQUESTS = 12
"""Requests of a case."""
PATHS = (
    "/", "/scan", "/api/state", "/api/uploads", "/api/uploads/{}", "/api/sources", "/api/jobs/{}", "/api/jobs/1/{}",
    "/api/exports/{}", "/api/results/{}", "/api/results/{}/picture", "/api/results/result/{}", "/api/results/{}/export",
    "/view/{}", "/view/{}/{}", "/static/{}",
)  # fmt: skip
LARGE = "9" * 5000
NAMES = (LARGE, "..", "../..", "%2e%2e%2f", "result", "1", "-1", "9" * 20, "a" * 3000, "%00", "é", "stop", "rename")
KEYS = ("name", "size", "options", "address", "format", "upload", "stride", "max_frames", "scale", "mapping")
REFUSALS = (200, 201, 206, 307, 400, 403, 404, 405, 408, 409, 415, 416, 503, 507)
"""Answers of a server that is well."""


def serve(folder: Path, source: Path, draw: random.Random) -> None:
    """Send a server of a folder what no page sends. Raises InputError where it refused all of it."""
    places = DataFolder(folder / "data")
    places.make()
    (folder / "outside").mkdir()
    for name in ("a.txt", "../outside.piece"):
        (folder / "outside" / name).write_text("mine")
    for number in range(draw.randrange(4)):
        _strange_result(places.path / f"strange-{number}", draw)
    if draw.random() < 0.3:
        _damage_queue(places, folder / "outside" / "a.txt", draw)
    open_to_others = draw.random() < 0.3
    reach = AccessPolicy(host="0.0.0.0", token="a-token-of-a-test") if open_to_others else AccessPolicy()
    growing.MIN_BYTES = draw.choice((100, 200_000))  # short videos begin while they come, too
    app: Any = make_app(places, reach, jobs=0)
    headers = {"X-Stream-Recon": "1"} if draw.random() < 0.9 else {}
    cookies = {"stream-recon-8080": "a-token-of-a-test"} if draw.random() < 0.8 else {}
    read = 0
    with TestClient(app, base_url="http://127.0.0.1:8080", headers=headers, cookies=cookies) as client:
        example = draw.choice(sorted((source / "videos").iterdir())).read_bytes()
        for _ in range(REQUESTS):
            read += _request(client, draw, example)
        _socket(client, draw)
        state = client.get("/api/state")
        assert state.status_code in (200, 403), state.text
    assert (folder / "outside" / "a.txt").read_text() == (folder / "outside.piece").read_text() == "mine"
    # The case's own message file may stand there, too.
    strange = {path.name for path in folder.iterdir()} - {"data", "outside", "outside.piece", "message.txt"}
    assert not strange, strange
    if not read:
        raise InputError("every request was refused")


def _strange_result(folder: Path, draw: random.Random) -> None:
    """A result folder of a stranger, which must not keep the page from the others."""
    folder.mkdir()
    record, trajectory = folder / RUN_NAME, folder / "trajectory.txt"
    record.write_text(json.dumps({"program": "stream-recon", "frames": {"reconstructed": 3}, "source": "a"}))
    path, kind = draw.choice((record, trajectory)), draw.randrange(5)
    if kind < 4:
        path.unlink(missing_ok=True)
    match kind:
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(draw.choice(("/dev/zero", path.name, "/proc/self/mem", "..")))
        case 2:
            with path.open("wb") as file:
                file.truncate(5 << 30)
        case 3:
            value = draw.choice(("NaN", "1e999", "[" * 50_000, '"\\ud800"', "9" * 4000, "{}", "null"))
            path.write_text(f'{{"program": "stream-recon", "frames": {{"reconstructed": {value}}}, "source": {value}}}')
        case _:
            trajectory.write_text("nan 0 0 0 0 0 0 1\n1e999 0 0 0 0 0 0 1\n")


def _damage_queue(places: DataFolder, mine: Path, draw: random.Random) -> None:
    """A queue that a disk has damaged, or a server of another version has written."""
    store = JobStore(places.queue)
    for name in ("hall", "attic"):
        store.add("refine", name, "", {})
    row = (draw.choice(("a" * 16, "../../../outside")), draw.choice((None, "ab")), draw.choice((None, str(mine))))
    store.connection.execute("insert into uploads values(?, 'a', 4, '{}', 1, ?, ?, null)", row)
    store.connection.execute("update sqlite_sequence set seq=?", (draw.choice((3, -1, 2**63 - 1)),))
    store.connection.execute(draw.choice(("drop table jobs", "alter table jobs rename column state to s", "select 1")))
    store.close()
    if draw.random() < 0.7:
        places.queue.write_bytes(broken_bytes(places.queue.read_bytes(), draw))


def _request(client: TestClient, draw: random.Random, example: bytes) -> bool:
    """Send one request; returns whether it was admitted."""
    if draw.random() < 0.25:
        return _upload(client, draw, example)
    path = draw.choice(PATHS)
    while "{}" in path:
        path = path.replace("{}", draw.choice(NAMES), 1)
    method = draw.choice(("GET", "POST", "PATCH", "DELETE", "PUT", "HEAD", "OPTIONS"))
    headers = {}
    if draw.random() < 0.2:
        headers[draw.choice(("Origin", "Host", "Range", "Cookie", "Content-Length", "Transfer-Encoding"))] = (
            draw.choice(
                ("http://evil.example", "evil.example", "bytes=5-1", "bytes=-1", "9" * 30, "chunked", "a=b;" * 400)
            )
        )
    answer = client.request(method, path, content=_body(draw), headers=headers, params=_parameters(draw))
    assert answer.status_code in REFUSALS, (method, path, answer.status_code, answer.text[:300])
    return answer.status_code < 300


def _upload(client: TestClient, draw: random.Random, example: bytes) -> bool:
    data = _content(draw, example)
    sizes = [len(data)] * 9 + [10**400, -1]
    made = client.post("/api/uploads", json={"name": draw.choice([*NAMES, *WORDS[:-1]]), "size": draw.choice(sizes)})
    if made.status_code != 201:
        return False
    number, offset = made.json()["id"], 0
    for _ in range(6):
        wrong = draw.random() < 0.2
        at = draw.choice((0, offset + 1, 10**18)) if wrong else offset
        piece = data[offset : offset + max(1, len(data) // draw.randrange(1, 4))]
        answer = client.patch(f"/api/uploads/{number}?offset={at}", content=piece)
        assert answer.status_code in REFUSALS, answer.text
        if answer.status_code == 200:
            if "name" in answer.json():
                return True
            offset = answer.json()["offset"]
    return False


def _content(draw: random.Random, example: bytes) -> bytes:
    match draw.randrange(4):
        case 0:
            return broken_bytes(_zip(draw), draw) or b"x"
        case 1:
            return _zip(draw)
        case 2:
            return broken_bytes(example, draw) or b"x"
        case _:
            return draw.randbytes(draw.randrange(1, 3000))


def _zip(draw: random.Random) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as file:
        for _ in range(draw.randrange(6)):
            info = zipfile.ZipInfo(
                draw.choice(("../../a.jpg", "/etc/passwd", "a\\b.jpg", "x/y/z.png", "é.jpg", "a.jpg"))
            )
            info.external_attr = draw.choice((0, 0o120777 << 16, 0o100644 << 16, 0o40755 << 16))
            kind = draw.choice((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF", b""))
            file.writestr(info, kind + draw.choice((draw.randbytes(300), bytes(3_000_000))))
    return content.getvalue()


def _body(draw: random.Random) -> bytes:
    if draw.random() < 0.3:
        return draw.choice((b"", b"[" * 3000, draw.randbytes(200), b"null", b"\xff"))
    odd: tuple[Any, ...] = (
        0,
        -1,
        10**40,
        1.5,
        None,
        True,
        [],
        {},
        {"stride": "x"},
        "html",
        "rtsp://a",
        "rtsp://\ud800",
    )
    given = {draw.choice(KEYS): draw.choice((*WORDS[:-1], *odd)) for _ in range(draw.randrange(4))}
    return json.dumps(given).encode()


def _parameters(draw: random.Random) -> dict[str, str]:
    names = ("token", "offset", "captured")
    return {draw.choice(names): draw.choice(WORDS[:-1]) for _ in range(draw.randrange(2))}


def _socket(client: TestClient, draw: random.Random) -> None:
    """Open a web socket of a scan or viewer, and leave in the middle. The run does not take frames here."""
    path = draw.choice(("/v1/stream", "/v1/../stream", "/view/result", "/view/%2e%2e/"))
    with suppress(WebSocketDisconnect), client.websocket_connect(f"ws://127.0.0.1:8080{path}") as socket:
        socket.send_text(json.dumps({"type": "session.config", "keep": draw.choice((*NAMES, None, 7, []))}))
        data = draw.choice(("", "/9j/", "=" * 9, draw.randbytes(50).hex()))
        frame = {"type": "video.frame", "frame": 0, "data": data}
        socket.send_text(draw.choice((json.dumps(frame), "text")))
        if draw.random() < 0.5:
            socket.send_bytes(b"1234567")
    with suppress(InputError, OutputError):
        jpeg_size(broken_bytes(b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x11\x08\x00\x60\x00\x80\x03" + bytes(40), draw))


def markup_case(folder: Path, source: Path, draw: random.Random) -> None:
    """Text of others never becomes an element or an attribute of a page."""
    parts = ("<x>", '">', "'>", "</script>", "</title>", "<script>", '" onload="x', "&lt;", "<!--", "javascript:x")
    text, panel = "a" + "".join(draw.choices(parts, k=draw.randrange(1, 6))), MagicMock()

    def verdict(text: str) -> str:
        SharedPanel(panel, lambda: None).show_verdict("good", text)
        return str(panel.gui.add_html.return_value.content)

    def batch(text: str) -> str:
        return page_of([Row(text, text, text, state, reason=text) for state in ("failed", "done")], folder)

    def client(text: str) -> str:
        return with_page("<html><head></head></html>", text)

    for marks, page in (("<\"'", markup), ("<\"'", verdict), ("<\"'", batch), ("<", client)):
        assert all(page(text).count(mark) == page("plain").count(mark) for mark in marks), text
