"""Kernels compiled before a step first runs."""

import importlib
import logging
import time
from typing import Any

import pytest

from stream_recon.cache.kernels import compilation
from stream_recon.cache.kernels.compilation import COMPILES, compile_kernels

triton = pytest.importorskip("triton")  # not on each platform


@triton.jit  # type: ignore[untyped-decorator]
def _kernel(x: Any) -> None:
    pass


def test_a_step_starts_no_kernel_while_they_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[bool] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        started.append(not warmup)

    monkeypatch.setattr(triton.JITFunction, "run", run)
    compile_kernels(lambda: _kernel[(1,)](1))
    _kernel[(1,)](1)
    assert started == [False, True]


def test_a_failed_step_leaves_kernels_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    run = triton.JITFunction.run
    with pytest.raises(ZeroDivisionError):
        compile_kernels(lambda: 1 // 0)
    assert triton.JITFunction.run is run


@pytest.mark.parametrize(("seconds", "said"), [(1.2, 1), (0.0, 0)])
def test_long_compilation_is_announced_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, seconds: float, said: int
) -> None:
    from triton.runtime import _async_compile

    importlib.reload(compilation)  # it announces once per process

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        mode = _async_compile.active_mode.get()
        mode.raw_futures.append(mode.executor.submit(time.sleep, seconds))
        mode.raw_futures[-1]._key = "kernel"
        mode.future_kernels["kernel"] = type("Kernel", (), {"future": None, "result": lambda self, ignore: None})()

    monkeypatch.setattr(triton.JITFunction, "run", run)
    with caplog.at_level(logging.WARNING):
        compilation.compile_kernels(lambda: _kernel[(1,)](1))
        compilation.compile_kernels(lambda: _kernel[(1,)](1))
    assert [record.message for record in caplog.records] == [COMPILES] * said
