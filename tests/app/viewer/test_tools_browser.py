"""Tools of a page in a real headless Chromium, at the sizes of a desk and of a phone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from stream_recon.app.viewer.measure import distances
from stream_recon.app.viewer.viewer import Viewer, show_results
from stream_recon.configs.schema import PointsConfig
from tests.app.boxroom import room_result
from tests.app.viewer.test_viewer_browser import coloured_share, open_folder, page_text, stays, wait_for
from tests.chromium import needs_browser

pytestmark = [pytest.mark.browser, pytest.mark.slow, needs_browser]
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(PointsConfig(voxel=0.04), port=0, point_budget=60_000) as viewer:
        show_results(viewer, (room_result(i, size=(84, 63), keyframe=i % 4 == 0) for i in range(24)))
        viewer.finish()
        assert viewer.flush()
        yield viewer


def opened(browser: Any, viewer: Viewer) -> Any:
    """Open the page, wait until it shows the room, and give its `Page`."""
    browser.get(viewer.url)
    wait_for(lambda: viewer.state.pages)
    page = wait_for(lambda: next(iter(viewer.state.pages.values()), None))
    wait_for(lambda: coloured_share(browser) > 0.1)
    return page


def use(browser: Any, label: str) -> None:
    """Switch a checkbox of the panel."""
    box = f"//label[contains(., '{label}')]/following::input[@type='checkbox'][1]"
    found = wait_for(lambda: browser.find_elements("xpath", box))[0]
    browser.execute_script("arguments[0].click()", found)


def click_scene(browser: Any, x: int, y: int) -> None:
    """Click the scene at an offset in pixels from its middle."""
    chains = pytest.importorskip("selenium.webdriver").ActionChains
    canvas = max(browser.find_elements("tag name", "canvas"), key=lambda e: e.size["width"])
    chains(browser).move_to_element_with_offset(canvas, x, y).click().perform()


def test_what_is_cut_away_is_not_drawn(browser: Any, viewer: Viewer) -> None:
    page = opened(browser, viewer)
    panel, whole = page.tools.panel, coloured_share(browser)
    page.panel.cameras.value = page.panel.path.value = False

    def apply() -> None:
        assert viewer.flush()

    for show in ("Surface", "Points"):
        page.panel.show.value = show
        apply()
        whole = wait_for(lambda: (share := coloured_share(browser)) > 0.1 and share)
        panel.cut.value = True
        apply()
        height = panel.borders[2]
        middle = (height.min + height.max) / 2
        height.value = (height.min, middle)
        apply()
        half = wait_for(lambda whole=whole: 0.02 < (share := coloured_share(browser)) < 0.8 * whole and share)
        height.value = (height.min, height.min + 0.02 * (height.max - height.min))
        apply()
        wait_for(lambda half=half: coloured_share(browser) < 0.6 * half)
        panel.cut.value = False
        apply()
        wait_for(lambda whole=whole: coloured_share(browser) > 0.9 * whole)
    page.panel.show.value = "Surface"
    apply()
    whole = wait_for(lambda: (share := coloured_share(browser)) > 0.1 and share)
    page.panel.hidden.value = 90
    apply()
    wait_for(lambda: coloured_share(browser) < 0.6 * whole)


@pytest.mark.parametrize("phone", [False, True])
def test_two_clicks_measure_the_room(browser: Any, viewer: Viewer, phone: bool) -> None:
    if phone:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    try:
        page = opened(browser, viewer)
        if phone:
            wait_for(lambda: browser.find_elements("css selector", 'div[style*="height: 3.5em"]'))[0].click()
        open_folder(browser, "Tools")
        use(browser, "Measure")
        wait_for(
            lambda: page.tools.is_listening and browser.execute_script("return __viserPointer.hasSceneClickFilter()")
        )
        wait_for(lambda: "Click two points" in page_text(browser))
        # From within the room there is a wall everywhere, also above a phone's panel.
        camera = page.client.camera
        camera.position, camera.look_at = np.zeros(3), np.array([0.0, 2.0 if phone else 0.0, 4.0])
        wait_for(lambda: stays(lambda: np.linalg.norm(page.client.camera.position) < 0.1))
        places = [(-60, -300), (60, -250)] if phone else [(-120, 20), (-30, 60)]
        for number, (x, y) in enumerate(places, start=1):
            click_scene(browser, x, y)
            wait_for(lambda number=number: len(page.tools.picks) == number)
        (measured,) = distances(page.tools.picks, viewer.state.unit)
        wait_for(lambda: measured.text in page_text(browser) and "units" in measured.text)
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_plan_is_seen_from_above_and_everything_comes_back(browser: Any, viewer: Viewer) -> None:
    page = opened(browser, viewer)
    usual = page.client.camera.fov
    page.tools.panel.plan.value = True
    assert viewer.flush()
    up = viewer.state.content.axes()[1]

    def ahead() -> Any:
        way = page.client.camera.look_at - page.client.camera.position
        return way / np.linalg.norm(way)

    wait_for(lambda: ahead() @ up < -0.999 and page.client.camera.fov < 0.1 * usual)
    wait_for(lambda: coloured_share(browser) > 0.05)
    page.tools.panel.plan.value = False
    assert viewer.flush()
    wait_for(lambda: ahead() @ up > -0.9 and page.client.camera.fov == pytest.approx(usual))
    wait_for(lambda: coloured_share(browser) > 0.1)


def test_the_whole_screen_and_a_picture_are_a_click_away(browser: Any, viewer: Viewer) -> None:
    opened(browser, viewer)
    viewer.name("kitchen")
    open_folder(browser, "Tools")
    wait_for(lambda: browser.find_elements("xpath", "//button[contains(., 'Full screen')]"))[0].click()
    wait_for(lambda: browser.execute_script("return document.fullscreenElement !== null"))
    browser.execute_script("document.exitFullscreen()")
    open_folder(browser, "Save")
    picture = wait_for(lambda: browser.find_elements("xpath", "//button[contains(., 'Picture of this view')]"))[0]
    browser.execute_script("arguments[0].scrollIntoView()", picture)
    picture.click()
    wait_for(lambda: [p for p in browser.downloads.iterdir() if p.suffix == ".png"])
