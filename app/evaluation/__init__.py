"""Results measured against truth, beside simple baselines."""
