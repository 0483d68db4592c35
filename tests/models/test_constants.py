"""Constants of an image shape are made once and stay: captured graphs read them at their addresses."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stream_recon.app.engine.stream import StepOptions, StreamRunner
from tests.networks import tiny_network, tiny_preset

SHAPE = (2, 3)
"""Patch rows and columns."""
OTHERS = [(1, columns) for columns in range(1, 12)]


class OperationCounter(TorchDispatchMode):
    """Counts torch operations by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.__name__] += 1
        return func(*args, **(kwargs or {}))


def operations(shapes: Iterable[tuple[int, int]]) -> list[Counter[str]]:
    """Operations of a step after the first one, for each shape in turn, by one network."""
    preset = tiny_preset(keyframe_matcher=True)
    network, side = tiny_network(preset), preset.network.patch_size
    counted = []
    for rows, columns in shapes:
        stream = StreamRunner(network, preset, (rows, columns), StepOptions("sdpa", "fp32"))
        images = torch.rand(5, 3, rows * side, columns * side, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            stream.step(images[:3])
            stream.step(images[3:4])
            with OperationCounter() as counter:
                stream.step(images[4:5])
        counted.append(counter.counts)
    return counted


def test_a_step_at_a_known_shape_makes_no_constant_again() -> None:
    first, *_, again = operations([SHAPE, *OTHERS, SHAPE])
    assert again == first


def test_positions_follow_the_encoders_table() -> None:
    """A table that is replaced, as by loading weights, is used from the next image on."""
    preset = tiny_preset()
    network = tiny_network(preset)
    images = torch.rand(3, 3, 28, 42, generator=torch.Generator().manual_seed(0))
    before = StreamRunner(network, preset, SHAPE, StepOptions("sdpa", "fp32")).step(images)[0].depth
    table = network.encoder.pos_embed
    network.encoder.pos_embed = torch.nn.Parameter(table * 2 + 1, requires_grad=False)
    after = StreamRunner(network, preset, SHAPE, StepOptions("sdpa", "fp32")).step(images)[0].depth
    assert not torch.equal(before, after)
