"""The engine: frames in, results out, one at a time. It alone knows the network and the caches."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stream_recon.app.engine.anchor import Anchor
from stream_recon.app.engine.keyframes import Decision
from stream_recon.app.engine.precision import Precision, fast_precision, plain_precision
from stream_recon.app.engine.stream import Stream
from stream_recon.app.results import Frame, FrameResult, ImageTransform, Intrinsics, PreparedFrame, Seam
from stream_recon.app.video.preprocess import plan_image, prepare
from stream_recon.cache.kernels.triton_support import runs_triton
from stream_recon.cache.kinds import cache_kind
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import AttentionChoice, CacheChoice, Preset, load_preset
from stream_recon.models.embedded import EMBEDDED_PRESET, file_sha256, weights_file
from stream_recon.models.network import Prediction, StreamingNetwork
from stream_recon.models.pose import focal_length, pose_to_matrix
from stream_recon.models.weights import load_network

logger = logging.getLogger(__name__)


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
        cache: CacheChoice = "full",
    ) -> None:
        """``precision``, ``cache``: as `Stream` has them."""
        self.preset = preset
        self.weights_sha256 = weights_sha256
        self.device = str(network.image_mean.device)
        self._network = network
        self._choice = attention
        self.cache = cache
        self.precision: Precision = precision or plain_precision(network.image_mean.device)
        self._stream: Stream | None = None
        self.reset()

    @property
    def attention(self) -> str:
        """The attention backend in use; ``auto`` until the first frame has been seen."""
        return self._stream.attention if self._stream else self._choice

    @property
    def threads(self) -> int:
        """Threads of the CPU that the network works with, of all engines of this process; 0 on a GPU."""
        return torch.get_num_threads() if self._network.image_mean.device.type == "cpu" else 0

    @threads.setter
    def threads(self, count: int) -> None:
        torch.set_num_threads(count)

    def reset(self) -> None:
        """Forget the frames; the next one begins another run."""
        self._waiting: list[PreparedFrame] = []
        self._gathers = True
        """The next frames are scale frames of a stream to come."""
        self._stretch = 0
        self.streams = 0
        """So many has the run been; see `Anchor`."""
        self._transform: ImageTransform | None = None
        self._anchor = Anchor(self.preset.stream.anchor_overlap, self.preset.stream.scale_frames)

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
        if frame.stretch != self._stretch:
            return [*self._end_stretch(frame.stretch), *self.push(frame)]
        if self._gathers:
            self._waiting.append(frame)
            return [] if len(self._waiting) < self.preset.stream.scale_frames else self.finish()
        if self._anchor.is_lost:
            self._anchor.renew(self._begin(self._anchor.frames))
        return self._anchor.place([frame], self._advance([frame]))

    def finish(self) -> list[FrameResult]:
        """Results of frames still waiting, when a stream ends before its scale frames are complete."""
        if not self._waiting:
            return []
        waiting, self._waiting, self._gathers = self._waiting, [], False
        return self._anchor.place(waiting, self._begin(waiting))

    def resume(self, pairs: Sequence[tuple[PreparedFrame, FrameResult]]) -> Seam:
        """Go on where an earlier run was cut off, in its world: before the first frame.

        Args:
            pairs: its latest keyframes, as many as there are scale frames or fewer, with their results. They are run
                again as scale frames of a new stream, which is laid onto them; they give no results.

        Raises:
            ResourceError: see `push`.
        """
        frames = [frame for frame, _ in pairs]
        self._transform, self._stretch, self._gathers = frames[0].transform, frames[-1].stretch, False
        self._anchor.remember(pairs)
        results = self._begin(frames)
        self._anchor.renew(results)
        return self._anchor.seam(results)

    def _end_stretch(self, following: int) -> list[FrameResult]:
        """Results of frames still waiting; what comes next is a stream without any tie to what came before."""
        results = self.finish()
        self._anchor.part()
        self._gathers, self._stretch = True, following
        return results

    def stream(self, frames: Iterable[Frame]) -> Iterator[FrameResult]:
        """Results of all frames, as they come."""
        for frame in frames:
            yield from self.push(frame)
        yield from self.finish()

    def _plan(self, frame: Frame) -> ImageTransform:
        height, width = frame.rgb.shape[:2]
        if self._transform is None:
            self._transform = plan_image((width, height), self.preset.image, self.preset.network.patch_size)
        return self._transform

    def _begin(self, frames: list[PreparedFrame]) -> list[FrameResult]:
        """Results of the scale frames of a new stream, in its own world."""
        patch = self.preset.network.patch_size
        width, height = frames[0].transform.network_size
        grid = (height // patch, width // patch)
        if self._stream is not None and self._stream.grid == grid:
            self._stream.reset()
        else:
            # There need not be memory for two.
            self._stream = None
            self._stream = Stream(self._network, self.preset, grid, self._choice, self.precision, cache=self.cache)
        self.streams += 1
        return self._advance(frames)

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
    pose, depth, confidence = _to_host(prediction.pose[-1, 0].double(), prediction.depth[0], prediction.confidence[0])
    T_world_camera = pose_to_matrix(pose).numpy()
    left, top, crop_width, crop_height = frames[0].transform.crop
    # The fields of view are the crop's, whatever the network's pixels were. The source's pixels are taken to be square,
    # so that both axes estimate one focal length; apart, they would stretch the scene.
    focal = focal_length(pose, crop_height, crop_width)
    return [
        FrameResult(
            index=frame.index,
            timestamp=frame.timestamp,
            T_world_camera=T_world_camera[i],
            intrinsics=Intrinsics(
                fx=float(focal[i]),
                fy=float(focal[i]),
                cx=left + crop_width / 2,
                cy=top + crop_height / 2,
            ),
            depth=depth[i].numpy(),
            confidence=confidence[i].numpy(),
            rgb=frame.rgb,
            transform=frame.transform,
            is_keyframe=decision.is_keyframe,
            flow=decision.flow,
            stretch=frame.stretch,
        )
        for i, frame in enumerate(frames)
    ]


def _to_host(*tensors: Tensor) -> list[Tensor]:
    """Copies in host memory; from a GPU through pinned memory and with one wait for all."""
    copies = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
    if tensors[0].is_cuda:
        torch.cuda.current_stream().synchronize()
    return copies


def load_engine(
    preset: str = EMBEDDED_PRESET,
    weights: Path | None = None,
    device: str = "auto",
    attention: AttentionChoice = "auto",
    overrides: Mapping[str, Any] | None = None,
    cache: CacheChoice = "full",
    weights_sha256: str | None = None,
) -> Engine:
    """An engine with the embedded weights, or with those of a file.

    Args:
        preset: name or TOML file; see `load_preset`, also for ``overrides``.
        weights: a .safetensors file that fits the preset, under our names or published ones.
        device: ``auto``, ``cuda`` or ``cpu``.
        attention: ``auto``, the fastest kernel of this machine, or one by name; see `choose_attention`.
        cache: ``full``, or ``fp8`` for about half the cache's memory; see `CacheKind`.
        weights_sha256: of the file, where it is known already.

    Raises:
        ConfigError, WeightsError, ResourceError: see their messages.
    """
    chosen = load_preset(preset, overrides)
    file = weights_file(chosen, weights)
    target = _choose_device(device)
    cache_kind(cache).check(attention, target)
    precision = fast_precision(target)
    # Reading gigabytes twice takes as long as loading them; side by side both are done in the time of one.
    with ThreadPoolExecutor(1, "digest") as pool:
        digest = pool.submit(lambda: weights_sha256 or file_sha256(file))
        network = load_network(file, chosen.network)
        if precision == "bf16":
            prepare_network(network, target)
        network = network.to(target)
    logger.info("loaded %s on %s, %s", file, target, precision)
    return Engine(network, chosen, digest.result(), attention, precision, cache)


def prepare_network(network: StreamingNetwork, device: torch.device) -> None:
    """Lay weights out for inference in bf16 on ``device``; before they go there, so that fp32 ones never take room."""
    if device.type == "cuda" and runs_triton():
        network.fuse_for_gpu()
    else:
        network.store_matrices_in_half()


def _choose_device(device: str) -> torch.device:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ResourceError("no CUDA device is available: use --device cpu")
    if device not in ("cuda", "cpu"):
        raise ResourceError(f"unknown device {device!r}: use auto, cuda or cpu")
    return torch.device("cuda", torch.cuda.current_device()) if device == "cuda" else torch.device(device)
