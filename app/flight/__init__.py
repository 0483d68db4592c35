"""Videos of a result: a camera that flies through its points."""
