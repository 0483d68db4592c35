"""The caches against a dense reference that has no cache at all."""

import pytest
import torch

from stream_recon.cache.attention import TorchAttention
from stream_recon.cache.block_manager import FrameTable
from stream_recon.cache.frame_cache import FrameCache, FrameCacheSchema
from stream_recon.cache.stream_cache import StreamCache, StreamSchema
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import Preset
from stream_recon.models.network import StreamingNetwork
from stream_recon.models.prediction import NetworkFeatures, Prediction
from tests.cache.allocation import allocated_bytes
from tests.networks import GRID, random_images, tiny_network, tiny_preset
from training.mask import ClipLayout, TrainingMask

CPU = torch.device("cpu")


def cache_of(preset: Preset) -> StreamCache:
    schema = StreamSchema.from_config(preset.network, preset.stream, GRID, torch.float32)
    return StreamCache(schema, preset.stream, TorchAttention(), CPU)


Heads = tuple[Prediction, NetworkFeatures]


def dense(network: StreamingNetwork, preset: Preset, images: torch.Tensor, window: int) -> Heads:
    special, stream = preset.network.special_tokens, preset.stream
    clip = ClipLayout(len(images), special + GRID[0] * GRID[1], special, stream.scale_frames, window)
    return network.predict(images[None], TrainingMask(clip, stream.camera_window, CPU))


def differences(streamed: list[Heads], reference: Heads) -> dict[str, float]:
    """The largest difference of each output, in that output's standard deviations."""

    def outputs(heads: Heads) -> dict[str, torch.Tensor]:
        prediction, features = heads
        return {"pose": prediction.head_pose[-1], "maps": prediction.head_maps, "tokens": features.tokens}

    result = {}
    for name, expected in outputs(reference).items():
        joined = torch.cat([outputs(heads)[name] for heads in streamed], dim=1)
        result[name] = float((joined - expected).abs().max() / expected.std())
    return result


def assert_same(streamed: list[Heads], reference: Heads) -> None:
    assert max(differences(streamed, reference).values()) < 1e-4


@pytest.mark.parametrize("evict_first", [False, True])
def test_a_stream_gives_what_dense_attention_gives(evict_first: bool) -> None:
    preset = tiny_preset()
    network, images, kv_cache = tiny_network(preset), random_images(14), cache_of(preset)
    scale = preset.stream.scale_frames
    streamed = []
    for batch in (images[:scale], *images[scale:].split(1)):
        kv_cache.begin(len(batch), evict_first=evict_first and kv_cache.frames > 0)
        streamed.append(network.predict(batch[None], kv_cache))
        kv_cache.commit()
    window = preset.stream.window - (1 if evict_first else 0)
    assert_same(streamed, dense(network, preset, images, window))


def test_the_reference_depends_on_the_window() -> None:
    preset = tiny_preset()
    network, images = tiny_network(preset), random_images(14)
    one, other = (dense(network, preset, images, window) for window in (3, 4))
    assert min(differences([one], other).values()) > 1e-3


def test_rejected_frames_change_no_cache() -> None:
    preset = tiny_preset()
    network, images, kv_cache = tiny_network(preset), random_images(14), cache_of(preset)
    rejected_images = random_images(14, seed=5)
    scale = preset.stream.scale_frames
    streamed = []
    for index, batch in enumerate((images[:scale], *images[scale:].split(1))):
        for evict_first in (False, True)[: 2 if index else 0]:
            kv_cache.begin(1, evict_first=evict_first)
            network.predict(rejected_images[None, index : index + 1], kv_cache)
            kv_cache.rollback()
        kv_cache.begin(len(batch))
        streamed.append(network.predict(batch[None], kv_cache))
        kv_cache.commit()
    assert kv_cache.frames == len(images)
    assert_same(streamed, dense(network, preset, images, preset.stream.window))


def test_a_stream_outlives_every_budget() -> None:
    preset = tiny_preset(special_budget=8, camera_window=3, window=2)
    network, kv_cache = tiny_network(preset), cache_of(preset)
    for batch in (random_images(3), *random_images(60, seed=3).split(1)):
        kv_cache.begin(len(batch))
        prediction, _ = network.predict(batch[None], kv_cache)
        kv_cache.commit()
        assert prediction.head_maps.isfinite().all()
    assert kv_cache.frames == 63


def test_compressed_layers_see_the_first_frames_whole_and_later_ones_in_blocks() -> None:
    """What kept frames are compressed to is compared with lists of frames in `random_steps`."""
    preset = tiny_preset()
    compressed = tiny_preset(compressed_from=1)
    network, images = tiny_network(preset), random_images(6)
    steps = []
    for kv_cache in (cache_of(preset), cache_of(compressed)):
        heads = []
        for batch in (images[:3], *images[3:].split(1)):
            kv_cache.begin(len(batch))
            heads.append(network.predict(batch[None], kv_cache))
            kv_cache.commit()
        steps.append(heads)
    assert max(differences(steps[1][:1], steps[0][0]).values()) < 1e-4
    assert differences(steps[1][1:2], steps[0][1])["tokens"] > 1e-3


def test_a_cache_that_does_not_fit_is_an_error_with_numbers() -> None:
    preset = tiny_preset()
    schema = StreamSchema.from_config(preset.network, preset.stream, (2, 3), torch.float32)
    schema.check_fits(schema.bytes)
    with pytest.raises(ResourceError, match=r"needs .* MiB .* are free"):
        schema.check_fits(schema.bytes - 1)


@pytest.mark.parametrize("compressed_from", [None, 1])
def test_the_schema_counts_the_bytes_that_are_allocated(compressed_from: int | None) -> None:
    preset = tiny_preset(compressed_from=compressed_from)
    schema = StreamSchema.from_config(preset.network, preset.stream, GRID, torch.float32)
    assert allocated_bytes(lambda: cache_of(preset)) == pytest.approx(schema.bytes, rel=0.01)


@pytest.mark.parametrize("end", ["commit", "rollback", "reset"])
def test_a_step_that_has_ended_takes_no_more(end: str) -> None:
    preset = tiny_preset()
    schema = FrameCacheSchema.from_config(preset.network, preset.stream, GRID[0] * GRID[1])
    cache = FrameCache(schema, TorchAttention(), FrameCache.allocate_pools(schema, CPU, torch.float32))
    table = FrameTable(preset.stream.scale_frames, preset.stream.window, preset.stream.special_budget)
    cache.begin(table.begin(1))
    rows = torch.ones(schema.frame_tokens, schema.heads, schema.head_dim)
    cache.attend(0, rows, rows, rows)
    cache.commit(table.commit()) if end == "commit" else getattr(cache, end)()
    with pytest.raises(AssertionError, match="outside a step"):
        cache.attend(0, rows, rows, rows)
