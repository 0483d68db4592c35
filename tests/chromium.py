"""A headless Chromium for tests: one for a test process, or one with flags of its own."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--ignore-certificate-errors",
    "--window-size=1024,600",
)
needs_browser = pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="no chromium and chromedriver here")


@contextlib.contextmanager
def chromium(profile: Path, *flags: str) -> Iterator[Any]:
    """A Chromium of its own, with a folder for its profile and further flags."""
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile / 'chromium'}", *flags):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@contextlib.contextmanager
def fresh_page(driver: Any, downloads: Path) -> Iterator[Any]:
    """A new tab without cookies and settings of earlier ones; ``driver.downloads`` is where files of it go."""
    downloads.mkdir(exist_ok=True)
    driver.downloads = downloads
    before = driver.window_handles
    driver.switch_to.new_window("tab")
    driver.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads), "eventsEnabled": False}
    )
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    try:
        yield driver
    finally:
        for handle in set(driver.window_handles) - set(before):
            driver.switch_to.window(handle)
            driver.close()
        driver.switch_to.window(before[0])
