"""Results of strangers in a real Chromium: no string of theirs becomes markup or a script."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.sync.client import ClientConnection, connect

from stream_recon.app.core.rig import Rig
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RIG, VERDICT, VIEWS
from stream_recon.configs.errors import StreamReconError
from tests.app.result.test_writer import write_run
from tests.app.web.browsing import ServerProcess, until
from tests.chromium import needs_browser

pytestmark = [pytest.mark.browser, needs_browser]

ATTACK = (
    "document.documentElement.dataset.hacked = 1; fetch(location.origin + '/api/results/victim', "
    "{method: 'DELETE', headers: {'x-stream-recon': '1', 'content-type': 'application/json'}, body: '{}'})"
)
TEXT = (
    f'\'"><img src=x onerror="{ATTACK}"><svg onload="{ATTACK}"></svg><script>{ATTACK}</script>'
    f"<iframe srcdoc='<script>parent.document.documentElement.dataset.hacked = 1</script>'></iframe>\n\n"
    f"**[link](javascript:document.documentElement.dataset.hacked=1)** ![](http://127.0.0.1:9/x) {{{ATTACK}}}"
)
NAME = "<img src=x onerror=document.documentElement.dataset.hacked=1>"


def strings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the strings of a JSON value are."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if isinstance(inner, str):
            yield (*path, key)
        yield from strings(inner, (*path, key))


def poison(folder: Path, name: str) -> int:
    """Hang the attack to every string of a JSON file with which the result can still be read; returns their number."""
    path, count = folder / name, 0
    content = json.loads(path.read_text())
    for *parents, last in list(strings(content)):
        owner = content
        for key in parents:
            owner = owner[key]
        kept, owner[last] = owner[last], owner[last] + TEXT
        path.write_text(json.dumps(content))
        try:
            assert read_result(folder).points is not None
            count += 1
        except (StreamReconError, AssertionError):
            owner[last] = kept
    path.write_text(json.dumps(content))
    return count


def hostile_result(folder: Path) -> None:
    write_run(folder)
    record = json.loads((folder / "run.json").read_text())
    record["warnings"] = ["a warning"]
    record["segments"] = [{"index": 2, "timestamp": 0.2, "reason": "a cut"}]
    record[VERDICT] = {"level": "good", "reason": "a reason", "advice": "advice"}
    rig = Rig.of_turns(("front", "back"), np.stack([np.eye(3), np.diag([-1.0, 1, -1])]))
    record["options"] |= {VIEWS: rig.to_json(), "camera": "a camera", "masks": "masks", "poses": "poses", "rig": "rig"}
    record[RIG] = {"views": [{"name": "front", "reason": "a reason"}], "scale_from": "poses"}
    (folder / "run.json").write_text(json.dumps(record))
    assert poison(folder, "run.json") >= 12
    cameras = json.loads((folder / "cameras.json").read_text())
    assert list(strings(cameras["frames"])) == [], "poison them, too"


def name_things(port: int) -> None:
    """Give a server the attack as the name of an upload, of a stream and of a scan, and in a session of frames."""
    for path, body in (
        ("uploads", {"name": f"{TEXT}.mp4", "size": 1000, "options": {}}),
        ("uploads", {"name": f"{NAME}.mp4", "size": 1000, "options": {}}),
        ("sources", {"address": f"rtsp://127.0.0.1:9/{TEXT}", "name": TEXT}),
        ("sources", {"address": "rtsp://127.0.0.1:9/a", "name": NAME}),
    ):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/{path}", json.dumps(body).encode(), {"X-Stream-Recon": "1"}
        )
        with suppress(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=30).close()
    with connect(f"ws://127.0.0.1:{port}/v1/stream") as socket:
        socket.send(json.dumps({"type": "session.config", "keep": TEXT}))
        assert json.loads(socket.recv())["job"]
    for config in ({TEXT: 1}, {"preset": TEXT}, {"session_id": TEXT, "received": 0}, {"type": TEXT}):
        with connect(f"ws://127.0.0.1:{port}/v1/stream") as socket:
            socket.send(json.dumps({"type": "session.config", **config}))
            told = [json.loads(text) for text in iter_until_closed(socket)]
            assert told[-1]["type"] == "error", told


def iter_until_closed(socket: ClientConnection) -> Iterator[str]:
    """Texts up to an error, or the end."""
    for text in socket:
        yield str(text)
        if json.loads(text)["type"] == "error":
            return


def assert_harmless(browser: Any, victim: Path) -> None:
    assert browser.execute_script("return document.documentElement.dataset.hacked") is None
    assert (victim / "run.json").exists()


@pytest.mark.slow
def test_no_string_of_a_result_becomes_markup(browser: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("victim", NAME):
        (data / name).mkdir(parents=True)
    write_run(data / "victim")
    hostile_result(data / NAME)
    with ServerProcess(data) as server:
        browser.get(server.url)
        until(lambda: len(browser.find_elements("css selector", ".card")) == 2, 30, "both results")
        assert_harmless(browser, data / "victim")
        name_things(server.port)
        browser.get(server.url)
        until(lambda: browser.execute_script("return document.body.innerText").count("onerror") >= 3, 30, "the names")
        assert_harmless(browser, data / "victim")
        for path in (
            "metrics",
            "openapi.json",
            "api/state",
            f"api/results/{NAME}",
            f"api/jobs/{NAME}",
            f"view/{NAME}x/",
        ):
            browser.get(server.url + path)
            assert browser.find_elements("css selector", "img, iframe, script, svg") == [], path
            assert_harmless(browser, data / "victim")
        browser.get(f"{server.url}view/{NAME}/")
        until(
            lambda: "onerror" in browser.execute_script("return document.body.innerText"), 60, "the text of the result"
        )
        assert_harmless(browser, data / "victim")
        # What came into the page as markup would not run either.
        browser.execute_script(
            "const box = document.createElement('div'); box.innerHTML = arguments[0]; document.body.append(box);"
            "const script = document.createElement('script'); script.textContent = arguments[1];"
            "document.body.append(script)",
            TEXT,
            ATTACK,
        )
        until(lambda: browser.execute_script("return document.querySelector('body > div > img').complete"), 30, "it")
        assert_harmless(browser, data / "victim")
    page = tmp_path / "page.html"
    words = [sys.executable, "-m", "stream_recon", "export", str(data / NAME), "--format", "html", "-o", str(page)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    browser.get(page.as_uri())
    until(lambda: browser.find_elements("css selector", "canvas"), 60, "the scene")
    assert_harmless(browser, data / "victim")
