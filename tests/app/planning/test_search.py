import dataclasses
import re
from functools import cache

import pytest

from stream_recon.app.planning.budget import H200, run_memory
from stream_recon.app.planning.search import PlannedRun, search_configurations
from stream_recon.cache.cache_dtypes import CACHE_CHOICES
from stream_recon.configs.errors import ConfigError, ResourceError
from stream_recon.configs.schema import CacheChoice, Preset, load_preset, parse_size
from tests.networks import tiny_preset

SOURCE = (640, 480)
SMALL, TINY = load_preset("small"), tiny_preset()
BOTH = [("tiny", TINY), ("small", SMALL)]


@cache
def full_total() -> int:
    return run_memory(SMALL, (12, 16)).total


def found(
    budget: int, presets: list[tuple[str, Preset]] = BOTH, caches: tuple[CacheChoice, ...] = CACHE_CHOICES
) -> list[PlannedRun]:
    return search_configurations(presets, SOURCE, budget, H200, caches)


def least() -> int:
    with pytest.raises(ResourceError, match="needs") as error:
        found(1)
    match = re.search(r"needs (\d+\.\d+) GB", str(error.value))
    assert match
    return int(float(match[1]) * 1e9)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("24G", 24 * 10**9), ("8GiB", 2**33), ("8000MB", 8 * 10**9), (" 7.5 gb", 7_500_000_000)],
)
def test_sizes_of_memory(text: str, size: int) -> None:
    assert parse_size(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "8", "GB", "8 apples", "-8GB", "8GBB", "1e9GB", "8KB"])
def test_no_sizes_of_memory(text: str) -> None:
    with pytest.raises(ConfigError, match="--memory must be a size such as 8GB"):
        parse_size(text, "--memory")


@pytest.mark.slow
def test_with_enough_memory_the_larger_preset_stays_as_it_is() -> None:
    first, *others = found(2 * full_total())
    assert (first.configuration.base, first.configuration.preset, first.configuration.image_size) == (
        "small",
        SMALL,
        (224, 168),
    )
    assert [choice.configuration.base for choice in others].count("tiny") == 1
    assert (
        len(
            {
                choice.configuration.image_size
                for choice in found(2 * full_total())
                if choice.configuration.base == "small"
            }
        )
        > 2
    )


@pytest.mark.slow
def test_the_window_shrinks_before_the_image_down_to_a_quarter() -> None:
    for budget in range(full_total() - 1, full_total() - 30_000_000, -2_000_000):
        best = found(budget, [("small", SMALL)])[0].configuration
        stream = best.preset.stream
        full = SMALL.stream
        assert stream.special_budget == full.special_budget * stream.window // full.window
        assert stream.window >= full.window / 4 and (best.image_size == (224, 168) or stream.window < full.window)


@pytest.mark.slow
def test_more_memory_never_gives_a_worse_choice_and_each_fits() -> None:
    rank: tuple[float, ...] = ()
    sizes = set()
    for budget in range(least(), full_total() + 4_000_000, 4_000_000):
        listed = found(budget)
        assert all(choice.memory.total <= budget and choice.seconds > 0 for choice in listed)
        assert [choice.configuration.rank for choice in listed] == sorted(
            (c.configuration.rank for c in listed), reverse=True
        )
        assert listed[0].configuration.rank >= rank
        rank = listed[0].configuration.rank
        sizes.add(
            (
                listed[0].configuration.base,
                listed[0].configuration.image_size,
                listed[0].configuration.preset.stream.window,
            )
        )
    assert len(sizes) > 3


@pytest.mark.slow
def test_a_smaller_cache_element_is_taken_only_where_it_gains() -> None:
    assert found(full_total())[0].configuration.cache == "full"
    tight = found(full_total() - 1)[0].configuration
    assert (tight.cache, tight.preset) == ("fp8", SMALL)


@pytest.mark.slow
def test_a_changed_preset_has_the_shape_that_was_planned() -> None:
    preset = dataclasses.replace(SMALL, image=dataclasses.replace(SMALL.image, max_side=200))
    for choice in found(2 * full_total(), [("own", preset)]):
        assert max(choice.configuration.image_size) <= choice.configuration.preset.image.max_side
        rows, columns = choice.configuration.grid
        assert rows * columns <= choice.configuration.preset.image.max_patches
