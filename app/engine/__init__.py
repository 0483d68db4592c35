"""Frames in, results out: the network, its caches and keyframes. The one door to ``models`` and ``cache``."""

from stream_recon.app.engine.engine import Engine, load_engine

__all__ = ["Engine", "load_engine"]
