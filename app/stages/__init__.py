"""What follows the last frame: refinement, dense depth, metric scale, mesh; merging and evaluation."""
