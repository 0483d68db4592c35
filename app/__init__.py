"""The program: sources, engine, writers, viewer and commands."""

import os
import platform

# OpenCV unpacks an image before its size can be asked for, and reads this when it is imported: a file of 11 KB may
# claim a billion pixels. The largest sensors of phones have 200 million.
MAX_PIXELS = 210 * 10**6
"""Of an image, in files and recordings."""
os.environ.setdefault("OPENCV_IO_MAX_IMAGE_PIXELS", str(MAX_PIXELS))

# OpenCV and its FFmpeg may print thousands of lines on a damaged file, and some on a good one; this program's own
# errors and warnings say more.
os.environ.setdefault("OPENCV_LOG_LEVEL", "SILENT")
os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")

# torch reads this when it is imported: operations that Apple's GPU lacks run on the CPU.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")

# What is multiplied outside of the network is small, and several at once: with threads of its own for each numpy's
# BLAS is two to three times as slow. Only where the network's library is another one.
if platform.machine().lower() in ("x86_64", "amd64"):
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
