"""The program: sources, engine, writers, viewer and commands."""

import os

# OpenCV unpacks an image before its size can be asked for, and reads this when it is imported: a file of 11 KB may
# claim a billion pixels. The largest sensors of phones have 200 million.
MOST_PIXELS = 210 * 10**6
"""Of an image, in files and recordings."""
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MOST_PIXELS))
