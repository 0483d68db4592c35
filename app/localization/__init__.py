"""Localization of images in the world of a refined result."""
