"""Inference: frames in, results out. The only package of ``app`` that uses ``models`` and ``cache`` at run time."""

from typing import Any

__all__ = ["Engine", "load_engine"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use, so that modules without torch can be imported alone."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stream_recon.app.engine import engine

    return getattr(engine, name)
