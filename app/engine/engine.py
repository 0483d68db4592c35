"""The engine: frames in, results out, one at a time, with the network in this process."""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stream_recon.app.core.types import FrameResult, PreparedFrame
from stream_recon.app.engine.device_transfer import (
    Precision,
    choose_precision,
    computes_in_half,
    plain_precision,
    to_host,
    to_images,
)
from stream_recon.app.engine.devices import choose_device, runs_alike, trial_outputs
from stream_recon.app.engine.keyframes import KeyframePolicy
from stream_recon.app.engine.session import StreamingSession, frame_result
from stream_recon.app.engine.stream import StepOptions, StreamRunner
from stream_recon.cache.cache_dtypes import cache_policy
from stream_recon.cache.kernels.choose import check_choice, runs_triton
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import AttentionChoice, CacheChoice, PrecisionChoice, Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, file_sha256, weights_file
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.weights import load_network

logger = logging.getLogger(__name__)


class Engine(StreamingSession):
    """A `StreamingSession` whose network runs in this process."""

    def __init__(
        self, network: StreamingNetwork, preset: Preset, weights_sha256: str, options: StepOptions | None = None
    ) -> None:
        super().__init__(preset)
        self._options = options = options or StepOptions()
        self.weights_sha256 = weights_sha256
        self.device = str(network.image_mean.device)
        self.precision: Precision = options.precision or plain_precision(network.image_mean.device)
        self.cache = options.cache
        self._network = network
        self._stream: StreamRunner | None = None

    @property
    def attention(self) -> str:
        """The attention backend in use; the one asked for until the first step."""
        return self._stream.attention if self._stream else self._options.attention

    @property
    def threads(self) -> int:
        """CPU threads of the network, shared by all engines of this process; 0 on a GPU."""
        return torch.get_num_threads() if self._network.image_mean.device.type == "cpu" else 0

    @threads.setter
    def threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def release(self) -> None:
        """Give back the caches' memory; the network stays."""
        self.reset()
        self._stream = None

    def _begin_stream(self, frames: Sequence[PreparedFrame]) -> list[FrameResult]:
        grid = grid_of(frames[0], self.preset)
        if self._stream is None or self._stream.grid != grid:
            self._stream = None  # there may not be memory for two
            self._stream = StreamRunner(self._network, self.preset, grid, self._options)
        self._stream.reset(self.min_gap)
        return self._step(frames)

    def _advance(self, frame: PreparedFrame, *, keep: bool = False) -> FrameResult:
        return self._step([frame], keep=keep)[0]

    def _step(self, frames: Sequence[PreparedFrame], *, keep: bool = False) -> list[FrameResult]:
        assert self._stream is not None
        pixels = np.stack([frame.rgb for frame in frames])
        prediction, decision = self._stream.step(to_images(pixels, self._network.image_mean.device), keep=keep)
        self._use = self._stream.kv_cache.use
        crop = frames[0].transform.crop[2:]
        outputs = to_host(prediction.pose[0], prediction.depth[0], prediction.confidence[0], [crop] * len(frames))
        return [
            frame_result(frame, output, is_keyframe=decision.is_keyframe, flow=decision.flow)
            for frame, output in zip(frames, outputs, strict=True)
        ]


def grid_of(frame: PreparedFrame, preset: Preset) -> tuple[int, int]:
    """Patch rows and columns of a frame's image."""
    width, height = frame.transform.network_size
    return height // preset.network.patch_size, width // preset.network.patch_size


def load_engine(
    preset: str = EMBEDDED_PRESET,
    weights: Path | None = None,
    device: str = "auto",
    attention: AttentionChoice = "auto",
    overrides: Mapping[str, Any] | None = None,
    cache: CacheChoice = "full",
    weights_sha256: str | None = None,
    precision: PrecisionChoice = "auto",
) -> Engine:
    """An engine with the embedded weights, or with those of a file.

    Args:
        preset: name or TOML file; see `load_preset`, also for ``overrides``.
        weights: a .safetensors file that fits the preset, under our names or published ones.
        device: ``auto``, ``cuda``, ``mps`` or ``cpu``.
        attention: see `choose_attention`.
        cache: ``full``, ``fp8`` for about half the cache's memory, or ``compressed``; see `CacheChoice`.
        weights_sha256: of the file, if known; None computes it.
        precision: of matrices; see `choose_precision`.

    Raises ConfigError, WeightsError, ResourceError: see their messages.
    """
    known = load_preset(preset, overrides), weights, device, attention, cache, weights_sha256, precision
    return load_model(*known).engine(attention, cache)


@dataclass(frozen=True)
class LoadedModel:
    """A network on its device, ready for inference."""

    network: StreamingNetwork
    preset: Preset
    weights_sha256: str
    precision: Precision

    def engine(
        self,
        attention: AttentionChoice,
        cache: CacheChoice,
        preset: Preset | None = None,
        keyframes: KeyframePolicy | None = None,
    ) -> Engine:
        """An engine on this network; ``preset``: one that chooses other keyframes, or ``keyframes`` does."""
        options = StepOptions(attention, self.precision, cache, keyframes)
        return Engine(self.network, preset or self.preset, self.weights_sha256, options)


def load_model(
    preset: Preset,
    weights: Path | None,
    device: str,
    attention: AttentionChoice,
    cache: CacheChoice,
    weights_sha256: str | None,
    precision: PrecisionChoice = "auto",
) -> LoadedModel:
    """A preset's network on its device, ready for inference; see `load_engine`."""
    check_choice(attention)
    file = weights_file(preset, weights)
    target = choose_device(device)
    cache_policy(cache).check(attention, target)
    chosen = choose_precision(precision, target)
    # Hashing gigabytes takes as long as loading them: in parallel, both take the time of one.
    with ThreadPoolExecutor(1, "digest") as pool:
        digest = pool.submit(lambda: weights_sha256 or file_sha256(file))
        network = load_network(file, preset.network)
        if target.type == "mps" and not runs_alike(partial(trial_outputs, network, preset), target):
            if device != "auto":
                raise ResourceError("this network fails or errs on this device: use --device cpu")
            logger.warning("Apple's GPU runs this network wrongly or not at all: the CPU does")
            target = torch.device("cpu")
            network, chosen = network.to(target), choose_precision(precision, target)
        prepare_network(network, target, chosen)
        network = network.to(target)
    logger.info("loaded %s on %s, %s", file, target, chosen)
    return LoadedModel(network, preset, digest.result(), chosen)


def prepare_network(network: StreamingNetwork, device: torch.device, precision: Precision = "bf16") -> None:
    """Lay weights out for inference on ``device`` before they go there, so that fp32 ones take no memory there."""
    if precision == "fp32":
        return
    if precision == "int8":
        network.quantise_for_cpu(half=computes_in_half(precision, device))
    elif device.type == "cuda" and runs_triton():
        network.fuse_for_gpu()
    elif device.type == "cpu":
        network.pack_for_cpu()
    else:
        network.store_matrices_in_half()
