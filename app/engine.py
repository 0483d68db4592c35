"""The engine: frames in, results out, one at a time. It alone knows the network and the caches."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from stream_recon.app.keyframes import Decision, View, keyframe_policy
from stream_recon.app.preprocess import plan_image, prepare
from stream_recon.app.results import Frame, FrameResult, ImageTransform, Intrinsics, PreparedFrame
from stream_recon.cache.attention import AttentionChoice, choose_attention
from stream_recon.cache.stream import StreamMemory, StreamSchema
from stream_recon.configs.errors import InputError, ResourceError, WeightsError
from stream_recon.configs.schema import Preset, load_preset
from stream_recon.models.network import Prediction, StreamingNetwork
from stream_recon.models.pose import focal_lengths, pose_to_matrix
from stream_recon.models.weights import EMBEDDED_PRESET, EMBEDDED_WEIGHTS, file_sha256, load_network

logger = logging.getLogger(__name__)

Precision = Literal["fp32", "bf16"]
CPU_INFO, CPU_FLAG = Path("/proc/cpuinfo"), "avx512_bf16"


class Stream:
    """One stream through a network: its memory and its keyframe policy. Works on tensors."""

    def __init__(
        self,
        network: StreamingNetwork,
        preset: Preset,
        grid: tuple[int, int],
        attention: AttentionChoice,
        precision: Precision | None = None,
    ) -> None:
        """``grid``: patch rows and columns; ``precision``: of matrix work and caches, `plain_precision` if None; the
        residual stream is fp32.

        Raises ResourceError if the caches do not fit in free memory.
        """
        self._network = network
        self._device = network.image_mean.device
        self._half = (precision or plain_precision(self._device)) == "bf16"
        dtype = torch.bfloat16 if self._half else torch.float32
        config, patches = preset.network, grid[0] * grid[1]
        # As the network has it.
        camera_dtype = torch.float32 if self._device.type == "cpu" else dtype
        schema = StreamSchema.of(config, preset.stream, patches, dtype, camera_dtype)
        schema.check_fits(_available_memory(self._device))
        backend = choose_attention(
            attention,
            heads=config.heads,
            head_dim=config.head_dim,
            special=config.special_tokens,
            patches=patches,
            device=self._device,
            dtype=dtype,
        )
        self.attention = backend.name
        self.memory = StreamMemory(schema, preset.stream, backend, self._device)
        self._policy = keyframe_policy(preset.stream)

    # Not inference mode: position tables that are made in it and kept could not be used for training afterwards.
    @torch.no_grad()
    def step(self, images: Tensor) -> tuple[Prediction, Decision]:
        """images [S, 3, h, w] in [0, 1]: all scale frames in the first call, one frame in each later one.

        A frame that is no keyframe leaves no trace in any cache.
        """
        first = self.memory.frames == 0
        self.memory.begin(len(images), evict_first=not first and self._policy.evicts_first)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            prediction = self._network(images[None].to(self._device), self.memory)
        view = View(prediction.pose[-1, 0, -1], prediction.depth[0, -1])
        if first:
            self._policy.start(view)
            decision = Decision(True, None)
        else:
            decision = self._policy.decide(view)
        if decision.is_keyframe:
            self.memory.commit()
        else:
            self.memory.rollback()
        return prediction, decision


class Engine:
    """Reconstructs one stream at a time.

    The first ``scale_frames`` frames are gathered and processed together, so `push` returns nothing until then,
    and all of their results at once; from then on one result for each frame.
    """

    def __init__(
        self,
        network: StreamingNetwork,
        preset: Preset,
        weights_sha256: str,
        attention: AttentionChoice = "auto",
        precision: Precision | None = None,
    ) -> None:
        """``precision``: as `Stream` has it."""
        self.preset = preset
        self.weights_sha256 = weights_sha256
        self.device = str(network.image_mean.device)
        self._network = network
        self._choice = attention
        self.precision: Precision = precision or plain_precision(network.image_mean.device)
        self.reset()

    @property
    def attention(self) -> str:
        """The attention backend in use; ``auto`` until the first frame has been seen."""
        return self._stream.attention if self._stream else self._choice

    def reset(self) -> None:
        """Forget the stream; the next frame begins another one."""
        self._waiting: list[PreparedFrame] = []
        self._stream: Stream | None = None
        self._transform: ImageTransform | None = None

    def prepare(self, frame: Frame) -> PreparedFrame:
        """Make the network's image of a frame; the first one since `reset` decides its size.

        One other thread may do this ahead of `push`: neither touches what the other one changes.

        Raises:
            InputError: the frame's size differs from the first one's.
        """
        return prepare(frame, self._plan(frame))

    def push(self, frame: Frame | PreparedFrame) -> list[FrameResult]:
        """Take the next frame, which is prepared here if it is not yet.

        Raises:
            InputError: see `prepare`.
            ResourceError: the caches do not fit in memory (first frame).
        """
        if isinstance(frame, Frame):
            frame = self.prepare(frame)
        if self._stream is None:
            self._waiting.append(frame)
            return [] if len(self._waiting) < self.preset.stream.scale_frames else self.finish()
        return self._advance([frame])

    def finish(self) -> list[FrameResult]:
        """Results of frames still waiting, when a stream ends before its scale frames are complete."""
        if not self._waiting:
            return []
        patch = self.preset.network.patch_size
        width, height = self._waiting[0].transform.network_size
        grid = (height // patch, width // patch)
        self._stream = Stream(self._network, self.preset, grid, self._choice, self.precision)
        waiting, self._waiting = self._waiting, []
        return self._advance(waiting)

    def stream(self, frames: Iterable[Frame]) -> Iterator[FrameResult]:
        """Results of all frames, as they come."""
        for frame in frames:
            yield from self.push(frame)
        yield from self.finish()

    def _plan(self, frame: Frame) -> ImageTransform:
        height, width = frame.rgb.shape[:2]
        if self._transform is None:
            self._transform = plan_image((width, height), self.preset.image, self.preset.network.patch_size)
        expected = self._transform.source_size
        if expected != (width, height):
            raise InputError(
                f"frame {frame.index} is {width}x{height}, but the first one was {expected[0]}x{expected[1]}"
            )
        return self._transform

    def _advance(self, frames: list[PreparedFrame]) -> list[FrameResult]:
        assert self._stream is not None
        # Bytes are sent to the device, and made numbers there.
        pixels = torch.from_numpy(np.stack([frame.rgb for frame in frames])).to(self._network.image_mean.device)
        images = pixels.permute(0, 3, 1, 2).float() / 255
        prediction, decision = self._stream.step(images)
        return _to_results(frames, prediction, decision)


def _to_results(
    frames: list[PreparedFrame],
    prediction: Prediction,
    decision: Decision,
) -> list[FrameResult]:
    pose = prediction.pose[-1, 0].double().cpu()
    depth, confidence = prediction.depth[0].cpu().numpy(), prediction.confidence[0].cpu().numpy()
    T_world_camera = pose_to_matrix(pose).numpy()
    left, top, crop_width, crop_height = frames[0].transform.crop
    # The field of view is the crop's, whatever the network's pixels were.
    fx, fy = focal_lengths(pose, 1, 1)
    return [
        FrameResult(
            index=frame.index,
            timestamp=frame.timestamp,
            T_world_camera=T_world_camera[i],
            intrinsics=Intrinsics(
                fx=float(fx[i]) * crop_width,
                fy=float(fy[i]) * crop_height,
                cx=left + crop_width / 2,
                cy=top + crop_height / 2,
            ),
            depth=depth[i],
            confidence=confidence[i],
            rgb=frame.rgb,
            transform=frame.transform,
            is_keyframe=decision.is_keyframe,
            flow=decision.flow,
        )
        for i, frame in enumerate(frames)
    ]


def load_engine(
    preset: str = EMBEDDED_PRESET,
    weights: Path | None = None,
    device: str = "auto",
    attention: AttentionChoice = "auto",
    overrides: Mapping[str, Any] | None = None,
) -> Engine:
    """An engine with the embedded weights, or with those of a file.

    Args:
        preset: name or TOML file; see `load_preset`, also for ``overrides``.
        weights: a .safetensors file that fits the preset, under our names or published ones.
        device: ``auto``, ``cuda`` or ``cpu``.
        attention: ``auto``, ``flashinfer`` or ``sdpa``.

    Raises:
        ConfigError, WeightsError, ResourceError: see their messages.
    """
    chosen = load_preset(preset, overrides)
    if weights is None:
        if chosen.network != load_preset(EMBEDDED_PRESET).network:
            raise WeightsError(f"preset {chosen.name} has no embedded weights: give a file with --weights")
        weights = EMBEDDED_WEIGHTS
    target = _choose_device(device)
    network = load_network(weights, chosen.network)
    precision = fast_precision(target)
    if precision == "bf16" and target.type == "cpu":
        network.store_matrices_in_half()
    logger.info("loaded %s on %s, %s", weights, target, precision)
    return Engine(network.to(target), chosen, file_sha256(weights), attention, precision)


def plain_precision(device: torch.device) -> Precision:
    """bf16 on a GPU, fp32 on any CPU."""
    return "bf16" if device.type == "cuda" else "fp32"


def fast_precision(device: torch.device) -> Precision:
    """bf16 also on a CPU that has instructions for it; without them it would be slower than fp32."""
    if device.type == "cpu" and CPU_INFO.is_file() and CPU_FLAG in CPU_INFO.read_text().split():
        return "bf16"
    return plain_precision(device)


def _choose_device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ResourceError("no CUDA device is available: use --device cpu")
    if device not in ("cuda", "cpu"):
        raise ResourceError(f"unknown device {device!r}: use auto, cuda or cpu")
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)


def _available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return 2**62  # no way to tell: let the allocator decide
