"""One stream through a network: its KV cache, its keyframe policy, and on a GPU its captured step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from stream_recon.app.engine.device_transfer import Precision, StepGraph, computes_in_half, plain_precision
from stream_recon.app.engine.keyframes import Decision, KeyframePolicy, flow_since, keyframe_policy
from stream_recon.cache.attention import AttentionSizes
from stream_recon.cache.cache_dtypes import INT8_POLICY, CacheDtypePolicy, cache_policy
from stream_recon.cache.int8_frame_cache import int8_attention_is_faster
from stream_recon.cache.kernels.choose import runs_triton
from stream_recon.cache.kernels.compilation import compile_kernels
from stream_recon.cache.step_metadata import StepMetadata
from stream_recon.cache.stream_cache import StreamCache, StreamSchema
from stream_recon.configs.schema import AttentionChoice, CacheChoice, NetworkConfig, Preset, StreamConfig
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.odometry.odometry import OdometryState
from stream_recon.models.prediction import Prediction

SHORT_TOKENS = 4096
"""Most tokens of a first step that is captured. It waits for kernels to start; a longer one gains little from capture,
and its memory would stay allocated."""


@dataclass(frozen=True)
class StepOptions:
    """How a stream's steps run."""

    attention: AttentionChoice = "auto"
    precision: Precision | None = None
    """Of matrix work and caches, `plain_precision` if None; the residual stream is fp32."""
    cache: CacheChoice = "full"
    """Storage of the aggregator's keys and values."""
    keyframes: KeyframePolicy | None = None
    """Decides in place of the preset's policy, in all submaps of one stream."""
    capture: bool = True
    """Replay steps of one frame as a CUDA graph, where possible."""


@dataclass(frozen=True)
class StepOutput:
    """What one step computes, on the device."""

    prediction: Prediction
    state: OdometryState | None
    """Odometry's state if the last frame becomes a keyframe; None without odometry."""
    flow: Tensor
    """`mean_flow` since the last keyframe, a scalar; 0 where the policy does not need it."""


class OdometrySlots:
    """The state after the last keyframe of the stream in each slot.

    A captured step reads these tensors where they are; only keyframes are written to them.
    """

    def __init__(self, network: NetworkConfig, grid: tuple[int, int], slots: int, device: torch.device) -> None:
        """``grid``: patch rows and columns."""
        self.states = OdometryState.zeros(network, grid, slots, device) if network.flow_blocks else None
        """Of all slots, in order; None without odometry."""
        self.head_pose = torch.zeros(slots, 9, device=device) if self.states is None else self.states.last.head_pose
        """[slots, 9]: pose codes of the camera head. Keyframes are chosen by these, so odometry changes no choice."""

    def select(self, slots: Tensor) -> OdometryState | None:
        """The states of these slots, an index on the device."""
        return self.states.select(slots) if self.states is not None else None

    def store(
        self, prediction: Prediction, state: OdometryState | None, rows: Sequence[int], slots: Sequence[int]
    ) -> None:
        """Write what a step ended with, of these clips of the prediction, to their slots."""
        to, source = (torch.tensor(list(x), device=self.head_pose.device) for x in (slots, rows))
        if self.states is not None and state is not None:
            self.states.store(to, state, source)
        else:
            self.head_pose[to] = prediction.head_pose[-1, source, -1]


class StreamRunner:
    """Runs one stream on tensors; the host waits for the device only to learn whether a frame is a keyframe."""

    def __init__(
        self, network: StreamingNetwork, preset: Preset, grid: tuple[int, int], options: StepOptions = StepOptions()
    ) -> None:
        """``grid``: patch rows and columns.

        Raises ResourceError if the caches do not fit in free memory, or cannot run here; ConfigError: see
        `Preset.with_cache`.
        """
        preset = preset.with_cache(options.cache)
        policy = _policy(options, network.image_mean.device)
        policy.check(options.attention, network.image_mean.device)
        self.grid = grid
        self._network = network
        self._config = preset.stream
        self._device = network.image_mean.device
        self._half = computes_in_half(options.precision or plain_precision(self._device), self._device)
        config = preset.network
        schema = stream_schema(preset, grid, self._device, half=self._half, cache=policy)
        schema = replace(schema, max_score=network.aggregator.max_score)
        schema.check_fits(available_memory(self._device))
        on_gpu = self._device.type == "cuda" and self._half and runs_triton()
        metadata = StepMetadata(schema.camera.slots, self._device, 1, schema.max_score) if on_gpu else None
        backend = policy.attention(options.attention, attention_sizes(schema), self._device, metadata)
        self.attention = backend.name
        self.kv_cache = StreamCache(schema, preset.stream, backend, self._device, metadata)
        self._own_policy = options.keyframes
        self._policy = self._own_policy or keyframe_policy(self._config)
        self._last = OdometrySlots(config, grid, 1, self._device)
        self._searches = searches_rotation(self._config, self._device)
        size = (grid[0] * config.patch_size, grid[1] * config.patch_size)
        self._image = torch.zeros(1, 3, *size, device=self._device) if metadata is not None else None
        captured = metadata is not None and backend.capturable and options.capture
        self._graph: StepGraph[StepOutput] | None = StepGraph() if captured else None
        is_short = self._config.scale_frames * schema.frames.frame_tokens <= SHORT_TOKENS
        # FlashInfer's fixed buffers are for one frame.
        captures_first = captured and is_short and backend.name == "triton"
        self._first_graph: StepGraph[StepOutput] | None = StepGraph() if captures_first else None
        self._first_images = torch.zeros(0)
        self._compiled: set[bool] = set()
        """Whether kernels are compiled of first steps (True) and of later ones (False)."""

    def reset(self, min_gap: int = 1) -> None:
        """Drop all frames. Memory, kernels and the captured step serve the next stream of the same grid.

        ``min_gap``: see `keyframe_policy`.
        """
        self.kv_cache.reset()
        self._policy = self._own_policy or keyframe_policy(self._config, min_gap)

    # Not inference mode: position tables that are cached there could not be used for training afterwards.
    @torch.no_grad()
    def step(self, images: Tensor, *, keep: bool = False) -> tuple[Prediction, Decision]:
        """images [S, 3, h, w] in [0, 1]: all scale frames in the first call, one frame in each later one.

        ``keep``: the frame is a keyframe whatever the policy says. A frame that is no keyframe changes no cache, nor
        does an error. On a GPU the prediction's tensors belong to a captured graph: the next step overwrites them.
        """
        first = self.kv_cache.frames == 0
        evict_first = not first and self._policy.evicts_first
        if self._image is not None and first not in self._compiled:
            self._compiled.add(first)
            self._compile(images, evict_first)
        self.kv_cache.begin(len(images), evict_first=evict_first)
        try:
            if first:
                output, decision = self._first(images), Decision(True, None)
            else:
                output = self._run(images)
                decision = self._policy.decide(float(output.flow) if self._policy.needs_flow else None)
                decision = Decision(decision.is_keyframe or keep, decision.flow)
        except BaseException:
            self.kv_cache.rollback()
            raise
        if decision.is_keyframe:
            self.kv_cache.commit()
            self._last.store(output.prediction, output.state, [0], [0])
        else:
            self.kv_cache.rollback()
        return output.prediction, decision

    def _compile(self, images: Tensor, evict_first: bool) -> None:
        """Compile the kernels of a step of such images."""
        self.kv_cache.begin(len(images), evict_first=evict_first)
        compile_kernels(lambda: self._forward(images.to(self._device)))
        self.kv_cache.rollback()

    def _first(self, images: Tensor) -> StepOutput:
        """The step of the scale frames.

        Every stream starts with the same slots, so this step can be captured too if all scale frames are there.
        """
        if self._first_graph is None or len(images) < self._config.scale_frames:
            return self._forward(images.to(self._device))
        if not len(self._first_images):
            self._first_images = torch.zeros_like(images, device=self._device)
        self._first_images.copy_(images, non_blocking=True)
        return self._first_graph.run(partial(self._forward, self._first_images))

    def _run(self, image: Tensor) -> StepOutput:
        if self._image is None:
            return self._forward(image.to(self._device))
        self._image.copy_(image, non_blocking=True)
        body = partial(self._forward, self._image)
        return self._graph.run(body) if self._graph is not None else body()

    def _forward(self, images: Tensor) -> StepOutput:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            last = self._last.states if self.kv_cache.frames else None
            prediction, state = self._network(images[None], self.kv_cache, last, rotation_search=self._searches)
        if not self._policy.needs_flow:
            return StepOutput(prediction, state, torch.zeros((), device=self._device))
        flow = flow_since(prediction, self._last.head_pose, None, by_kernel=self._image is not None)
        return StepOutput(prediction, state, flow[0])


def _policy(options: StepOptions, device: torch.device) -> CacheDtypePolicy:
    """Storage of keys and values: in int8 where a run in int8 has no fast bf16, and attention is faster so."""
    if options.precision != "int8" or options.cache == "fp8" or computes_in_half("int8", device):
        return cache_policy(options.cache)
    return INT8_POLICY if int8_attention_is_faster() else cache_policy("full")


def searches_rotation(config: StreamConfig, device: torch.device) -> bool:
    """Whether odometry searches for large errors of rotation on this device; ``auto``: where it costs little.

    Steps skip the search unless they need it. A captured CUDA graph cannot, and matches every frame twice.
    """
    return device.type != "cuda" if config.rotation_search == "auto" else config.rotation_search


def stream_schema(
    preset: Preset,
    grid: tuple[int, int],
    device: torch.device,
    *,
    half: bool,
    cache: CacheChoice | CacheDtypePolicy = "full",
) -> StreamSchema:
    """Cache sizes of a stream of images with ``grid`` patch rows and columns."""
    dtype = torch.bfloat16 if half else torch.float32
    # The network runs its camera head in fp32 on a CPU.
    camera_dtype = torch.float32 if device.type == "cpu" else dtype
    return StreamSchema.from_config(preset.network, preset.stream, grid, dtype, camera_dtype, cache)


def attention_sizes(schema: StreamSchema) -> AttentionSizes:
    """Shapes of the stream's global attention."""
    frames = schema.frames
    return AttentionSizes(frames.heads, frames.head_dim, frames.special, frames.patches, frames.tokens, schema.dtype)


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on a device."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(free + cached)
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    return 2**62  # unknown: the allocator decides
