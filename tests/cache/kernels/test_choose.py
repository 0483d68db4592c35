from typing import cast

import pytest
import torch

from stream_recon.cache.attention import AttentionSizes
from stream_recon.cache.kernels import choose
from stream_recon.cache.kernels.choose import check_fp8, choose_attention, fp8_attention
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import AttentionChoice

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
METADATA = cast(StepMetadata, object())


def sizes(dtype: torch.dtype = torch.bfloat16, heads: int = 16) -> AttentionSizes:
    return AttentionSizes(heads=heads, head_dim=64, special=6, patches=12, pool_tokens=180, dtype=dtype)


class FakeFlashInfer:
    """Stands for the backend, which needs a GPU."""

    error: Exception | None = None

    def __init__(self, sizes: object, device: object, name: str = "flashinfer") -> None:
        self.name = name
        if self.error is not None:
            raise self.error

    def plan(self, *_: object) -> None:
        pass

    attend = plan


@pytest.fixture
def fake_flashinfer(monkeypatch: pytest.MonkeyPatch) -> type[FakeFlashInfer]:
    """A machine with a GPU and FlashInfer, without Triton."""
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, **options: zeros(*shape, **options | {"device": CPU}))
    monkeypatch.setattr(choose, "find_spec", lambda name: object())
    monkeypatch.setattr(choose, "FlashInferAttention", FakeFlashInfer)
    monkeypatch.setattr(FakeFlashInfer, "error", None)
    return FakeFlashInfer


@pytest.mark.parametrize("choice", ["flashinfer", "flashinfer-fa2", "flashinfer-fa3", "triton"])
def test_the_cpu_takes_torch_and_refuses_the_rest(choice: AttentionChoice) -> None:
    assert choose_attention("auto", sizes(torch.float32), CPU).name == "sdpa"
    assert choose_attention("sdpa", sizes(torch.float32), CPU).name == "sdpa"
    with pytest.raises(ResourceError, match=r"CUDA.*sdpa"):
        choose_attention(choice, sizes(), CPU)
    with pytest.raises(ResourceError, match=r"half precision.*sdpa"):
        choose_attention(choice, sizes(torch.float32), CUDA)


@pytest.mark.parametrize("choice", ["fa2", "fa3", "cudnn", "best"])
def test_an_unknown_kernel_is_a_clear_error(choice: str) -> None:
    with pytest.raises(
        ResourceError, match=f"{choice}.*use auto, triton, flashinfer, flashinfer-fa2, flashinfer-fa3 or sdpa"
    ):
        choose_attention(cast(AttentionChoice, choice), sizes(), CPU)


def test_kernels_that_are_not_installed_are_clear_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "find_spec", lambda name: None)
    with pytest.raises(ResourceError, match=r"pip install.*--attention auto"):
        choose_attention("flashinfer", sizes(), CUDA, METADATA)
    with pytest.raises(ResourceError, match="Triton does not run here"):
        choose_attention("triton", sizes(), CUDA)


@pytest.mark.parametrize("heads", [6, 16])
def test_auto_takes_triton_without_a_look_at_flashinfer(
    heads: int, monkeypatch: pytest.MonkeyPatch, fake_flashinfer: type[FakeFlashInfer], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choose, "build_kernel", lambda name, *_: name)
    assert choose_attention("auto", sizes(heads=heads), CUDA, METADATA) == "triton"
    assert not caplog.messages


def test_auto_compiles_flashinfer_only_for_networks_of_published_size_and_says_so(
    fake_flashinfer: type[FakeFlashInfer], caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_attention("auto", sizes(heads=6), CUDA).name == "sdpa" and not caplog.messages
    assert choose_attention("auto", sizes(), CUDA).name == "flashinfer"
    assert caplog.messages == [choose.COMPILES]
    caplog.clear()
    assert choose_attention("flashinfer", sizes(heads=6), CUDA).name == "flashinfer"
    assert caplog.messages == [choose.COMPILES]


def test_a_kernel_of_flashinfer_is_taken_where_the_gpu_runs_it(
    monkeypatch: pytest.MonkeyPatch, fake_flashinfer: type[FakeFlashInfer]
) -> None:
    for capability, choices in (((9, 0), ("flashinfer-fa2", "flashinfer-fa3")), ((8, 6), ("flashinfer-fa2",))):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, known=capability: known)
        for choice in choices:
            assert choose_attention(cast(AttentionChoice, choice), sizes(), CUDA, METADATA).name == choice
    with pytest.raises(ResourceError, match=r"Hopper.*flashinfer-fa2"):
        choose_attention("flashinfer-fa3", sizes(), CUDA, METADATA)


def test_auto_takes_torch_where_flashinfer_does_not_compile(
    monkeypatch: pytest.MonkeyPatch, fake_flashinfer: type[FakeFlashInfer], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fake_flashinfer, "error", RuntimeError("Ninja build failed\nwith much text"))
    assert choose_attention("auto", sizes(), CUDA).name == "sdpa"
    assert "Ninja build failed" in caplog.text and "much text" not in caplog.text


def test_a_cache_in_fp8_is_refused_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError, match=r"--cache fp8 needs a CUDA device"):
        check_fp8("auto", CPU)
    for choice in ("flashinfer", "sdpa"):
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
