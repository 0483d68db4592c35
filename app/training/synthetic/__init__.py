"""Procedural scenes with exact depth, poses and intrinsics."""

from stream_recon.app.training.synthetic.generator import ClipBatch, SceneGenerator, SceneShares

__all__ = ["ClipBatch", "SceneGenerator", "SceneShares"]
