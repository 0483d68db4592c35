"""Odometry of one frame as few Triton kernels, for inference on a GPU: same results as the plain functions."""
