from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from stream_recon.app.core.types import Frame, FrameResult
from stream_recon.app.engine import device_transfer
from stream_recon.app.engine import stream as stream_module
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.engine.stream import StepOptions
from stream_recon.configs.errors import InputError, ResourceError, WeightsError
from stream_recon.models.embedded import EMBEDDED_WEIGHTS, file_sha256
from tests.networks import tiny_network, tiny_preset


def frames(count: int, size: tuple[int, int] = (84, 56), seed: int = 0) -> Iterator[Frame]:
    generator = np.random.default_rng(seed)
    for index in range(count):
        rgb = generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
        yield Frame(index=3 * index, timestamp=0.1 * index, rgb=rgb)


def tiny_engine(**stream: object) -> Engine:
    preset = tiny_preset(**stream)
    return Engine(tiny_network(preset), preset, "0" * 64)


def same(a: FrameResult, b: FrameResult) -> bool:
    arrays = ("T_world_camera", "depth", "confidence", "rgb")
    return a.is_keyframe == b.is_keyframe and all(np.array_equal(getattr(a, n), getattr(b, n)) for n in arrays)


@pytest.mark.parametrize("mode", ["flow", "every"])
def test_a_result_is_the_same_bit_for_bit_when_later_frames_are_cut_off(mode: str) -> None:
    stream = {"keyframes": mode, "flow_threshold": 5.0, "max_gap": 3}
    full = list(tiny_engine(**stream).stream(frames(16)))
    for count in (3, 4, 9, 15):
        cut = list(tiny_engine(**stream).stream(frames(count)))
        assert len(cut) == count
        assert all(same(a, b) for a, b in zip(cut, full, strict=False))
    if mode == "flow":
        assert 0 < sum(r.is_keyframe for r in full) < len(full)


def test_bf16_stays_near_fp32() -> None:
    preset = tiny_preset(keyframes="every")
    exact = list(Engine(tiny_network(preset), preset, "0" * 64).stream(frames(12)))
    network = tiny_network(preset)
    network.store_matrices_in_half()
    results = list(Engine(network, preset, "0" * 64, StepOptions(precision="bf16")).stream(frames(12)))
    assert len(results) == len(exact)
    for result, wanted in zip(results, exact, strict=True):
        assert result.depth.dtype == wanted.depth.dtype
        np.testing.assert_allclose(result.depth, wanted.depth, rtol=0.1)
        np.testing.assert_allclose(result.T_world_camera, wanted.T_world_camera, atol=0.05)
    assert any(not np.array_equal(a.depth, b.depth) for a, b in zip(results, exact, strict=True))


def test_the_embedded_engine_takes_bf16_where_the_cpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[str] = []
    monkeypatch.setattr(device_transfer, "cpu_has", lambda flag: flag in flags)
    # Both are found out by timing, which a busy machine decides otherwise.
    monkeypatch.setattr(device_transfer, "bf16_is_faster", lambda: True)
    monkeypatch.setattr(device_transfer, "is_fastest", lambda other: False)
    assert load_engine(device="cpu").precision == "fp32"
    flags.append("avx512_bf16")
    assert load_engine(device="cpu").precision == "bf16"
    flags.clear()
    monkeypatch.setattr(device_transfer, "is_fastest", lambda other: True)
    assert load_engine(device="cpu").precision == "int8"


def test_weights_are_identified_by_their_digest_which_may_be_given() -> None:
    assert load_engine(device="cpu").weights_sha256 == file_sha256(EMBEDDED_WEIGHTS)
    assert load_engine(device="cpu", weights_sha256="ab" * 32).weights_sha256 == "ab" * 32


def test_results_come_one_for_each_frame_after_the_scale_frames() -> None:
    engine = tiny_engine()
    counts = [len(engine.push(frame)) for frame in frames(6)]
    assert counts == [0, 0, 3, 1, 1, 1]
    assert engine.finish() == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_video_shorter_than_the_scale_frames_works_with_what_is_there(count: int) -> None:
    results = list(tiny_engine().stream(frames(count)))
    assert [r.index for r in results] == [3 * i for i in range(count)]
    assert all(np.isfinite(r.depth).all() and (r.confidence > 0).all() for r in results)


def test_an_empty_stream_has_no_results() -> None:
    assert list(tiny_engine().stream([])) == []


def test_a_reset_engine_equals_a_new_one() -> None:
    engine = tiny_engine(keyframes="flow", flow_threshold=5.0, max_gap=3, window=2, special_budget=8)
    first = list(engine.stream(frames(16)))
    engine.reset()
    list(engine.stream(frames(9, seed=1)))
    for other in ((56, 84), (84, 56)):
        engine.reset()
        again = list(engine.stream(frames(16, size=other)))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))


def test_results_describe_the_camera_in_source_pixels() -> None:
    result = next(iter(tiny_engine().stream(frames(3, size=(840, 560)))))
    k, n = result.intrinsics, result.network_intrinsics
    assert (k.cx, k.cy) == (420, 280) and k.fx == k.fy
    height, width = result.depth.shape
    assert (n.cx, n.cy) == (width / 2, height / 2)
    assert k.fx / 840 == pytest.approx(n.fx / width) and k.fy / 560 == pytest.approx(n.fy / height)
    R = result.T_world_camera[:3, :3]
    np.testing.assert_allclose(R @ R.T, np.eye(3), atol=1e-12)


def test_a_frame_of_another_size_is_refused_by_number() -> None:
    engine = tiny_engine()
    engine.push(next(frames(1)))
    with pytest.raises(InputError, match="frame 0 is 40x40 but the first one is 84x56"):
        engine.push(next(frames(1, size=(40, 40))))


def test_frames_may_be_prepared_ahead() -> None:
    engine, ahead = tiny_engine(), tiny_engine()
    prepared = [ahead.prepare(frame) for frame in frames(6)]
    assert all(frame.rgb.shape[:2] == frame.transform.network_size[::-1] for frame in prepared)
    results = [result for frame in prepared for result in ahead.push(frame)]
    assert len(results) == 6
    assert all(same(a, b) for a, b in zip(results, engine.stream(frames(6)), strict=True))
    with pytest.raises(InputError, match="frame 0 is 40x40 but the first one is 84x56"):
        ahead.prepare(next(frames(1, size=(40, 40))))


def test_memory_is_checked_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "available_memory", lambda device: 1000)
    with pytest.raises(ResourceError, match="cache needs"):
        list(tiny_engine().stream(frames(3)))


def test_the_window_and_the_attention_choice_reach_the_stream() -> None:
    narrow, wide = (list(tiny_engine(window=w).stream(frames(12)))[-1] for w in (1, 6))
    assert not same(narrow, wide)
    engine = Engine(tiny_network(tiny_preset()), tiny_preset(), "", StepOptions("sdpa"))
    assert engine.attention == "sdpa"
    engine = Engine(tiny_network(tiny_preset()), tiny_preset(), "", StepOptions("flashinfer"))
    with pytest.raises(ResourceError, match="CUDA"):
        list(engine.stream(frames(3)))


def test_impossible_choices_are_errors() -> None:
    with pytest.raises(WeightsError, match="no embedded weights"):
        load_engine("lingbot-map")
    with pytest.raises(WeightsError, match="no weights at"):
        load_engine(weights=Path("absent.safetensors"))
    with pytest.raises(ResourceError, match="--cache fp8 needs a CUDA device"):
        load_engine(device="cpu", cache="fp8")
    with pytest.raises(ResourceError, match="--cache fp8 needs a CUDA device"):
        list(Engine(tiny_network(tiny_preset()), tiny_preset(), "", StepOptions(cache="fp8")).stream(frames(3)))
    with pytest.raises(ResourceError, match="unknown attention kernel 'fa2'"):
        load_engine(device="cpu", attention="fa2")  # type: ignore[arg-type]
    with pytest.raises(ResourceError, match="unknown device"):
        load_engine(device="tpu")
    if not torch.cuda.is_available():
        with pytest.raises(ResourceError, match="no CUDA device"):
            load_engine(device="cuda")
