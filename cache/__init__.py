"""The two-stream key/value cache and the attention kernels that read it."""
