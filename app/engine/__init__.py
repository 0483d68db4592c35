"""Frames in, results out: the network, its caches and keyframes. The one door to ``models`` and ``cache``."""

from typing import Any

__all__ = ["Engine", "load_engine"]


def __getattr__(name: str) -> Any:
    """What is meant for others, without torch for those who look for something smaller in here."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stream_recon.app.engine import engine

    return getattr(engine, name)
