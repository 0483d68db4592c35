"""Geometry while the stream runs: causal poses against a map of keyframes, and a map that corrects itself."""
