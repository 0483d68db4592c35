"""The network, its checkpoints and the embedded weights."""
