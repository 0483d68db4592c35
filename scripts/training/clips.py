"""Clips for the next steps, rendered on a CUDA stream in parallel with training."""

from contextlib import nullcontext
from dataclasses import dataclass, fields

import torch

from training.schedule import StepPlan
from training.synthetic import ClipBatch, SceneGenerator

GROUP_STEPS = 4
"""Steps that share one rendering, of one shape: a scene takes hundreds of small kernels, for any number of clips."""

_Key = tuple[int, int, int, int]


@dataclass
class _ClipGroup:
    key: _Key
    parts: list[ClipBatch]
    ready: torch.cuda.Event | None


class ClipSupply:
    """Supplies clips, step by step, from groups that are rendered at once; on a GPU the next group is rendered ahead.

    The two streams synchronise in three ways. The rendering stream waits once for the constructor's caller, which made
    the generator's tables. Training waits for a group's event before it reads the group. `record_stream` keeps a
    group's memory, which belongs to the rendering stream's pool, until the training's kernels have read it; the host
    drops its references steps earlier.

    Launching blocks when the queue of a stream (about a thousand kernels) is full, and training must not starve. So a
    group is launched before any step of the group ahead of it, by the training's own thread; another one would
    compete for the interpreter. Its about 600 kernels fit in the rendering stream's queue, which is empty by then.
    Every twelfth group builds new worlds, in 8000 more small kernels.

    Args:
        patch_size: pixels along a side of a patch.
        is_parallel: render on a CUDA stream of its own; on a CPU without effect.
    """

    def __init__(
        self, generator: SceneGenerator, patch_size: int, device: torch.device, is_parallel: bool = True
    ) -> None:
        self._generator = generator
        self._patch = patch_size
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if is_parallel and device.type == "cuda":
            self._stream = torch.cuda.Stream(device)
            self._stream.wait_stream(torch.cuda.current_stream(device))
        self._current: _ClipGroup | None = None
        self._ahead: _ClipGroup | None = None

    def begin(self, plan: StepPlan, following: StepPlan) -> None:
        """Start a group of steps of ``plan``'s shape, and the rendering of the group of ``following`` behind it.

        What is left of the last group is dropped. On a CPU, where nothing runs in parallel, the following group is
        rendered when it is needed; the clips are the same.
        """
        self._current = self._group(self._key(plan))
        if self._stream is not None:
            self._ahead = self._render(self._key(following))

    def take(self, plan: StepPlan) -> ClipBatch:
        """Clips for one step, safe to use on the caller's stream; of a new group where none of the shape is left."""
        key = self._key(plan)
        if self._current is None or self._current.key != key or not self._current.parts:
            self._current = self._group(key)
        if self._current.ready is not None:
            torch.cuda.current_stream(self._device).wait_event(self._current.ready)
        return self._current.parts.pop()

    def _key(self, plan: StepPlan) -> _Key:
        shape = plan.shape
        return plan.clips, shape.frames, shape.rows * self._patch, shape.columns * self._patch

    def _group(self, key: _Key) -> _ClipGroup:
        ahead, self._ahead = self._ahead, None
        return ahead if ahead is not None and ahead.key == key else self._render(key)

    def _render(self, key: _Key) -> _ClipGroup:
        clips, frames, height, width = key
        stream = self._stream
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            batch = self._generator.render(clips * GROUP_STEPS, frames, height, width)
            ready = stream.record_event() if stream is not None else None
        tensors = [getattr(batch, field.name) for field in fields(batch)]
        if stream is not None:
            for tensor in tensors:
                tensor.record_stream(torch.cuda.current_stream(self._device))
        # Strided: a batch is sorted by kind of scene.
        parts = [ClipBatch(*(tensor[i::GROUP_STEPS] for tensor in tensors)) for i in range(GROUP_STEPS)]
        return _ClipGroup(key, parts, ready)
