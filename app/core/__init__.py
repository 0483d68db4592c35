"""Shared types, transforms, and operations on depth and points. Imports no other folder of ``app``."""
