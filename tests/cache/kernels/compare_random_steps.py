"""Random steps of several streams by the interpreted kernels against lists of the frames that are kept."""

from tests.cache.random_steps import RandomSteps, Sizes, stream_config

# Small, as the interpreter takes milliseconds for each program.
RandomSteps(Sizes(1, 1, 6, (2, 3), batch_slots=2, stream=stream_config(2, 2, 6, 2)), seed=0, by_kernels=True).run(14)
RandomSteps(Sizes(1, 1, 3, (1, 13), batch_slots=2, stream=stream_config(1, 1, 1, 1)), seed=1, by_kernels=True).run(14)
RandomSteps(Sizes(2, 1, 3, (3, 5), batch_slots=2, stream=stream_config(2, 2, 6, 2, 1)), seed=2, by_kernels=True).run(14)
