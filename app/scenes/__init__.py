"""Procedural scenes with exact depth, poses and intrinsics."""
