import pytest

from tests.cache.random_steps import SIZES, RandomSteps, Sizes


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", range(3))
def test_random_steps_of_several_streams_give_what_lists_of_kept_frames_give(sizes: Sizes, seed: int) -> None:
    RandomSteps(sizes, seed, by_kernels=False).run(150)
