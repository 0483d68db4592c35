"""Refinement of a finished result: matching, initialization, bundle adjustment, depth correction."""
