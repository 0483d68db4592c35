from typing import cast

import pytest
import torch

from stream_recon.cache.kernels import choose
from stream_recon.cache.kernels import timing as kernel_timing
from stream_recon.cache.kernels.choose import check_fp8, choose_attention, fp8_attention
from stream_recon.cache.kernels.timing import AttentionSizes
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import AttentionChoice

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
INPUTS = cast(StepMetadata, object())


def sizes(dtype: torch.dtype = torch.bfloat16) -> AttentionSizes:
    return AttentionSizes(layers=4, heads=2, head_dim=32, special=6, patches=12, pool_tokens=180, dtype=dtype)


@pytest.mark.parametrize("choice", ["flashinfer", "fa2", "fa3", "triton", "cudnn"])
def test_the_cpu_takes_torch_and_refuses_the_rest(choice: AttentionChoice) -> None:
    assert choose_attention("auto", sizes(torch.float32), CPU).name == "sdpa"
    with pytest.raises(ResourceError, match=r"CUDA.*sdpa"):
        choose_attention(choice, sizes(), CPU)
    with pytest.raises(ResourceError, match=r"half precision.*sdpa"):
        choose_attention(choice, sizes(torch.float32), CUDA)


def test_flashinfer_that_is_not_installed_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    for choice in ("flashinfer", "fa2", "fa3"):
        with pytest.raises(ResourceError, match=r"pip install.*--attention auto"):
            choose_attention(cast(AttentionChoice, choice), sizes(), CUDA, INPUTS)
    with pytest.raises(ResourceError, match="Triton does not run here"):
        choose_attention("triton", sizes(), CUDA)


def test_fa3_is_refused_where_the_gpu_is_no_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    with pytest.raises(ResourceError, match="Hopper"):
        choose_attention("fa3", sizes(), CUDA, INPUTS)
    with pytest.raises(ResourceError, match="needs Triton"):
        choose_attention("fa2", sizes(), CUDA)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"triton": 1.0, "fa2": 1.5, "fa3": 1.2}, "triton"),
        ({"triton": 1.01, "fa2": 1.0, "fa3": 1.2}, "triton"),
        ({"triton": 2.0, "fa2": 1.5, "fa3": 1.2}, "fa3"),
    ],
)
def test_the_fastest_is_timed_once_and_ours_wins_a_tie(
    times: dict[str, float],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    asked: list[str] = []

    def build(name: str, *_: object) -> str:
        asked.append(name)
        return name

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel_timing, "find_spec", lambda name: None)
    monkeypatch.setattr(choose, "installed_kernels", lambda choice: list(times))
    monkeypatch.setattr(choose, "build_kernel", build)
    monkeypatch.setattr(choose, "time_frame", lambda backend, *_: times[backend])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    assert choose_attention("auto", sizes(), CUDA, INPUTS) == expected
    assert asked == [*times, expected]
    assert choose.WAIT in caplog.messages
    caplog.clear()
    assert choose_attention("auto", sizes(), CUDA, INPUTS) == expected
    assert asked == [*times, expected, expected] and not caplog.messages
    choose.timings_file().write_text("no JSON")
    assert choose_attention("auto", sizes(), CUDA, INPUTS) == expected


def test_a_kernel_that_does_not_work_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    works = {"triton"}

    def time_frame(backend: str, *_: object) -> float:
        if backend not in works:
            raise RuntimeError("Ninja build failed\nwith much text")
        return 1.0

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernel_timing, "find_spec", lambda name: None)
    monkeypatch.setattr(choose, "installed_kernels", lambda choice: ["triton", "fa2"])
    monkeypatch.setattr(choose, "build_kernel", lambda name, *_: name)
    monkeypatch.setattr(choose, "time_frame", time_frame)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    assert choose_attention("auto", sizes(), CUDA, INPUTS) == "triton"
    assert "fa2" in caplog.text and "much text" not in caplog.text
    works.clear()
    choose.timings_file().unlink()
    with pytest.raises(ResourceError, match="--attention sdpa"):
        choose_attention("auto", sizes(), CUDA, INPUTS)


def test_a_cache_in_fp8_is_refused_where_it_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError, match=r"--cache fp8 needs a CUDA device"):
        check_fp8("auto", CPU)
    for choice in ("flashinfer", "fa2", "fa3", "cudnn", "sdpa"):
        with pytest.raises(ResourceError, match=f"own attention kernel.* not {choice}"):
            check_fp8(cast(AttentionChoice, choice), CUDA)
    monkeypatch.setattr(choose, "runs_triton", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    with pytest.raises(ResourceError, match=r"8\.9 or more .*8\.6"):
        check_fp8("auto", CUDA)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    check_fp8("triton", CUDA)
    with pytest.raises(ResourceError, match="half precision"):
        fp8_attention("auto", CUDA, None)
    monkeypatch.setattr(choose, "runs_triton", lambda: False)
    with pytest.raises(ResourceError, match="Triton"):
        check_fp8("auto", CUDA)
