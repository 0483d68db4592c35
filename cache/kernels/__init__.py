"""Attention and store kernels for a GPU, which of them a stream uses, and how fast they are here."""
