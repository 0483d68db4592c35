from dataclasses import fields
from typing import cast

import pytest
import torch

from tests.scripts.training.planes import PlaneScenes
from training.clips import GROUP_STEPS, ClipSupply
from training.schedule import ClipShape, StepPlan, Visibility
from training.synthetic import ClipBatch, SceneGenerator

CPU = torch.device("cpu")
PATCH = 14
WIDE = StepPlan(ClipShape(3, 2, 3), 2, Visibility(1, 2, 4))
TALL = StepPlan(ClipShape(2, 3, 2), 3, Visibility(1, 2, 4))


def supply(device: torch.device = CPU, is_parallel: bool = True) -> ClipSupply:
    scenes = PlaneScenes(device, 5) if device.type == "cpu" else SceneGenerator(device, 5)
    return ClipSupply(cast(SceneGenerator, scenes), PATCH, device, is_parallel)


def same(a: ClipBatch, b: ClipBatch) -> bool:
    return all(torch.equal(getattr(a, field.name), getattr(b, field.name)) for field in fields(ClipBatch))


def test_a_group_hands_out_each_of_its_clips_once() -> None:
    clips = supply()
    clips.begin(WIDE, TALL)
    taken = [clips.take(WIDE) for _ in range(GROUP_STEPS)]
    whole = PlaneScenes(CPU, 5).render(WIDE.clips * GROUP_STEPS, 3, 2 * PATCH, 3 * PATCH)
    assert all(batch.images.shape == (2, 3, 3, 28, 42) for batch in taken)
    joined = torch.cat([batch.depth for batch in taken]).flatten(1).sum(1).sort().values
    assert torch.equal(joined, whole.depth.flatten(1).sum(1).sort().values)


def test_without_a_beginning_clips_come_all_the_same() -> None:
    announced, asked = supply(), supply()
    for plan, following in ((WIDE, TALL), (TALL, WIDE), (WIDE, WIDE)):
        announced.begin(plan, following)
        for _ in range(GROUP_STEPS):
            assert same(announced.take(plan), asked.take(plan))


def test_another_shape_than_announced_is_rendered_at_once() -> None:
    clips = supply()
    clips.begin(WIDE, WIDE)
    assert clips.take(TALL).images.shape == (3, 2, 3, 42, 28)
    assert clips.take(WIDE).images.shape == (2, 3, 3, 28, 42)


@pytest.mark.gpu
def test_rendering_beside_a_busy_stream_spoils_no_clips() -> None:
    cuda = torch.device("cuda", torch.cuda.current_device())
    parallel, alone = supply(cuda), supply(cuda, is_parallel=False)
    busy = torch.randn(4096, 4096, device=cuda)
    sums = []
    for clips in (parallel, alone):
        sums_of_batches = []
        for _ in range(6):
            clips.begin(WIDE, WIDE)
            for _ in range(GROUP_STEPS):
                batch = clips.take(WIDE)
                for _ in range(20):  # the host is far ahead when the clips are read
                    busy = (busy @ busy).clamp(-1, 1)
                sums_of_batches.append(torch.stack([batch.images.double().sum(), batch.depth.double().sum()]))
                del batch
        sums.append(torch.stack(sums_of_batches))
        torch.cuda.synchronize()
    assert torch.equal(*sums)
