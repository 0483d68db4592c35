"""Readers of data sets: scenes under a folder are recognised by their files, with one small reader for each layout."""
