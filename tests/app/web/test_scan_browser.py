"""A scan in a real Chromium whose camera plays the sample, over self-made HTTPS, with the real program."""

import json
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app import web
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.causes import DARK
from stream_recon.app.result.folder import read_result
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.limits import WebLimits
from tests.app.web.browsing import Relay, ServerProcess, until
from tests.app.web.serving import listening
from tests.chromium import chromium, needs_browser

SAMPLE = Path(web.__file__).resolve().parents[1] / "sample" / "walkthrough.mp4"
CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")

pytestmark = [pytest.mark.browser, pytest.mark.slow, needs_browser]


def sample() -> list[NDArray[np.uint8]]:
    capture, frames = cv2.VideoCapture(str(SAMPLE)), []
    while (step := capture.read())[0]:
        frames.append(np.asarray(step[1], np.uint8))
    return frames


def camera_file(path: Path, frames: list[NDArray[np.uint8]], repeat: int) -> Path:
    """A file for the fake camera: each frame ``repeat`` times, forth and back, since it plays without end."""
    with path.open("wb") as file:
        for frame in (*frames, *frames[::-1]):
            file.write(cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes() * repeat)
    return path


def stats(driver: Any) -> dict[str, Any]:
    found: dict[str, Any] = driver.execute_script("return window.scanStats")
    return found


def begin(driver: Any, address: str) -> None:
    driver.get(address)
    until(lambda: driver.execute_script("return document.getElementById('camera').videoWidth"), 30, "the camera")
    driver.find_element("id", "shutter").click()
    until(lambda: stats(driver)["acknowledged"] >= 2, 180, "the first frames")


def end(driver: Any) -> dict[str, Any]:
    driver.find_element("id", "shutter").click()
    until(lambda: stats(driver).get("done"), 60, "the end")
    return stats(driver)


def scanned(data: Path) -> list[dict[str, Any]]:
    (folder,) = DataFolder(data).scans.iterdir()
    return [json.loads(line) for line in (folder / "frames.jsonl").read_text().splitlines()]


def finished(data: Path, name: str) -> dict[str, Any]:
    def record() -> dict[str, Any] | None:
        found: dict[str, Any] = json.loads((data / name / "run.json").read_text())
        return found if found["interrupted"] is False and "refinement" in found else None

    result: dict[str, Any] = until(record, 600, "the refinement")
    return result


def test_a_scan_over_self_made_https(tmp_path: Path) -> None:
    camera = camera_file(tmp_path / "camera.mjpeg", sample()[:60], 20)
    data = tmp_path / "data"
    with (
        ServerProcess(data, "--host", "0.0.0.0", "--tls") as server,
        chromium(tmp_path, *CAMERA, f"--use-file-for-fake-video-capture={camera}") as driver,
    ):
        driver.get(server.url)  # the token becomes a cookie
        until(lambda: "GB" in driver.find_element("id", "limits").text, 30)
        assert "token" not in driver.current_url
        begin(driver, f"https://127.0.0.1:{server.port}/scan?view=off&name=room")
        until(lambda: stats(driver)["posed"] >= 14, 180, "poses")
        found = end(driver)
        assert found["mostInFlight"] == 1 and not found["errors"]
        print(f"delay from capture to pose, 95 %: {np.percentile(found['delays'], 95):.0f} ms")
        assert found["acknowledged"] >= 10 and found["posed"] >= 8 and found["cuts"] == 0
        record = finished(data, "room-recon")
        # The last frame may have been on its way.
        assert record["frames"]["reconstructed"] - found["acknowledged"] in (0, 1) and not record["segments"]
        assert [said["text"] for said in found["says"]] == []
    (scan,) = DataFolder(data).scans.iterdir()
    error = ate_over_path(data / "room-recon", scan)
    print(f"ATE / path: {error:.4f}")
    assert error <= 0.02


def ate_over_path(result: Path, scan: Path) -> float:
    """Error of a result of a scan; which frame of the sample each picture shows is found by its content."""
    small = [cv2.resize(frame, (96, 72), interpolation=cv2.INTER_AREA).astype(np.float32) for frame in sample()[:60]]
    with np.load(SAMPLE.with_suffix(".truth.npz")) as file:
        truth = file["T_world_camera"]
    cameras = read_result(result).cameras
    shown = []
    for camera in cameras:
        image = cv2.imread(str(scan / f"{camera.index:06d}.jpg"))
        here = cv2.resize(image, (96, 72), interpolation=cv2.INTER_AREA).astype(np.float32)
        shown.append(int(np.argmin([np.abs(here - frame).mean() for frame in small])))
    poses = np.stack([camera.T_world_camera for camera in cameras])
    error = pose_errors(poses, truth[shown], np.zeros(len(shown) - 1, bool)).ate_over_path
    assert error is not None
    return error


def test_a_cut_connection_is_resumed(tmp_path: Path) -> None:
    """It goes on as a new segment of the same result."""
    camera = camera_file(tmp_path / "camera.mjpeg", sample()[:60], 4)
    data = tmp_path / "data"
    with (
        listening(data, WebLimits(scan_pause_s=0.5)) as port,
        chromium(tmp_path, *CAMERA, f"--use-file-for-fake-video-capture={camera}") as driver,
    ):
        relay = Relay(port)
        begin(driver, f"http://127.0.0.1:{relay.port}/scan?view=off")
        until(lambda: stats(driver)["acknowledged"] >= 6, 60)
        relay.cut()
        # A last answer may come after the message and replace it.
        until(lambda: stats(driver)["cuts"] >= 1 or "is cut" in driver.find_element("id", "note").text, 90, "the cut")
        time.sleep(1)
        kept = stats(driver)["acknowledged"]
        relay.restore()
        until(lambda: stats(driver)["acknowledged"] >= kept + 4, 60, "more frames")
        found = end(driver)
        relay.close()
        assert found["cuts"] >= 1 and not found["errors"]
        segments = [entry["segment"] for entry in scanned(data) if "segment" in entry]
        assert sorted(set(segments)) == [0, 1] and segments == sorted(segments)


def test_guidance_appears_and_goes(tmp_path: Path) -> None:
    good, bad = sample()[:20], [frame // 8 for frame in sample()[20:30]]
    # Good for 20 s, damaged for 10 s, as one forth and back: the damaged stretch lies at the turning point.
    camera = camera_file(tmp_path / "camera.mjpeg", [*good, *bad], 15)
    with (
        ServerProcess(tmp_path / "data") as server,
        chromium(tmp_path, *CAMERA, f"--use-file-for-fake-video-capture={camera}") as driver,
    ):
        begin(driver, f"{server.url}scan?view=off")
        until(lambda: stats(driver)["posed"] >= 1, 180, "the first pose")
        until(lambda: any(said["text"] == DARK.line for said in stats(driver)["says"]), 60, "the line")
        assert driver.find_element("id", "guidance").text in (DARK.line, "")
        until(lambda: stats(driver)["says"][-1]["text"] == "", 60, "its end")
        says = end(driver)["says"]
    is_bad = damaged_frames(tmp_path / "data", good, bad)
    begins = next(number for number, said in enumerate(says) if said["text"] == DARK.line)
    ends = next(number for number in range(begins, len(says)) if not says[number]["text"])
    first = is_bad.index(True)
    last = is_bad.index(False, first)
    waited, stayed = says[begins]["sent"] - first, says[ends]["sent"] - last
    print(f"the line appeared {waited} frames after the first bad one, and went {stayed} after the first good one")
    # In frames, since a busy machine takes fewer of them in a second.
    assert 0 < waited <= GUIDANCE_FRAMES and 0 < stayed <= GUIDANCE_FRAMES


GUIDANCE_FRAMES = 16
"""Two seconds at 8 frames/s."""


def damaged_frames(data: Path, good: list[NDArray[np.uint8]], bad: list[NDArray[np.uint8]]) -> list[bool]:
    """For each frame of a scan, whether it shows one of the ``bad`` pictures of the camera."""
    (scan,) = DataFolder(data).scans.iterdir()
    found = []
    for path in sorted(scan.glob("*.jpg")):
        image = cv2.imread(str(path)).astype(np.float32)
        of_good, of_bad = (min(np.abs(image - each).mean() for each in pictures) for pictures in (good, bad))
        found.append(bool(of_bad < of_good))
    return found
