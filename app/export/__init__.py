"""Exports of result folders to the formats of other programs."""
