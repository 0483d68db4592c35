"""Frames in, results out: the network, its caches and keyframes. The one door to ``models`` and ``cache``."""
