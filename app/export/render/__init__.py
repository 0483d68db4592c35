"""Videos of a camera path through a result."""
