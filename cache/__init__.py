"""Paged KV cache of a stream and the attention kernels that read it."""
