"""Procedural scenes with exact depth, poses and intrinsics."""

from training.synthetic.generator import ClipBatch, SceneGenerator, SceneShares

__all__ = ["ClipBatch", "SceneGenerator", "SceneShares"]
