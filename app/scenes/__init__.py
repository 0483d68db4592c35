"""Procedural scenes with exact depth, poses and intrinsics."""

from .generator import ClipBatch, SceneGenerator

__all__ = ["ClipBatch", "SceneGenerator"]
