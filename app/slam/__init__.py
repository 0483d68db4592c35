"""Geometric back end: tracking and bundle adjustment during the stream, refinement of a finished result."""
