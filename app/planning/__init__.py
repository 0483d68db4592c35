"""What fits in a GPU's memory, and how fast it will be."""
