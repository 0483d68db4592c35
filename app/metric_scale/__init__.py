"""Metric scale of a result: markers, distances, heights and GPS tracks."""
