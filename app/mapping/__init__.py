"""Geometry over the network's results: features, pairs, tracks, adjustment, and the judgement of what came out."""
