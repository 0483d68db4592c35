"""Memory that a function allocates."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def allocated_bytes(make: Callable[[], object]) -> int:
    """Bytes of the tensors in host memory that ``make`` returns, in whatever attributes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = make()
    total = sum(event.self_cpu_memory_usage for event in profiler.key_averages())
    del kept
    return int(total)
