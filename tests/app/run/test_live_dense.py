"""Stereo while frames arrive: what the page gets, and when nothing is computed."""

import threading
import time

import numpy as np
import pytest

from stream_recon.app.core.cpu_threads import FreeCores
from stream_recon.app.core.types import Certainty, FrameResult, FrameRevision, ImageTransform, NetworkEstimate, Revision
from stream_recon.app.run.live_dense import DEFAULT_LIVE_DENSE, GroupStereo, LiveDense, StereoProcess
from stream_recon.app.slam.dense.stereo import DenseDepth
from stream_recon.app.slam.dense.views import StereoView
from stream_recon.configs.errors import ResourceError
from tests.app.slam.dense.test_stereo import CAMERA, SIZE, relative, scene


class Page:
    """Records its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.dense: dict[int, FrameResult] = {}

    def add_image(self, index: int, image: np.ndarray) -> None:
        self.calls.append(f"image {index}")

    def add(self, result: FrameResult) -> None:
        self.calls.append(f"add {result.index}")

    def revise(self, revision: Revision) -> None:
        self.calls.append("revise")

    def show_dense(self, result: FrameResult, image: np.ndarray) -> None:
        self.calls.append(f"dense {result.index}")
        self.dense[result.index] = result


class InPlace(GroupStereo):
    """Stereo in this process, which a test may hold."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.go, self.groups = threading.Event(), list[list[int]]()
        self.go.set()

    def maps(self, views: list[StereoView]) -> list[DenseDepth]:  # type: ignore[override]
        self.groups.append([view.index for view in views])
        assert self.go.wait(120)
        return super().maps(lambda: False, views)

    def end(self) -> None:
        self.go.set()


def result_of(view: StereoView, *, measured: bool = True) -> FrameResult:
    image = np.repeat(view.grey[..., None], 3, axis=2).astype(np.uint8)
    network = NetworkEstimate(view.T_world_camera, CAMERA, 1.0) if measured else None
    transform = ImageTransform(SIZE, (0.0, 0.0, float(SIZE[0]), float(SIZE[1])), SIZE)
    confidence = np.full(view.prior.shape, 9, np.float32)
    return FrameResult(
        view.index, 0.0, view.T_world_camera, CAMERA, view.prior, confidence, image, transform, True, network=network
    )


def stream(live: LiveDense, *, measured: bool = True, count: int = 9, first: int = 0) -> None:
    for view in scene(count)[0][first:]:
        result = result_of(view, measured=measured)
        live.add_image(result.index, result.rgb)
        live.add(result)


def wait_for(condition, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_keyframes_behind_the_newest_get_confirmed_maps():
    page = Page()
    live = LiveDense(page, InPlace(), lambda: True)
    stream(live)
    wait_for(lambda: len(page.dense) >= 3)
    live.close()

    assert max(page.dense) <= 8 - DEFAULT_LIVE_DENSE.behind
    for index, shown in page.dense.items():
        assert shown.certainty is not None
        confirmed = shown.certainty == Certainty.CONFIRMED
        assert confirmed.mean() > 0.1
        assert np.median(relative(shown.depth, scene()[1][index])[confirmed]) < 0.05


def test_everything_is_passed_on_in_order_and_at_once():
    page, stereo = Page(), InPlace()
    stereo.go.clear()
    live = LiveDense(page, stereo, lambda: True)
    stream(live)
    live.revise(Revision((FrameRevision(0, np.eye(4)),)))

    assert page.calls == [call for i in range(9) for call in (f"image {i}", f"add {i}")] + ["revise"]
    live.close()


def test_a_revision_during_the_computation_moves_the_map():
    page, stereo = Page(), InPlace()
    stereo.go.clear()
    live = LiveDense(page, stereo, lambda: True)
    stream(live)
    wait_for(lambda: stereo.groups)
    moved = np.eye(4)
    moved[2, 3] = 5
    first = stereo.groups[0]
    live.revise(Revision(tuple(FrameRevision(index, moved, 2.0) for index in range(9))))
    stereo.go.set()
    wait_for(lambda: len(page.dense) >= 2)
    live.close()

    shown = page.dense[first[1]]
    np.testing.assert_array_equal(shown.T_world_camera, moved)
    known = shown.depth > 0
    assert np.median((shown.depth / scene()[1][first[1]])[known]) == pytest.approx(2, rel=0.1)


def test_a_slow_computation_drops_the_oldest():
    page, stereo = Page(), InPlace()
    stereo.go.clear()
    live = LiveDense(page, stereo, lambda: True)
    stream(live, count=9)
    wait_for(lambda: stereo.groups)
    stream(live, count=40, first=9)
    stereo.go.set()
    wait_for(lambda: len(stereo.groups) >= 2)
    live.close()

    assert max(len(group) for group in stereo.groups) <= DEFAULT_LIVE_DENSE.kept
    assert stereo.groups[-1][-1] == 39


def test_nothing_is_computed_without_a_free_core_or_measured_poses():
    page, stereo = Page(), InPlace()
    busy, unmeasured = LiveDense(page, stereo, lambda: False), LiveDense(page, stereo, lambda: True)
    stream(busy)
    stream(unmeasured, measured=False)
    time.sleep(0.3)
    busy.close()
    unmeasured.close()

    assert not stereo.groups
    assert not page.dense


def test_a_core_is_free_only_where_the_machine_was_idle(monkeypatch: pytest.MonkeyPatch):
    from stream_recon.app.core import cpu_threads

    clock, busy = [0.0], [0.0]
    monkeypatch.setattr(cpu_threads.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(cpu_threads, "_busy_seconds", lambda: busy[0])
    monkeypatch.setattr(cpu_threads, "all_cores", lambda: 2)
    cores = FreeCores()
    assert not cores.is_one_free()
    clock[0], busy[0] = 1.0, 1.95
    assert not cores.is_one_free()
    clock[0], busy[0] = 2.0, 2.95
    assert cores.is_one_free()


@pytest.mark.slow
def test_a_process_gives_the_same_and_its_end_is_noticed():
    process, views = StereoProcess("cpu"), scene()[0][:6]
    found = process.maps(views)
    for one, other in zip(found, GroupStereo("cpu").maps(lambda: False, views), strict=True):
        np.testing.assert_array_equal(one.depth, other.depth)
    process.end()
    with pytest.raises(ResourceError):
        process.maps(views)
