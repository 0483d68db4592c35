"""The viewer in a real headless Chromium, while it is being fed."""

import functools
import http.server
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import viser
from numpy.typing import NDArray

from stream_recon.app.core.gltf import Primitive, glb
from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.viewer.overview import FreeView
from stream_recon.app.viewer.scene_mesh import ROUGH_UNSURE, SceneMesh
from stream_recon.app.viewer.server import start_server, stop_server
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import room_result
from tests.app.viewer.test_overview import places
from tests.chromium import needs_browser

pytestmark = [pytest.mark.browser, needs_browser]


class Feeder:
    """Feeds a viewer from a thread at a steady pace, as a video would, honouring pauses."""

    def __init__(self, viewer: Viewer, fps: float) -> None:
        self.count = 0
        self._viewer, self._period_s = viewer, 1 / fps
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def _feed(self) -> None:
        while not self._stop.wait(self._period_s):
            if not self._viewer.paused:
                self._add()

    def _add(self) -> None:
        self._viewer.add(room_result(self.count, size=(84, 63), keyframe=self.count % 4 == 0))
        self.count += 1
        self._viewer.status(f"frame {self.count}")

    def end_at(self, count: int) -> None:
        """Stop, with this number of frames at least, of which the missing ones are fed at once."""
        self.stop()
        while self.count < count:
            self._add()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def fed() -> Iterator[tuple[Viewer, Feeder]]:
    with Viewer(PointsConfig(confidence=0.0, voxel=0.04), port=0, point_budget=60_000) as viewer:
        feeder = Feeder(viewer, fps=10)
        yield viewer, feeder
        feeder.stop()


def wait_for(what: Callable[[], Any], timeout_s: float = 90.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := what()):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)
    return value


def stays(what: Callable[[], bool], seconds: float = 1.0) -> bool:
    """Whether something is true for a while: a slow page applies an older camera late and gets its view again."""
    deadline = time.monotonic() + seconds
    while what() and time.monotonic() < deadline:
        time.sleep(0.05)
    return what() and time.monotonic() >= deadline


def at_position(client: viser.ClientHandle, position: NDArray[Any]) -> bool:
    return np.array_equal(client.camera.position, position)


def settled_position(client: viser.ClientHandle, seconds: float = 1.5) -> NDArray[Any]:
    """Where a page's camera rests: a busy page reports the steps of one drag over seconds."""
    position = client.camera.position.copy()
    while not stays(functools.partial(at_position, client, position), seconds):
        position = client.camera.position.copy()
    return position


def page_text(browser: Any) -> str:
    # The driver's own text of an element asks for the style of each part of it, which takes seconds on a busy page.
    return str(browser.execute_script("return document.body.innerText"))


def click(browser: Any, element: Any) -> None:
    """Click an element by its own event: the driver's pointer waits for frames, of which a busy page draws few."""
    browser.execute_script("arguments[0].click()", element)


def show_points(browser: Any) -> None:
    """Choose points in place of surfaces, as a user does."""
    wait_for(lambda: "Hide unsure" in page_text(browser))
    box = browser.find_element("xpath", "//input[@value='Surface' or @value='Both' or @value='Points']")
    click(browser, box)
    click(browser, wait_for(lambda: browser.find_elements("xpath", "//*[@role='option'][.='Points']"))[0])


def points_on_page(browser: Any) -> int:
    found = re.search(r"showing ([\d,]+) points", page_text(browser))
    return int(found.group(1).replace(",", "")) if found else 0


def scene_pixels(browser: Any) -> NDArray[np.uint8]:
    """The part of the page left of the panel and right of notices, as RGB."""
    png = np.frombuffer(browser.get_screenshot_as_png(), np.uint8)
    image = cv2.cvtColor(cv2.imdecode(png, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    return np.asarray(image[:, 330:660], np.uint8)


def share_of_hue(image: NDArray[np.uint8], strongest: int) -> float:
    """Share of pixels whose channel ``strongest`` clearly exceeds the others, as the room's walls do."""
    others = np.delete(image, strongest, axis=2).max(axis=2).astype(int)
    return float(np.mean(image[..., strongest].astype(int) > others + 40))


def coloured_share(browser: Any) -> float:
    """Share of the scene's pixels that show walls of the room."""
    image = scene_pixels(browser)
    return sum(share_of_hue(image, channel) for channel in range(3))


def press(browser: Any, label: str) -> None:
    click(browser, browser.find_element("xpath", f"//button[contains(., '{label}')]"))


def open_folder(browser: Any, label: str) -> None:
    """Open a folder of controls; it may lie at the lower border of the panel, where a click would resize that."""
    found = wait_for(lambda: browser.find_elements("xpath", f"//body//*[text()='{label}']"))[0]
    click(browser, found)
    time.sleep(1.0)  # it opens slowly


@pytest.mark.slow
def test_points_appear_and_grow_while_the_video_runs(browser: Any, fed: tuple[Viewer, Feeder], tmp_path: Path) -> None:
    viewer, feeder = fed
    browser.get(viewer.url)
    show_points(browser)
    first = wait_for(lambda: points_on_page(browser))
    more = wait_for(lambda: (n := points_on_page(browser)) > first and n)
    wait_for(lambda: points_on_page(browser) > more)

    # The walls are red, green and blue; the background and the panel are grey.
    wait_for(lambda: coloured_share(browser) > 0.15)
    browser.save_screenshot(str(tmp_path / "viewer.png"))

    # Without the cloud the same view is dark: what was coloured were the points.
    feeder.stop()
    wait_for(lambda: viewer.state.pages)
    for page in viewer.state.pages.values():
        page.panel.cameras.value = False
    coloured = coloured_share(browser)
    for node in viewer.state.scene.nodes.values():
        if node.handle is not None:  # a step of confidence may have no points
            node.handle.visible = False
    wait_for(lambda: coloured_share(browser) < 0.05 * coloured)


@pytest.mark.slow
def test_the_panel_holds_the_controls_and_pause_holds_the_video(browser: Any, fed: tuple[Viewer, Feeder]) -> None:
    viewer, feeder = fed
    browser.get(viewer.url)
    wait_for(lambda: "surfaces of" in page_text(browser) and feeder.count > 8)
    text = wait_for(lambda: "Frames" in (text := page_text(browser)) and text)
    for label in ("Follow camera", "Hide unsure (%)", "Point size", "Frames", "Save", "Cameras", "Path", "Light"):
        assert label in text
    assert len(browser.find_elements("css selector", "[role=slider]")) >= 2
    assert "Software WebGL" not in wait_for(lambda: page_text(browser)), "notices of the library are hidden"

    press(browser, "Pause")
    wait_for(lambda: viewer.paused)
    time.sleep(0.3)
    held = feeder.count
    time.sleep(0.8)
    assert feeder.count == held
    wait_for(lambda: "paused" in page_text(browser))
    press(browser, "Resume")
    wait_for(lambda: not viewer.paused and feeder.count > held)


@pytest.mark.slow
def test_a_slider_hides_unsure_points_and_a_button_downloads_the_rest(browser: Any, fed: tuple[Viewer, Feeder]) -> None:
    viewer, feeder = fed
    browser.get(viewer.url)
    show_points(browser)
    # Of a few frames, which show the same places, nearly all merged points are among the surest.
    wait_for(lambda: points_on_page(browser))
    feeder.end_at(60)
    assert viewer.flush()
    before = wait_for(lambda: points_on_page(browser))
    slider = browser.find_elements("css selector", "[role=slider]")[0]
    slider.send_keys("\ue014" * 25)  # arrow right: by 1 % each
    shown = wait_for(lambda: 0 < (n := points_on_page(browser)) < 0.9 * before and n)
    assert viewer.flush()
    shown = points_on_page(browser)
    open_folder(browser, "Save")
    wait_for(lambda: "Points (PLY)" in page_text(browser))
    press(browser, "Points (PLY)")
    file = browser.downloads / "points.ply"
    wait_for(file.is_file)
    wait_for(lambda: f"element vertex {shown}".encode() in file.read_bytes()[:200])


@pytest.mark.slow
def test_a_late_browser_sees_everything(browser: Any, fed: tuple[Viewer, Feeder]) -> None:
    viewer, feeder = fed
    feeder.end_at(13)
    viewer.finish()
    assert viewer.flush()
    browser.get(viewer.url)
    count = len(viewer.state.surfaces.surfaces)
    wait_for(lambda: f"surfaces of {count} keyframes" in page_text(browser))
    wait_for(lambda: share_of_hue(scene_pixels(browser), 2) > 0.05)
    assert not browser.find_elements("xpath", "//button[contains(., 'Pause')]")


def share_in_view(viewer: Viewer, client: Any) -> float:
    """Share of what the cameras looked at that a page has in its free part."""
    camera = client.camera
    free = FreeView.of_window(camera.fov, camera.image_width, camera.image_height)
    points, _ = viewer.state.cameras.subject.world(viewer.state.timeline)
    return float((places(points, camera.position, camera.look_at, free) < 1).all(axis=1).mean())


@pytest.mark.slow
def test_a_button_shows_everything(browser: Any, fed: tuple[Viewer, Feeder]) -> None:
    viewer, feeder = fed
    browser.get(viewer.url)
    wait_for(lambda: feeder.count > 30)
    (client,) = wait_for(lambda: viewer.clients)
    (page,) = wait_for(lambda: list(viewer.state.pages.values()))
    page.panel.follow_camera.value = True
    wait_for(lambda: share_in_view(viewer, client) < 0.8)
    feeder.stop()
    assert viewer.flush()
    press(browser, "Show all")
    wait_for(lambda: share_in_view(viewer, client) > 0.9)
    assert not page.panel.follow


OPENS = 2


@pytest.mark.slow
def test_every_open_on_a_slow_connection_is_the_chosen_view(browser: Any) -> None:
    with Viewer(PointsConfig(voxel=0.04), port=0, point_budget=60_000) as viewer:
        for index in range(60):
            viewer.add(room_result(index, size=(84, 63), keyframe=index % 4 == 0))
        viewer.finish()
        assert viewer.flush()
        browser.execute_cdp_cmd("Network.enable", {})
        try:
            for attempt in range(OPENS):
                # The page itself is in the browser's memory after the first time; what it shows is not.
                speed = {"offline": False, "latency": 40 * (attempt % 5), "uploadThroughput": 30_000}
                browser.execute_cdp_cmd("Network.emulateNetworkConditions", {**speed, "downloadThroughput": 2_000_000})
                browser.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 1 + attempt % 4})
                browser.get("about:blank")
                wait_for(lambda: not viewer.clients)
                browser.get(viewer.url)
                (client,) = wait_for(lambda: viewer.clients)
                state = wait_for(lambda client=client: viewer.state.cameras.clients.get(client.client_id))
                wait_for(lambda state=state: stays(lambda: state.reported))
                assert not state.moved, attempt
                assert state.sent.is_at(client.camera.position), attempt
                assert share_in_view(viewer, client) > 0.85, attempt
        finally:
            browser.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 1})
            free = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
            browser.execute_cdp_cmd("Network.emulateNetworkConditions", free)


def test_a_rough_shape_stands_for_the_mesh_until_it_is_drawn(browser: Any, fed: tuple[Viewer, Feeder]) -> None:
    viewer, feeder = fed
    feeder.end_at(12)
    viewer.finish()
    assert viewer.flush()
    whole = viewer.state.content.surfaces()
    red, blue = ([painted(part, colour) for part in whole] for colour in ([255, 0, 0], [0, 0, 255]))
    unsure = [replace(part, unsure=np.full(len(part.xyz), ROUGH_UNSURE, np.float32)) for part in red]
    # A file of one triangle stands for a mesh that has not arrived.
    none = Primitive(np.eye(3, dtype=np.float32), np.array([[0, 1, 2]], np.int32))
    viewer.state.show_mesh(SceneMesh(glb([none]), np.eye(3), blue, glb(unsure)))
    assert viewer.flush()
    browser.get(viewer.url)
    wait_for(lambda: "A rough shape: loading the mesh of " in page_text(browser))
    wait_for(lambda: share_of_hue(scene_pixels(browser), 0) > 0.1)
    assert "showing mesh of" not in page_text(browser)
    viewer.state.show_mesh(SceneMesh(glb(blue), np.eye(3), blue, glb(unsure)))
    assert viewer.flush()
    wait_for(lambda: "showing mesh of" in page_text(browser))
    assert "rough" not in page_text(browser)
    wait_for(lambda: share_of_hue(scene_pixels(browser), 2) > 0.1 and not share_of_hue(scene_pixels(browser), 0))


def painted(part: Primitive, colour: list[int]) -> Primitive:
    return Primitive(part.xyz, part.faces, np.tile(np.uint8(colour), (len(part.xyz), 1)))


@pytest.mark.slow
def test_a_phone_has_a_folded_panel_and_all_of_the_picture(browser: Any, fed: tuple[Viewer, Feeder]) -> None:
    viewer, feeder = fed
    viewer.name("kitchen")
    feeder.end_at(31)
    viewer.finish()
    screen = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    try:
        browser.get(viewer.url)
        assert wait_for(lambda: browser.title == "kitchen")
        (client,) = wait_for(lambda: viewer.clients)
        wait_for(lambda: browser.find_elements("xpath", "//body//*[text()='kitchen']"))
        wait_for(lambda: not browser.find_element("xpath", "//button[contains(., 'Show all')]").is_displayed())
        wait_for(lambda: share_in_view(viewer, client) > 0.85)
        panel = browser.find_element("xpath", "//body//*[text()='kitchen']").rect
        assert panel["y"] > 0.9 * 844
        menu = "return getComputedStyle(document.querySelector('[data-stream-recon-menu]'), '::after').content"
        assert browser.execute_script(menu) == '"Menu"'
        # The panel is folded: a line above the picture says how good the result is, and not what was done last.
        viewer.status("mesh of 1,234 triangles")
        wait_for(lambda: browser.find_elements("xpath", "//body/div[text()='mesh of 1,234 triangles']"))
        viewer.show_verdict("doubtful", "few frames <overlap>. Film again")
        xpath = "//body/div[text()='doubtful: few frames <overlap>. Film again']"
        (line,) = wait_for(lambda: browser.find_elements("xpath", xpath))
        assert line.is_displayed() and line.rect["y"] < 0.1 * 844 and line.rect["width"] <= 390
        viewer.status("mesh of 1,234 triangles, saved")
        assert viewer.flush()
        assert line.text == "doubtful: few frames <overlap>. Film again"
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.mark.slow
def test_the_view_follows_the_newest_camera_or_the_picked_one(browser: Any, fed: tuple[Viewer, Feeder]) -> None:
    viewer, feeder = fed
    browser.get(viewer.url)
    wait_for(lambda: feeder.count > 12)
    (client,) = wait_for(lambda: viewer.clients)
    (page,) = wait_for(lambda: list(viewer.state.pages.values()))

    def distance_to(ordinal: int) -> float:
        return float(np.linalg.norm(client.camera.position - viewer.state.timeline.poses[ordinal][:3, 3]))

    started = distance_to(0)
    follow = "//label[contains(., 'Follow camera')]/following::input[@type='checkbox'][1]"
    click(browser, browser.find_element("xpath", follow))
    wait_for(lambda: page.panel.follow)
    before = client.camera.position
    wait_for(lambda: np.linalg.norm(client.camera.position - before) > 0.02)
    feeder.stop()
    assert viewer.flush()
    wait_for(lambda: distance_to(-1) <= 1.1 * viewer.state.cameras.typical_depth)

    page.panel.frame.value = 3
    page.panel.view_from_here.value = True
    page.panel.follow_camera.value = False
    assert viewer.flush()
    wait_for(lambda: distance_to(3) < 0.01)
    assert started > 0.1
    wait_for(lambda: share_of_hue(scene_pixels(browser), 2) > 0.2)


ATTACK = """<script>
const socket = new WebSocket("ws://%s", ["viser-v%s"]);
socket.onopen = () => document.title = "open";
socket.onerror = () => document.title = "refused";
fetch("http://%s/").then(r => r.text()).then(t => window.read = t.length).catch(e => window.read = "refused");
</script>"""


def test_a_page_of_another_site_learns_nothing(fed: tuple[Viewer, Feeder], browser: Any, tmp_path: Path) -> None:
    viewer, _ = fed
    for name in ("127.0.0.1", "localhost"):
        address = f"{name}:{viewer.port}"
        (tmp_path / "index.html").write_text(ATTACK % (address, viser.__version__, address))
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            browser.get(f"http://127.0.0.1:{server.server_port}/")
            wait_for(lambda: browser.title in ("open", "refused"))
            wait_for(lambda: browser.execute_script("return window.read"))
            assert browser.title == "refused"
            assert browser.execute_script("return window.read") == "refused"
            server.shutdown()


def test_a_page_behind_a_token_works_by_its_address_alone(browser: Any) -> None:
    server = start_server("127.0.0.1", 0, token="secret")
    try:
        server.gui.add_markdown("behind the token")
        browser.get(f"http://127.0.0.1:{server.get_port()}/")
        assert "with its token" in page_text(browser)
        browser.get(f"http://127.0.0.1:{server.get_port()}/?token=secret")
        wait_for(lambda: "behind the token" in page_text(browser))
    finally:
        stop_server(server)


@pytest.mark.slow
def test_a_map_can_be_shown_and_what_was_before_stands_beside(browser: Any) -> None:
    with Viewer(PointsConfig(confidence=0.0, voxel=0.04), port=0, point_budget=60_000) as viewer:
        frames = [room_result(index, size=(84, 63)) for index in range(24)]
        for result in frames:
            viewer.add(result)
        assert viewer.flush()
        browser.get(viewer.url)
        wait_for(lambda: "surfaces of" in page_text(browser))
        assert "Corrections" not in page_text(browser), "nothing to be shown"
        # As after a refinement: all frames move, and there is a map layer.
        moved = []
        for result in frames:
            pose = result.T_world_camera.copy()
            pose[:3, 3] += (0.5, 0.0, 0.2)
            moved.append(FrameRevision(result.index, pose))
        viewer.revise(Revision(tuple(moved)))
        random = np.random.default_rng(0)
        viewer.show_map(random.uniform(-1, 1, (3000, 3)), np.array([[0, 20], [3, 22]]))
        open_folder(browser, "Corrections")
        for label in ("Matched points", "Loops", "Compare with before"):
            box = f"//label[contains(., '{label}')]/following::input[@type='checkbox'][1]"
            click(browser, wait_for(lambda box=box: browser.find_elements("xpath", box))[0])
        scene = viewer.state.scene
        wait_for(lambda: len(scene.comparison.sample(viewer.state.store, viewer.state.timeline, 10)))
        press(browser, "Show all")
        (client,) = viewer.clients

        def in_view() -> float:
            camera = client.camera
            free = FreeView.of_window(camera.fov, camera.image_width, camera.image_height)
            state = viewer.state
            both = [scene.comparison.sample(state.store, state.timeline, 500), state.store.sample(500)]
            points = np.concatenate(both).astype(np.float64)
            return float((places(points, camera.position, camera.look_at, free) < 1).all(axis=1).mean())

        wait_for(lambda: in_view() > 0.9)
        wait_for(lambda: sum(share_of_hue(scene_pixels(browser), channel) for channel in range(3)) > 0.05)


@pytest.mark.slow
def test_the_end_frames_a_view_that_nobody_has_moved_and_leaves_any_other(
    browser: Any, fed: tuple[Viewer, Feeder]
) -> None:
    viewer, feeder = fed
    browser.get(viewer.url)
    (client,) = wait_for(lambda: viewer.clients)
    feeder.end_at(13)
    assert viewer.flush()
    state = wait_for(lambda: viewer.state.cameras.clients.get(client.client_id))
    wait_for(lambda: state.reported)
    poses = [pose.copy() for pose in viewer.state.timeline.poses]

    def revise(factor: float) -> None:
        moved = [np.array(pose) for pose in poses]
        for pose in moved:
            pose[:3, 3] = factor * (pose[:3, 3] + 0.1)
        viewer.revise(Revision(tuple(FrameRevision(k, pose, factor) for k, pose in enumerate(moved))))
        assert viewer.flush()

    revise(3.0)
    viewer.finish()
    assert viewer.flush()
    wait_for(lambda: state.reported and share_in_view(viewer, client) > 0.85)
    assert not state.moved
    canvas = max(browser.find_elements("tag name", "canvas"), key=lambda e: e.size["width"])
    browser.execute_script("arguments[0].scrollIntoView()", canvas)
    actions = pytest.importorskip("selenium.webdriver").ActionChains(browser)
    actions.move_to_element_with_offset(canvas, -200, 0).click_and_hold().move_by_offset(80, 30).release().perform()
    wait_for(lambda: state.moved)
    own = settled_position(client)
    revise(2.0)
    time.sleep(1.0)
    np.testing.assert_allclose(client.camera.position, own, atol=1e-3 * np.linalg.norm(own))
