"""The result folder: writer and reader."""
