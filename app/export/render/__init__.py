"""Videos of a result along a camera path."""
