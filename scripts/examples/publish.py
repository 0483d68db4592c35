"""Poses and depth for Foxglove while a video is reconstructed, as an MCAP file: publish.py VIDEO OUT FILE.mcap"""

import sys

import stream_recon as sr

result = sr.reconstruct(sys.argv[1], sys.argv[2], publish=[sys.argv[3]], mapping="stream", mesh=False, max_frames=12)
print(result.verdict, sys.argv[3])
