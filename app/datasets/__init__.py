"""Scenes under a folder, recognised by their files: one small reader for each layout behind one interface."""
