"""Presets and the dataclasses they fill."""
