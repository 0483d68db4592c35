"""Gaussian splats trained from a result: scene, losses, densification, free space, files and views."""
