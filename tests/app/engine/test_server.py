"""Engines of a server, which is a thread here, against an engine in this process."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.core.types import FrameResult
from stream_recon.app.engine import server
from stream_recon.app.engine.client import RemoteEngine, connect
from stream_recon.app.engine.engine import Engine, LoadedModel
from stream_recon.app.engine.server import StreamServer, open_listener, serve_error
from stream_recon.configs.errors import ResourceError, WeightsError
from stream_recon.configs.schema import Preset
from tests.app.engine.test_engine import frames
from tests.networks import tiny_network, tiny_preset

WEIGHTS = "ab" * 32


def preset() -> Preset:
    return tiny_preset(keyframes="flow", flow_threshold=5.0, max_gap=3, special_budget=8)


@pytest.fixture
def socket(tmp_path: Path) -> Iterator[Path]:
    """Socket of a server with two slots."""
    path = tmp_path / "s"
    with open_listener(path, 8) as listener:
        model = LoadedModel(tiny_network(preset()), preset(), WEIGHTS, "fp32")
        threading.Thread(target=StreamServer(listener, model, 2).serve, daemon=True).start()
        yield path


def alone(count: int, seed: int, size: tuple[int, int] = (84, 56)) -> list[FrameResult]:
    engine = Engine(tiny_network(preset()), preset(), WEIGHTS)
    return list(engine.stream(frames(count, size, seed)))


def assert_same(got: list[FrameResult], expected: list[FrameResult]) -> None:
    assert [r.index for r in got] == [r.index for r in expected]
    for result, wanted in zip(got, expected, strict=True):
        np.testing.assert_allclose(result.T_world_camera, wanted.T_world_camera, atol=1e-5)
        np.testing.assert_allclose(result.depth, wanted.depth, rtol=1e-4)
        np.testing.assert_allclose(result.confidence, wanted.confidence, rtol=1e-4)
        assert result.intrinsics.fx == pytest.approx(wanted.intrinsics.fx, rel=1e-5)
        assert (result.is_keyframe, result.transform) == (wanted.is_keyframe, wanted.transform)


def test_concurrent_engines_get_the_results_of_each_alone(socket: Path) -> None:
    """Four scenes in three threads and two slots; one is of another shape, one ends before its scale frames do."""
    scenes = [(14, 1, (84, 56)), (9, 2, (84, 56)), (11, 3, (56, 84)), (2, 4, (84, 56))]
    results: dict[int, list[FrameResult]] = {}

    def work(numbers: list[int]) -> None:
        engine = connect(socket, 20)
        for number in numbers:
            count, seed, size = scenes[number]
            engine.reset()
            results[number] = list(engine.stream(frames(count, size, seed)))

    threads = [threading.Thread(target=work, args=(numbers,), daemon=True) for numbers in ([0], [1, 3], [2])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for number, (count, seed, size) in enumerate(scenes):
        assert_same(results[number], alone(count, seed, size))


def test_a_run_of_known_length_is_the_same_as_alone(tmp_path: Path) -> None:
    long = tiny_preset(keyframes="flow", flow_threshold=1e9, max_gap=1, max_views=8, special_budget=8)
    here = Engine(tiny_network(long), long, WEIGHTS)
    with open_listener(tmp_path / "s", 8) as listener:
        model = LoadedModel(tiny_network(long), long, WEIGHTS, "fp32")
        threading.Thread(target=StreamServer(listener, model, 2).serve, daemon=True).start()
        there = connect(tmp_path / "s", 20)
        results = []
        for engine in (here, there):
            assert engine.expect(20) is not None and engine.min_gap == 4
            results.append([r for frame in frames(60) for r in engine.push(frame)])
    assert_same(results[1], results[0])
    assert there.cache_use == here.cache_use and there.submaps == here.submaps >= 3


def test_an_engine_that_breaks_off_frees_its_slot(socket: Path) -> None:
    expected = alone(8, 5)

    def break_off() -> None:
        engine = connect(socket, 20)  # its connection ends with it
        for frame in frames(6, seed=9):
            engine.push(frame)

    for _ in range(4):
        break_off()
    assert_same(list(connect(socket, 20).stream(frames(8, seed=5))), expected)


def test_an_engine_has_the_properties_of_the_server(socket: Path) -> None:
    engine: RemoteEngine = connect(socket, 20)
    assert (engine.device, engine.precision, engine.cache, engine.threads) == ("cpu", "fp32", "full", 0)
    assert engine.weights_sha256 == WEIGHTS and engine.preset == preset()
    list(engine.stream(frames(4)))
    assert engine.attention == "sdpa"


def test_too_little_memory_is_an_error_of_the_client_that_asked(socket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = connect(socket, 20)
    with monkeypatch.context() as short:
        short.setattr(server.StreamBatch, "__init__", _no_room)
        with pytest.raises(ResourceError, match="no room"):
            list(engine.stream(frames(4)))
    engine.reset()
    assert_same(list(engine.stream(frames(4))), alone(4, 0))


def _no_room(*_: object, **__: object) -> None:
    raise ResourceError("no room")


def test_a_load_error_and_an_absent_server_are_clear_errors(tmp_path: Path) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(open_listener(tmp_path / "s", 8))
        threading.Thread(target=serve_error, args=(listener, WeightsError("of another family")), daemon=True).start()
        with pytest.raises(WeightsError, match="of another family"):
            connect(tmp_path / "s", 20)
    with pytest.raises(ResourceError, match="does not answer"):
        connect(tmp_path / "absent", 0.0)
