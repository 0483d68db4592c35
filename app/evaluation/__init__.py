"""Metrics of results against ground truth, and baselines."""
