"""The web page in a real Chromium with the real program: upload, watch, open, export."""

import io
import json
import random
import socket
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from stream_recon.app import web
from stream_recon.app.web.data_folder import DataFolder
from tests.app.result.test_writer import write_run
from tests.app.web.browsing import Relay, ServerProcess, until
from tests.app.web.serving import listening
from tests.chromium import needs_browser

SAMPLE = Path(web.__file__).resolve().parents[1] / "sample" / "walkthrough.mp4"

SAMPLE_PICTURE = b"\xff\xd8\xff\xe0" + bytes(100)

pytestmark = [pytest.mark.browser, pytest.mark.slow, needs_browser]


def element(driver: Any, selector: str) -> Any:
    return driver.find_element("css selector", selector)


def count(driver: Any, selector: str) -> int:
    return len(driver.find_elements("css selector", selector))


def long_sample(folder: Path) -> Path:
    """The sample with two megabytes of padding, which its format allows, so that its upload takes a while."""
    path = folder / "walkthrough.mp4"
    padding = random.Random(0).randbytes(2_000_000)
    path.write_bytes(SAMPLE.read_bytes() + struct.pack(">I4s", len(padding) + 8, b"free") + padding)
    return path


def choose(driver: Any, path: Path, frames: int) -> None:
    """Set the number of frames and that nothing is refined, and choose a file as a user does."""
    driver.execute_script("document.querySelector('.options').open = true")
    driver.execute_script("document.querySelector('#mapping').value = 'stream'")
    field = element(driver, "#max-frames")
    field.clear()
    field.send_keys(str(frames))
    element(driver, "#files").send_keys(str(path))


def download(driver: Any, folder: Path, form: str, name: str) -> Path:
    """Export in a format, and download the file."""
    driver.execute_script("document.querySelector('.export-menu').open = true")
    until(lambda: element(driver, f".export-list button:nth-child({form})").is_displayed())
    element(driver, f".export-list button:nth-child({form})").click()
    link = until(lambda: element(driver, f'a[download="{name}"]'), 120, "the export")
    link.click()
    path = folder / name
    until(path.exists, 30, "the download")
    return path


def test_a_video_from_upload_to_download(browser: Any, tmp_path: Path) -> None:
    data, video = tmp_path / "data", long_sample(tmp_path)
    with ServerProcess(data) as server:
        relay = Relay(server.port, bytes_per_s=800_000)
        browser.get(f"http://127.0.0.1:{relay.port}/")
        until(lambda: "GB" in element(browser, "#limits").text)
        passed = relay.passed
        choose(browser, video, 12)
        until(lambda: relay.passed - passed > 500_000, 30, "the upload")
        relay.cut()
        until(lambda: element(browser, '.upload[data-state="interrupted"]'), 30, "the cut")
        # Its job has begun where enough has come; then it has its own folder.
        (piece,) = (*DataFolder(data).uploads.glob("*.piece"), *DataFolder(data).uploads.glob("*/*.mp4"))
        kept = piece.stat().st_size
        assert 0 < kept < video.stat().st_size
        before = relay.passed
        relay.restore()
        told: list[str] = []
        """What the page has said of the job, which begins before its video is there."""

        def is_told(words: str) -> bool:
            told.append(element(browser, ".job .hint").text)
            return any(words in text for text in told)

        until(lambda: is_told("") and not count(browser, ".upload"), 60, "the end of the upload")
        # It went on where it was cut, and did not begin again.
        assert relay.passed - before < video.stat().st_size - kept + 300_000
        relay.close()
        browser.get(server.url)
        until(lambda: is_told("frame"), 120, "the progress")
        until(lambda: element(browser, ".job a.primary").text == "Watch", 60)
        watch_while_it_runs(browser, element(browser, ".job a.primary").get_attribute("href"))
        until(lambda: not count(browser, '.job[data-kind="reconstruct"]'), 600, "the end of the run")
        until(lambda: element(browser, ".card .verdict b").text, 30)
        name = element(browser, ".card").get_attribute("data-name")
        assert name == "walkthrough-recon"
        record = json.loads((data / name / "run.json").read_text())
        assert record["interrupted"] is False and record["frames"]["reconstructed"] == 12

        mesh = pytest.importorskip("trimesh").load(download(browser, tmp_path / "downloads", "4", "walkthrough.glb"))
        assert len(mesh.geometry)
        path = download(browser, tmp_path / "downloads", "6", "walkthrough-colmap.zip")
        with zipfile.ZipFile(path) as file:
            file.extractall(tmp_path / "colmap")
        (model,) = (tmp_path / "colmap").rglob("sparse/0")
        element(browser, ".card .links button").click()  # the page to share, in one click
        shared = tmp_path / "downloads" / "walkthrough.html"
        until(shared.exists, 120, "the page to share")
        assert b"<html" in shared.read_bytes()[:2000].lower()
        assert pytest.importorskip("pycolmap").Reconstruction(str(model)).num_images() > 1

        stored = [path for path in DataFolder(data).uploads.rglob("*") if path.is_file()]
        choose(browser, video, 12)
        until(lambda: "is here already" in element(browser, "#message").text, 30, "the recognition")
        assert [path for path in DataFolder(data).uploads.rglob("*") if path.is_file()] == stored
        assert not count(browser, '.job[data-kind="reconstruct"]')


def watch_while_it_runs(driver: Any, address: str) -> None:
    start = driver.current_window_handle
    driver.switch_to.new_window("tab")
    driver.get(address)
    until(lambda: count(driver, "canvas"), 60, "the viewer")
    until(lambda: "frames" in element(driver, "body").text, 120, "frames in the viewer")
    driver.close()
    driver.switch_to.window(start)


def test_the_page_needs_no_room_beside_it(browser: Any, tmp_path: Path) -> None:
    with listening(tmp_path / "data") as port:
        for path in ("", "scan"):
            for width, height in ((390, 844), (1400, 900), (320, 568)):
                size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
                browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                browser.get(f"http://127.0.0.1:{port}/{path}")
                assert browser.execute_script("return document.documentElement.scrollWidth") <= width, (path, width)


def test_a_viewer_talks_to_its_own_server_alone(browser: Any, tmp_path: Path) -> None:
    """The viewer's library connects to the server that its address names, and runs what that sends."""
    write_run(tmp_path / "data" / "hall")
    with ServerProcess(tmp_path / "data") as server, socket.create_server(("127.0.0.1", 0)) as evil:
        browser.get(f"{server.url}view/hall/?websocket=ws://127.0.0.1:{evil.getsockname()[1]}")
        until(lambda: count(browser, "#root *"), 90, "the viewer")
        evil.settimeout(3)
        with pytest.raises(TimeoutError):
            evil.accept()
        browser.get("about:blank")
        browser.get(f"{server.url}view/hall/#small")  # as next to the picture of a scan
        until(lambda: "5 frames" in element(browser, "body").text, 90, "the result")


PACK = """
const done = arguments[arguments.length - 1];
import("./static/zip.js").then(async ({zipOf}) => {
  const files = [["b/2.jpg", 70000], ["b/10.jpg", 5], ["b/é.jpg", 1]].map(([name, size]) =>
    new File([new Uint8Array(size).map((_, i) => (0xff ^ i * 7) & 255)], name));
  const bytes = new Uint8Array(await (await zipOf(files)).arrayBuffer());
  done(Array.from(bytes));
}).catch(error => done(String(error)));
"""


def test_photographs_are_packed_by_the_page(browser: Any, tmp_path: Path) -> None:
    with listening(tmp_path / "data") as port:
        browser.get(f"http://127.0.0.1:{port}/")
        packed = browser.execute_async_script(PACK)
        assert isinstance(packed, list), packed
        with zipfile.ZipFile(io.BytesIO(bytes(packed))) as file:
            assert file.testzip() is None
            assert [info.filename for info in file.infolist()] == ["b/2.jpg", "b/10.jpg", "b/é.jpg"]
            assert file.read("b/2.jpg") == bytes((0xFF ^ i * 7) & 255 for i in range(70000))
        for number in (1, 2, 10):
            (tmp_path / f"{number}.jpg").write_bytes(SAMPLE_PICTURE + bytes([number]))
        browser.execute_script("document.querySelector('.options').open = true")
        names = "\n".join(str(tmp_path / f"{number}.jpg") for number in (10, 1, 2))
        until(lambda: "GB" in element(browser, "#limits").text)
        element(browser, "#files").send_keys(names)
        until(lambda: count(browser, ".job"), 60, "the job")
        stored = sorted(DataFolder(tmp_path / "data").uploads.glob("*/*/*.jpg"))
        assert [path.name for path in stored] == ["000000.jpg", "000001.jpg", "000002.jpg"]
        assert [path.read_bytes()[-1] for path in stored] == [1, 2, 10]
